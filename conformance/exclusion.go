package conformance

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"example.com/distlock"
)

func exclusion() []clause {
	return []clause{
		{
			name: "exclusion/one-holder",
			rule: "While one Locker holds a name, TryLock of any other is refused with ErrHeld, and the holder notices nothing.",
			run: func(e *env) {
				a, name := e.locker(), e.name("x")
				lk := e.take(a, name)
				for _, l := range e.lockers(3) {
					e.refused(l, name)
				}
				e.held(lk)
				e.unlock(lk)
			},
		},
		{
			name: "exclusion/free-after-unlock",
			rule: "When Unlock has returned nil the name is free: the next TryLock of another Locker gets it.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				for range 10 {
					e.unlock(e.take(a, name))
					e.unlock(e.take(b, name))
				}
			},
		},
		{
			name: "exclusion/counter",
			rule: "Read-modify-write under the lock loses no update: holders of one name from different Lockers never overlap.",
			run: func(e *env) {
				const contenders, rounds = 5, 8
				name := e.name("x")
				e.count(e.lockers(contenders), name, rounds)
			},
		},
		{
			name: "exclusion/same-locker",
			rule: "Goroutines of one Locker exclude each other as Lockers do: the backend does not take them for one holder.",
			run: func(e *env) {
				const contenders, rounds = 8, 4
				l, name := e.locker(), e.name("x")
				lk := e.take(l, name)
				e.refused(l, name)
				e.unlock(lk)
				e.count(slices.Repeat([]distlock.Locker{l}, contenders), name, rounds)
			},
		},
		{
			name: "exclusion/try-storm",
			rule: "Of many TryLocks at the same moment at most one gets the name, and when those that failed have returned nothing of them is in the way.",
			run: func(e *env) {
				const contenders = 8
				ls, name := e.lockers(contenders), e.name("x")
				var winners atomic.Int64
				var winner atomic.Pointer[distlock.Lock]
				begin := make(chan struct{})
				var wg sync.WaitGroup
				for _, l := range ls {
					wg.Go(func() {
						<-begin
						lk, err := l.TryLock(e.ctx, name)
						switch {
						case err == nil:
							winners.Add(1)
							winner.Store(lk)
						case !errors.Is(err, distlock.ErrHeld) && stated(err):
							e.Errorf("TryLock: %v, want the lock or ErrHeld", err)
						}
					})
				}
				close(begin)
				wg.Wait()
				if n := winners.Load(); n > 1 {
					e.Fatalf("%d Lockers hold the name at the same time", n)
				}
				if lk := winner.Load(); lk != nil {
					e.refused(e.locker(), name)
					e.unlock(lk)
				}
				e.unlock(e.lock(ls[0], name))
			},
		},
		{
			name: "exclusion/many-names",
			rule: "Locks with different names are independent: one Locker holds many, another takes others, and unlocking some frees only those.",
			run: func(e *env) {
				const n = 20
				a, b := e.locker(), e.locker()
				var mine []*distlock.Lock
				for i := range n {
					mine = append(mine, e.take(a, e.name("mine"+strconv.Itoa(i))))
					e.take(b, e.name("other"+strconv.Itoa(i)))
				}
				for _, lk := range mine[:n/2] {
					e.unlock(lk)
				}
				for i, lk := range mine {
					if i < n/2 {
						e.take(b, lk.Name())
					} else {
						e.held(lk)
						e.refused(b, lk.Name())
					}
				}
			},
		},
		{
			name:  "exclusion/processes",
			rule:  "Holders in different processes exclude each other.",
			needs: all(spawns),
			run: func(e *env) {
				name := e.name("x")
				here, p, q := e.locker(), e.spawn(e.long), e.spawn(e.long)
				p.lock(name)
				e.refused(here, name)
				if a := q.send("trylock", name, 0).answer(); !a.Held {
					e.Fatalf("a second process's TryLock was answered with %+v, want ErrHeld", a)
				}
				if a := p.send("unlock", name, 0).answer(); a.Err != "" {
					e.Fatalf("Unlock in a process: %s", a.Err)
				}
				lk := e.take(here, name)
				if a := p.send("trylock", name, 0).answer(); !a.Held {
					e.Fatalf("a process's TryLock was answered with %+v, want ErrHeld", a)
				}
				e.held(lk)
			},
		},
		{
			name: "exclusion/second-unlock-is-harmless",
			rule: "Unlock removes only its own holding: repeated after somebody else took the name, it frees nothing.",
			run: func(e *env) {
				a, b, c, name := e.locker(), e.locker(), e.locker(), e.name("x")
				first := e.take(a, name)
				e.unlock(first)
				second := e.take(b, name)
				e.wantErr("second Unlock of the first holding", first.Unlock(e.ctx), distlock.ErrNotHeld)
				e.held(second)
				e.refused(c, name)
				e.refused(a, name)
			},
		},
		{
			name:  "exclusion/stale-unlock-is-harmless",
			rule:  "Unlock by a holder whose lease has ended removes nothing of its successor and matches ErrLost.",
			waits: true,
			run: func(e *env) {
				a, b, c, name := e.brief(), e.locker(), e.locker(), e.name("x")
				stale := e.lock(a, name, distlock.WithFixedLease(e.ttl))
				fresh := e.lock(b, name)
				e.wantErr("Unlock after the end of the lease", stale.Unlock(e.ctx), distlock.ErrLost, distlock.ErrNotHeld)
				e.held(fresh)
				e.refused(c, name)
				e.refused(a, name)
			},
		},
		{
			name:  "exclusion/late-release-is-harmless",
			rule:  "A release that reaches the backend after somebody else got the name removes nothing: release checks the owner.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, b, c, name := e.brief(distlock.WithReleaseTimeout(200*time.Millisecond)), e.locker(), e.locker(), e.name("x")
				stale := e.lock(a, name)
				p := e.start(e.ctx, b, name)
				heal := e.partition(a)
				e.lost(stale) // its release is tried again and again from here on
				fresh := p.got()
				heal()
				e.unlock(e.lock(a, e.name("other"))) // it is connected again
				e.pass(e.ttl, "the late release arrives")
				e.held(fresh)
				e.refused(c, name)
			},
		},
		{
			name:  "exclusion/own-late-release-is-harmless",
			rule:  "A release that is still open when its own Locker takes the name again removes nothing of the new holding: each acquisition is an owner of its own.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, b, name := e.locker(distlock.WithReleaseTimeout(200*time.Millisecond)), e.locker(), e.name("x")
				first := e.lock(a, name)
				heal := e.partition(a)
				if err := first.Unlock(e.ctx); err == nil {
					e.Error("Unlock without a backend returned nil")
				}
				heal()
				second := e.lock(a, name)
				e.pass(time.Second, "the release of the first holding is repeated")
				e.held(second)
				e.refused(b, name)
				if err := second.Renew(e.ctx); err != nil {
					e.Errorf("Renew of the new holding: %v", err)
				}
				e.unlock(second)
			},
		},
		{
			name: "exclusion/cancelled-in-flight",
			rule: "A Lock whose ctx ends in the moment it is granted either holds the lock or leaves nothing: never an error with the name taken, never a lock that another can have.",
			run: func(e *env) {
				a, b, c, name := e.locker(), e.locker(), e.locker(), e.name("x")
				for range 15 {
					lk := e.lock(a, name)
					p := e.wait(e.ctx, b, name)
					after := time.Duration(rand.IntN(3000)) * time.Microsecond // where the race is decided differs by backend
					timer := time.AfterFunc(after, p.cancel)
					e.unlock(lk)
					e.await(p.done, "Lock to end")
					timer.Stop()
					if p.err == nil {
						e.refused(c, name)
						e.held(p.lk)
						e.unlock(p.lk)
					} else {
						e.wantErr("cancelled Lock", p.err, context.Canceled)
					}
					e.unlock(e.lock(c, name)) // e.long is far beyond patience: what was left behind would show
				}
			},
		},
		{
			name:  "exclusion/survives-restart",
			rule:  "A restart of the backend that keeps its data takes no lock from its holder.",
			needs: all(restarts),
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				e.h.(Restarter).Restart(e.T)
				e.held(lk)
				e.eventually("a rival is told that the name is held", func() bool {
					got, err := e.try(e.ctx, b, name)
					if err == nil {
						e.Fatalf("a rival got the name (token %d) after a restart while it is held", got.Token())
					}
					return errors.Is(err, distlock.ErrHeld)
				})
				e.held(lk)
				e.eventually("Unlock succeeds", func() bool { return lk.Unlock(e.ctx) == nil })
				e.unlock(e.lock(b, name))
			},
		},
	}
}

// count has each of ls take name so many times and count under it.
func (e *env) count(ls []distlock.Locker, name string, rounds int) {
	e.Helper()
	var o overlap
	var wg sync.WaitGroup
	for _, l := range ls {
		wg.Go(func() {
			for range rounds {
				if err := o.hold(e, l, name); err != nil {
					e.Errorf("contender failed: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := o.overlaps.Load(); n > 0 {
		e.Errorf("two holders were inside at the same time, %d times", n)
	}
	if got, want := o.value.Load(), int64(len(ls)*rounds); got != want {
		e.Errorf("the value counted under the lock is %d, want %d", got, want)
	}
}

// overlap is a value that only the holder of a lock changes, in two steps.
type overlap struct {
	inside, overlaps, value atomic.Int64
}

// hold takes name, changes the value and releases.
func (o *overlap) hold(e *env, l distlock.Locker, name string) error {
	ctx, cancel := context.WithTimeout(e.ctx, 2*patience)
	defer cancel()
	lk, err := l.Lock(ctx, name)
	if err != nil {
		return err
	}
	if o.inside.Add(1) != 1 {
		o.overlaps.Add(1)
	}
	v := o.value.Load()
	for range 50 { // give others the chance to come in between
		if o.inside.Load() != 1 {
			o.overlaps.Add(1)
		}
	}
	o.value.Store(v + 1)
	o.inside.Add(-1)
	return e.release(lk)
}
