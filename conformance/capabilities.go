package conformance

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"

	"example.com/distlock"
)

func capabilities() []clause {
	return []clause{
		{
			name: "capabilities/consistent",
			rule: "What a backend claims makes sense: it has a name, its TTLs have a range, and numbers have a kind where it claims Fencing.",
			run: func(e *env) {
				c := e.caps
				if c.Backend == "" {
					e.Error("Backend is empty")
				}
				if c.MinTTL < 0 || c.MaxTTL < 0 || c.TTLQuantum < 0 || c.MaxTTL > 0 && c.MaxTTL < c.MinTTL {
					e.Errorf("TTLs from %v to %v in steps of %v", c.MinTTL, c.MaxTTL, c.TTLQuantum)
				}
				if c.Fencing && c.NumberKind == "" {
					e.Error("Fencing is claimed and NumberKind is empty")
				}
			},
		},
		{
			name:  "capabilities/fencing-not-claimed",
			rule:  "A backend whose tokens increase from holder to holder claims Fencing.",
			needs: all(not(fences)),
			run: func(e *env) {
				ls, name := e.lockers(3), e.name("x")
				var tokens []distlock.Token
				for range 20 {
					lk := e.take(ls[rand.IntN(len(ls))], name)
					tokens = append(tokens, lk.Token())
					e.unlock(lk)
				}
				if strictlyIncreasing(tokens) {
					e.Errorf("Fencing is not claimed, yet the tokens of %d holders in a row increase: %v", len(tokens), tokens)
				}
			},
		},
		{
			name:  "capabilities/fifo-not-claimed",
			rule:  "A backend that serves contenders in order of arrival claims FIFO.",
			needs: all(not(fifo)),
			run: func(e *env) {
				// With FIFO nobody overtakes, whoever is quick. Without it the one that
				// has just unlocked mostly can, and by chance all rounds are in order
				// once in (5!)^4, 2·10^8, runs.
				const contenders, rounds = 5, 4
				holder, ls := e.locker(), e.lockers(contenders)
				for round := range rounds {
					name := e.name(strconv.Itoa(round))
					lk := e.take(holder, name)
					served := make(chan int, contenders)
					var ps []*pending
					for i, n := range rand.Perm(contenders) {
						p := e.wait(e.ctx, ls[n], name)
						ps = append(ps, p)
						go func() {
							<-p.done
							served <- i
							_ = e.release(p.lk) // the contender was served or got below fails
						}()
					}
					e.unlock(lk)
					overtaken := false
					if again, err := holder.TryLock(e.ctx, name); err == nil {
						// Who has not been served by now waits while the name is held anew.
						overtaken = slices.ContainsFunc(ps, func(p *pending) bool { return !isClosed(p.done) })
						e.unlock(again)
					}
					for _, p := range ps {
						p.got()
					}
					if overtaken {
						return
					}
					var order []int
					for range contenders {
						order = append(order, <-served)
					}
					if !slices.IsSorted(order) {
						return
					}
				}
				e.Errorf("FIFO is not claimed, yet %d contenders were served in order of arrival %d times in a row", contenders, rounds)
			},
		},
		{
			name:  "capabilities/push-not-claimed",
			rule:  "A backend whose server wakes waiters claims Push.",
			needs: all(not(pushes)),
			waits: true,
			run: func(e *env) {
				if e.woken("x") {
					e.Error("Push is not claimed, yet a waiter that does not poll was woken by an unlock")
				}
			},
		},
		{
			name:  "capabilities/shared-fate-not-claimed",
			rule:  "A backend on which locks of one Locker are lost together claims SharedFate.",
			needs: all(not(sharedFate), expires),
			waits: true,
			run: func(e *env) {
				e.steady(e.keepTTL()/4, func(attempt string) error {
					a := e.open(e.keepTTL(), nil)
					var others []*distlock.Lock
					first := e.lock(a, e.name(attempt+"first"))
					for i := range 3 {
						others = append(others, e.lock(a, e.name(attempt+strconv.Itoa(i))))
					}
					e.expire(first.Name())
					e.lost(first)
					e.pass(e.keepTTL()/2, "the others are renewed at least once more")
					if slices.ContainsFunc(others, func(lk *distlock.Lock) bool { return lk.Err() == nil }) {
						return nil
					}
					return errors.New("SharedFate is not claimed, yet all locks of the Locker were lost together")
				})
			},
		},
	}
}

func strictlyIncreasing(tokens []distlock.Token) bool {
	for i, tok := range tokens {
		if tok == 0 || i > 0 && tok <= tokens[i-1] {
			return false
		}
	}
	return true
}
