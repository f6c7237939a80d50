package conformance

import (
	"errors"
	"sync"

	"example.com/distlock"
)

func fairness() []clause {
	return []clause{
		{
			name: "fairness/local-order",
			rule: "Contenders of one Locker for one name are served in the order in which they came.",
			run: func(e *env) {
				const n = 6
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				var ps []*pending
				for range n {
					ps = append(ps, e.wait(e.ctx, b, name))
				}
				e.unlock(lk)
				e.servedInOrder(ps)
			},
		},
		{
			name:  "fairness/arrival-order",
			rule:  "With FIFO, contenders from different Lockers are served in the order in which they came.",
			needs: all(fifo),
			run: func(e *env) {
				const n = 8
				name := e.name("x")
				lk := e.take(e.locker(), name)
				var ps []*pending
				for _, l := range e.lockers(n) {
					ps = append(ps, e.wait(e.ctx, l, name))
				}
				e.unlock(lk)
				e.servedInOrder(ps)
			},
		},
		{
			name:  "fairness/order-without-those-who-left",
			rule:  "With FIFO, those who give up don't change the order of those who stay.",
			needs: all(fifo),
			run: func(e *env) {
				const n = 7
				name := e.name("x")
				lk := e.take(e.locker(), name)
				var all, stay []*pending
				for i, l := range e.lockers(n) {
					p := e.wait(e.ctx, l, name)
					all = append(all, p)
					if i%2 == 1 {
						stay = append(stay, p)
					}
				}
				for i, p := range all {
					if i%2 == 0 {
						p.cancel()
						_ = p.failed()
					}
				}
				e.unlock(lk)
				e.servedInOrder(stay)
			},
		},
		{
			name:  "fairness/last-holder-goes-behind",
			rule:  "With FIFO, a holder that unlocks and locks again stands behind those who wait already.",
			needs: all(fifo),
			run: func(e *env) {
				name := e.name("x")
				ls := e.lockers(4)
				lk := e.take(ls[0], name)
				var ps []*pending
				for _, l := range ls[1:] {
					ps = append(ps, e.wait(e.ctx, l, name))
				}
				e.unlock(lk)
				ps = append(ps, e.start(e.ctx, ls[0], name))
				e.servedInOrder(ps)
			},
		},
		{
			name:  "fairness/no-overtaking-by-try",
			rule:  "With FIFO, TryLock does not overtake those who wait.",
			needs: all(fifo),
			run: func(e *env) {
				name := e.name("x")
				ls := e.lockers(4)
				lk := e.take(ls[0], name)
				ps := []*pending{e.wait(e.ctx, ls[1], name), e.wait(e.ctx, ls[2], name)}
				stop := make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() {
					for !isClosed(stop) {
						_, err := ls[3].TryLock(e.ctx, name)
						switch {
						case err == nil:
							e.Errorf("TryLock got the name while others waited for it")
							return
						case stated(err) && !errors.Is(err, distlock.ErrHeld):
							e.Errorf("TryLock: %v", err)
							return
						}
					}
				})
				e.unlock(lk)
				e.unlock(ps[0].got())
				last := ps[1].got()
				close(stop)
				wg.Wait()
				e.held(last)
			},
		},
	}
}

// servedInOrder checks that the calls get their lock in the order of ps; each is
// unlocked before the next is looked for.
func (e *env) servedInOrder(ps []*pending) {
	e.Helper()
	for i, p := range ps {
		lk := p.got()
		for j, later := range ps[i+1:] {
			if isClosed(later.done) {
				e.Fatalf("contender %d has been served (%v) before contender %d unlocked", i+1+j+1, later.err, i+1)
			}
		}
		e.unlock(lk)
	}
}
