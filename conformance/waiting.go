package conformance

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"example.com/distlock"
)

func waiting() []clause {
	return []clause{
		{
			name: "waiting/served-after-unlock",
			rule: "Lock on a taken name waits, and gets the name once the holder unlocks, long before the holder's TTL would have ended.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				p := e.wait(e.ctx, b, name)
				p.mustWait("the name is held")
				e.held(lk)
				e.unlock(lk)
				e.unlock(p.got())
			},
		},
		{
			name:  "waiting/pushed",
			rule:  "With Push a waiter is woken by the server: it does not sleep through an unlock however rarely it would poll.",
			needs: all(pushes),
			run: func(e *env) {
				for round := range 8 { // a slow machine may spoil some of them
					if e.woken("round" + strconv.Itoa(round)) {
						return
					}
				}
				e.Error("a waiter that does not poll was not woken by an unlock")
			},
		},
		{
			name: "waiting/many",
			rule: "Every waiter is served in the end when all holders unlock.",
			run: func(e *env) {
				const lockers, each = 5, 4
				name := e.name("x")
				lk := e.take(e.locker(), name)
				var ps []*pending
				for _, l := range e.lockers(lockers) {
					for range each {
						ps = append(ps, e.start(e.ctx, l, name))
					}
				}
				var wg sync.WaitGroup
				for _, p := range ps {
					wg.Go(func() {
						<-p.done
						if p.err != nil {
							e.Errorf("waiter failed: %v", p.err)
							return
						}
						if err := e.release(p.lk); err != nil {
							e.Errorf("Unlock: %v", err)
						}
					})
				}
				e.unlock(lk)
				all := make(chan struct{})
				go func() { wg.Wait(); close(all) }()
				e.await(all, "all waiters to be served")
			},
		},
		{
			name: "waiting/deadline",
			rule: "Lock ends at its ctx's deadline, not before it, with an error that matches both ErrHeld and the ctx's error and names the backend and the lock.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				ctx, cancel := context.WithTimeout(e.ctx, 300*time.Millisecond)
				defer cancel()
				got, err := b.Lock(ctx, name)
				if err == nil {
					e.Fatal("Lock got a name that is held")
				}
				if got != nil {
					e.Errorf("Lock returned a non-nil *Lock with the error %v", err)
				}
				if ctx.Err() == nil {
					e.Errorf("Lock ended before its ctx: %v", err)
				}
				e.wantErr("Lock after its deadline", err, distlock.ErrHeld, context.DeadlineExceeded)
				e.wantDetail(err, name)
				e.held(lk)
			},
		},
		{
			name: "waiting/cancel",
			rule: "Lock ends when its ctx is cancelled, with an error that matches the ctx's.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				p := e.wait(e.ctx, b, name)
				p.cancel()
				e.wantErr("cancelled Lock", p.failed(), context.Canceled)
				e.held(lk)
			},
		},
		{
			name: "waiting/ended-ctx",
			rule: "Lock and TryLock with a ctx that has already ended take nothing, even if the name is free.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				ctx, cancel := context.WithCancel(e.ctx)
				cancel()
				_, err := a.Lock(ctx, name)
				e.wantErr("Lock with an ended ctx", err, context.Canceled)
				_, err = a.TryLock(ctx, name)
				e.wantErr("TryLock with an ended ctx", err, context.Canceled)
				e.unlock(e.take(b, name))
			},
		},
		{
			name: "waiting/free-name",
			rule: "A free name is got at the first attempt: TryLock needs no patience, and Lock's deadline ends no attempt that can still succeed.",
			run: func(e *env) {
				l, name := e.locker(), e.name("x")
				for range 30 {
					e.unlock(e.take(l, name))
					ctx, cancel := e.soon()
					lk, err := l.Lock(ctx, name)
					cancel()
					if err != nil {
						e.Fatalf("Lock of a free name: %v", err)
					}
					e.unlock(lk)
				}
			},
		},
		{
			name: "waiting/failed-try-leaves-nothing",
			rule: "A TryLock that was refused leaves nothing behind: once the holder has unlocked, others get the name although the one that tried is still there.",
			run: func(e *env) {
				a, b, c, name := e.locker(), e.locker(), e.locker(), e.name("x")
				for range 10 {
					lk := e.take(a, name)
					e.refused(b, name)
					e.unlock(lk)
					e.unlock(e.lock(c, name))
				}
			},
		},
		{
			name: "waiting/given-up-leaves-nothing",
			rule: "A waiter that gave up leaves its place: once the holder has unlocked, others get the name although the Locker that gave up is still there.",
			run: func(e *env) {
				a, b, c, name := e.locker(), e.locker(), e.locker(), e.name("x")
				for range 3 {
					lk := e.take(a, name)
					for range 3 {
						p := e.wait(e.ctx, b, name)
						p.cancel()
						_ = p.failed()
					}
					e.unlock(lk)
					e.unlock(e.lock(c, name))
				}
			},
		},
		{
			name: "waiting/middle-gives-up",
			rule: "A waiter that gives up does not cost the others their turn.",
			run: func(e *env) {
				name := e.name("x")
				ls := e.lockers(4)
				lk := e.take(ls[0], name)
				first, middle, last := e.wait(e.ctx, ls[1], name), e.wait(e.ctx, ls[2], name), e.wait(e.ctx, ls[3], name)
				middle.cancel()
				e.wantErr("cancelled Lock", middle.failed(), context.Canceled)
				e.unlock(lk)
				// Which is first depends on FIFO; both must be served.
				for _, p := range []*pending{first, last} {
					go func() {
						<-p.done
						_ = e.release(p.lk) // harmless on nil, and got tells
					}()
				}
				first.got()
				last.got()
			},
		},
		{
			name:  "waiting/ctx-bounds-the-wait-only",
			rule:  "The ctx of Lock bounds the wait, not the hold: when it ends the lock is kept and renewed, and its Context goes on with the ctx's values.",
			waits: true,
			run: func(e *env) {
				type key struct{}
				e.keeps(func(l distlock.Locker, name string) (*distlock.Lock, error) {
					ctx, cancel := context.WithTimeout(context.WithValue(e.ctx, key{}, "v"), patience)
					lk, err := l.Lock(ctx, name)
					cancel()
					if err == nil && lk.Context().Value(key{}) != "v" {
						e.Error("Lock's Context does not descend from its ctx")
					}
					return lk, err
				})
			},
		},
		{
			name:  "waiting/lease-ends",
			rule:  "A waiter gets the name when the holder's lease ends without an unlock, although nobody announces it.",
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(), e.locker(), e.name("x")
				lk := e.lock(a, name, distlock.WithFixedLease(e.ttl))
				next := e.lock(b, name)
				if lk.Err() == nil {
					e.Fatal("the successor got the name before the end of the fixed lease")
				}
				e.held(next)
			},
		},
		{
			name:  "waiting/holder-killed",
			rule:  "A waiter gets the name after the holder's process was killed, and no earlier than the deadline that the holder was promised.",
			needs: all(spawns),
			waits: true,
			run: func(e *env) {
				name := e.name("x")
				b, p := e.locker(), e.spawn(e.ttl)
				promised := p.lock(name).ValidUntil
				w := e.start(e.ctx, b, name)
				p.kill()
				w.got()
				if now := time.Now(); now.Before(promised) {
					e.Errorf("a rival got the name %v before the end of what the killed holder was promised", promised.Sub(now))
				}
			},
		},
		{
			name:  "waiting/waiters-killed",
			rule:  "Waiters whose processes were killed do not block those behind them: their places end with their leases, all at the same time.",
			needs: all(spawns),
			waits: true,
			run: func(e *env) {
				name := e.name("x")
				a, b := e.locker(), e.locker()
				lk := e.take(a, name)
				var dead []*process
				for range 3 {
					p := e.spawn(e.ttl)
					p.send("lock", name, 0).waits()
					dead = append(dead, p)
				}
				w := e.wait(e.ctx, b, name)
				for _, p := range dead {
					p.kill()
				}
				e.unlock(lk)
				w.got()
			},
		},
		{
			name:  "waiting/outage",
			rule:  "Lock goes on through errors of communication until its ctx ends: a waiter that was cut off for a while gets the name after it has been freed.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, b, name := e.locker(), e.brief(), e.name("x")
				lk := e.take(a, name)
				p := e.wait(e.ctx, b, name)
				heal := e.partition(b)
				e.pass(e.ttl, "the outage lasts longer than the waiter's TTL")
				e.unlock(lk)
				p.mustWait("it is cut off")
				heal()
				p.got()
			},
		},
		{
			name:  "waiting/unreachable",
			rule:  "With the backend out of reach Lock ends at its ctx's deadline with the ctx's error, and nothing of it appears at the backend afterwards.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				b, c, name := e.brief(), e.locker(), e.name("x")
				e.unlock(e.lock(b, e.name("warm-up")))
				heal := e.partition(b)
				ctx, cancel := context.WithTimeout(e.ctx, 400*time.Millisecond)
				defer cancel()
				lk, err := b.Lock(ctx, name)
				if err == nil {
					e.Fatalf("Lock got a lock (token %d) over a connection that is cut", lk.Token())
				}
				e.wantErr("Lock without a backend", err, context.DeadlineExceeded)
				e.wantDetail(err, name)
				heal()
				e.unlock(e.lock(b, e.name("warm-up"))) // what was on its way has arrived or is lost
				e.unlock(e.lock(c, name))
			},
		},
		{
			name:  "waiting/after-idling",
			rule:  "A Locker that has been idle for several TTLs, and may have given its session up, locks as it did before.",
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(), e.locker(), e.name("x")
				e.unlock(e.lock(a, name))
				e.pass(e.ttl*5/2, "what an idle Locker keeps is given up")
				lk := e.lock(a, name)
				e.refused(b, name)
				e.unlock(lk)
				e.unlock(e.take(b, name))
			},
		},
		{
			name:  "waiting/through-restart",
			rule:  "A waiter lives through a restart of the backend and gets the name after it.",
			needs: all(restarts),
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				p := e.wait(e.ctx, b, name)
				e.h.(Restarter).Restart(e.T)
				p.mustWait("the name is held")
				e.eventually("Unlock succeeds", func() bool { return lk.Unlock(e.ctx) == nil })
				p.got()
			},
		},
		{
			name: "waiting/churn",
			rule: "Waits that are cancelled at any moment leave nothing: after many of them the name is free as soon as its last holder has unlocked.",
			run: func(e *env) {
				const contenders, rounds = 4, 10
				ls, name := e.lockers(contenders), e.name("x")
				var wg sync.WaitGroup
				for i, l := range ls {
					wg.Go(func() {
						for n := range rounds {
							ctx, cancel := context.WithTimeout(e.ctx, time.Duration(1+(n*7+i*3)%20)*time.Millisecond)
							lk, err := l.Lock(ctx, name)
							cancel()
							if err == nil {
								err = e.release(lk)
							} else if errors.Is(err, context.DeadlineExceeded) {
								err = nil
							}
							if err != nil {
								e.Errorf("contender %s, round %s: %v", strconv.Itoa(i), strconv.Itoa(n), err)
							}
						}
					})
				}
				wg.Wait()
				e.unlock(e.lock(e.locker(), name))
			},
		},
	}
}

// woken reports whether an unlock woke a waiter that polls as rarely as it can.
// Where hints come the core polls once a second at least, since one may be lost:
// only what is quicker than that counts.
func (e *env) woken(name string) bool {
	e.Helper()
	never := distlock.WithBackoff(func(int) time.Duration { return time.Hour })
	a, b := e.locker(), e.locker(never)
	name = e.name(name)
	e.unlock(e.take(b, e.name("warm-up")))
	lk := e.take(a, name)
	before := time.Now()
	p := e.wait(e.ctx, b, name)
	e.unlock(lk)
	timer := time.NewTimer(800 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-p.done:
		p.got()
		return p.at.Sub(before) < 800*time.Millisecond
	case <-timer.C:
		return false
	}
}

// wantDetail checks that err is a *distlock.Error that names backend and lock.
func (e *env) wantDetail(err error, name string) {
	e.Helper()
	de, ok := errors.AsType[*distlock.Error](err)
	if !ok {
		e.Fatalf("error %v (%T) holds no *distlock.Error", err, err)
	}
	if de.Backend != e.caps.Backend || de.Name != name || de.Op == "" {
		e.Fatalf("error %#v: want Backend %q, Name %q and an Op", de, e.caps.Backend, name)
	}
}
