package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/membackend"
)

// Rules of a holding: its deadline, its renewal, its loss.

func TestDeadlineIsCountedFromTheSendNotTheReply(t *testing.T) {
	const slow = 500 * time.Millisecond
	for _, op := range []membackend.Op{membackend.Acquire, membackend.Renew} {
		t.Run(string(op), func(t *testing.T) {
			where(t, ownTTL, func(e *env) {
				l := e.locker("a", distlock.WithRenewEvery(2*time.Second))
				first := time.Now()
				if op == membackend.Acquire {
					e.inject(membackend.Fault{Op: membackend.Acquire, Kind: membackend.SlowReply, Delay: slow})
				}
				lk, err := l.TryLock(bg, "n")
				e.is(err, nil)
				if op == membackend.Renew {
					f := e.inject(membackend.Fault{Op: membackend.Renew, Kind: membackend.SlowReply, Delay: slow})
					<-f.Reached()
					first = time.Now()
				}
				time.Sleep(slow + time.Millisecond)
				if got, want := lk.ValidUntil(), first.Add(ttl-margin); !got.Equal(want) {
					e.Errorf("deadline %v after the send, want %v", got.Sub(first), want.Sub(first))
				}
			})
		})
	}
}

func TestDeadlineIsCountedFromTheSessionNotTheAcquire(t *testing.T) {
	where(t, shared, func(e *env) {
		e.o.RenewWithin = 0
		l := e.locker("a")
		start := time.Now()
		e.lock(l, "1")
		time.Sleep(800 * time.Millisecond) // before the first renewal
		lk := e.lock(l, "2")
		if got, want := lk.ValidUntil(), start.Add(ttl-margin); !got.Equal(want) {
			e.Errorf("deadline %v after the session's start, want %v", got.Sub(start), want.Sub(start))
		}
	})
}

func TestSafetyMarginIsTakenOffTheTTL(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a", distlock.WithSafetyMargin(time.Second))
		start := time.Now()
		if got := e.lock(l, "n").ValidUntil().Sub(start); got != ttl-time.Second {
			e.Errorf("valid for %v", got)
		}
		small := e.locker("b", distlock.WithSafetyMargin(1))
		if got := e.lock(small, "m").ValidUntil().Sub(start); got != ttl-margin {
			e.Errorf("a margin below the default gives %v", got)
		}
	})
}

func TestToldInTimeWhileARenewalHangs(t *testing.T) {
	for _, kind := range []membackend.Kind{membackend.HangRequest, membackend.HangReply} {
		each(t, func(e *env) {
			l, rival := e.locker("a"), e.locker("b")
			start := time.Now()
			lk := e.lock(l, "n")
			f := e.inject(membackend.Fault{Op: membackend.Renew, Locker: "a", Times: -1, Kind: kind})
			retire := e.inject(membackend.Fault{Op: membackend.Retire, Locker: "a", Times: -1, Kind: membackend.HangRequest})
			e.lost(lk, ttl-margin, distlock.Expired)
			e.took(start, ttl-margin, ttl-margin)
			e.lock(rival, "n")
			f.Resume() // the late answers change nothing
			retire.Resume()
			synctest.Wait()
			e.is(lk.Err(), distlock.ErrLost)
		})
	}
}

func TestToldInTimeBeforeARivalCanHaveIt(t *testing.T) {
	each(t, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		waits := e.waitsFor(bg, rival, "n")
		heal := e.s.Partition("a")
		defer heal()
		select {
		case <-lk.Lost():
		case r := <-waits:
			e.Fatalf("a rival has it first: %v", r.err)
		}
		r := <-waits
		e.is(r.err, nil)
		e.is(lk.Err(), distlock.ErrLost)
	})
}

func TestStateChecksTheWallClockAfterASuspend(t *testing.T) {
	for what, read := range map[string]func(*distlock.Lock) bool{
		"Err":        func(lk *distlock.Lock) bool { return errors.Is(lk.Err(), distlock.ErrLost) },
		"Token":      func(lk *distlock.Lock) bool { return lk.Token() == 0 },
		"ValidUntil": func(lk *distlock.Lock) bool { return lk.ValidUntil().IsZero() },
		"Renew":      func(lk *distlock.Lock) bool { return errors.Is(lk.Renew(bg), distlock.ErrLost) },
		"Unlock":     func(lk *distlock.Lock) bool { return errors.Is(lk.Unlock(bg), distlock.ErrLost) },
	} {
		t.Run(what, func(t *testing.T) {
			each(t, func(e *env) {
				l := e.locker("a")
				lk := e.lock(l, "n")
				l.SetWallSkew(ttl - margin - 1)
				e.held(lk)
				l.SetWallSkew(ttl - margin)
				if !read(lk) {
					e.Error("past the deadline by the wall clock, but not lost")
				}
				l.SetWallSkew(0)
				e.lost(lk, 1, distlock.Expired)
			})
		})
	}
}

func TestToldAfterASuspendThoughNobodyReads(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		e.inject(membackend.Fault{Op: membackend.Renew, Locker: "a", Times: -1, Kind: membackend.HangRequest})
		l.SetWallSkew(ttl)
		e.lost(lk, ttl/2, distlock.Expired) // at the next alarm, not at the deadline
	})
}

func TestWatchdogKeepsALockForManyTTLs(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		locks := []*distlock.Lock{}
		for i := range 150 { // more than one batch
			locks = append(locks, e.lock(l, fmt.Sprint(i)))
		}
		token := locks[0].Token()
		for range 100 {
			time.Sleep(ttl / 10)
			for _, lk := range locks {
				e.held(lk)
			}
		}
		if locks[0].Token() != token {
			e.Error("the token changed")
		}
		// One request for all where fate is shared, few where it is not.
		batches := 1
		if !e.o.SharedFate {
			batches = 3 + 2 // and a spread of acquisition times
		}
		rounds := int(10*ttl/(ttl/3)) + 5
		if e.o.RenewWithin > 0 {
			rounds = int(10*ttl/e.o.RenewWithin)*10/9 + 5
		}
		if n := e.s.Requests(membackend.Renew); n > rounds*batches {
			e.Errorf("%d renewals", n)
		}
	})
}

func TestManyLocksAreRenewedAFewBatchesAtATime(t *testing.T) {
	where(t, ownTTL, func(e *env) {
		l := e.locker("a")
		var locks []*distlock.Lock
		for i := range 2500 {
			locks = append(locks, e.lock(l, fmt.Sprint(i)))
		}
		f := e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.SlowReply, Delay: ttl / 100})
		n := f.Hits()
		time.Sleep(ttl / 3)
		synctest.Wait()
		for range 100 {
			before := f.Hits()
			time.Sleep(ttl / 100)
			synctest.Wait()
			if now := f.Hits(); now-before > 8 {
				e.Fatalf("%d renewals at once", now-before)
			}
		}
		if f.Hits()-n < 2*25 {
			e.Errorf("only %d renewals", f.Hits()-n)
		}
		for _, lk := range locks {
			e.held(lk)
		}
	})
}

func TestWatchdogSurvivesTransientErrors(t *testing.T) {
	for _, kind := range []membackend.Kind{membackend.FailBefore, membackend.LoseReply, membackend.Late, membackend.HangRequest} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			each(t, func(e *env) {
				l := e.locker("a")
				lk := e.lock(l, "n")
				for range 10 {
					f := e.inject(membackend.Fault{Op: membackend.Renew, Times: 1, Kind: kind, Delay: 100 * time.Millisecond})
					e.neverLost(lk, ttl)
					if f.Hits() != 1 {
						e.Error("no renewal was hit")
					}
				}
				e.held(lk)
			})
		})
	}
}

func TestWatchdogGoesOnThroughPermanentErrors(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		e.inject(membackend.Fault{Op: membackend.Renew, Kind: membackend.FailBefore, Err: &driver.PermanentError{Err: errors.New("NOPERM")}})
		e.neverLost(lk, 5*ttl)
	})
}

func TestWatchdogSurvivesAnOutageShorterThanTheTTL(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		for range 5 {
			f := e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.FailBefore})
			<-f.Reached()
			time.Sleep(ttl * 45 / 100)
			f.Remove()
			e.neverLost(lk, ttl)
		}
	})
}

func TestLossNamesTheLastRenewalError(t *testing.T) {
	each(t, func(e *env) {
		boom := errors.New("boom")
		lk := e.lock(e.locker("a"), "n")
		e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.FailBefore, Err: boom})
		e.is(e.lost(lk, ttl, distlock.Expired), boom)
	})
}

func TestNotHeldIsFinal(t *testing.T) {
	each(t, func(e *env) {
		e.o.Quiet = true // it is the renewal that finds out
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		e.s.Expire("n")
		theirs := e.lock(rival, "n")
		e.lost(lk, ttl/3+soon, distlock.Revoked)
		time.Sleep(3 * ttl)
		e.is(lk.Err(), distlock.ErrLost)
		e.held(theirs)
	})
}

func TestRenewalNeverBringsALockBack(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		// The server was out of reach past the deadline, but not past the TTL.
		f := e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.FailBefore})
		release := e.inject(membackend.Fault{Op: membackend.Release, Kind: membackend.FailBefore})
		e.lost(lk, ttl, distlock.Expired)
		f.Remove()
		release.Remove()
		time.Sleep(2 * ttl)
		e.is(lk.Err(), distlock.ErrLost)
		e.is(lk.Renew(bg), distlock.ErrLost)
		e.free()
	})
}

func TestLossReleasesInTheBackground(t *testing.T) {
	where(t, func(o membackend.Options) bool { return !o.Quiet }, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n", distlock.WithMaxHold(time.Second))
		f := e.inject(membackend.Fault{Op: membackend.Release, Times: 3, Kind: membackend.FailBefore})
		e.lost(lk, time.Second, distlock.MaxHold)
		start := time.Now()
		e.lock(rival, "n")
		e.took(start, 1, time.Second) // it took some tries, but no TTL
		if f.Hits() != 3 {
			e.Errorf("%d tries failed", f.Hits())
		}
	})
}

func TestSameLockerLocksAgainAfterALoss(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		first := e.lock(l, "n")
		token := first.Token()
		e.s.Expire("n")
		e.lost(first, ttl, distlock.Revoked)
		again := e.lock(l, "n")
		if again.Token() <= token {
			e.Errorf("token %v after %v", again.Token(), token)
		}
		e.neverLost(again, 3*ttl)
		e.is(first.Unlock(bg), distlock.ErrLost) // and takes nothing away
		e.held(again)
	})
}

func TestServersNewsIsALoss(t *testing.T) {
	where(t, func(o membackend.Options) bool { return !o.Quiet }, func(e *env) {
		l := e.locker("a")
		lk, other := e.lock(l, "n"), e.lock(l, "other")
		e.s.Expire("n")
		e.lost(lk, 0, distlock.Revoked)
		e.held(other)
		e.s.ExpireAll("a")
		e.lost(other, 0, distlock.Revoked)
	})
}

func TestServersNewsThatOvertakesTheGrantCounts(t *testing.T) {
	where(t, func(o membackend.Options) bool { return !o.Quiet }, func(e *env) {
		l := e.locker("a")
		for _, op := range []membackend.Op{membackend.Acquire, membackend.Wait} {
			e.inject(membackend.Fault{Op: op, Kind: membackend.SlowReply, Delay: ttl / 10})
		}
		time.AfterFunc(ttl/20, func() { e.s.Expire("n") })
		lk := e.lock(l, "n")
		if n := lk.Token().Number(); n != 2 {
			e.Errorf("grant %d was returned, which was over", n)
		}
		e.neverLost(lk, ttl)
	})
}

func TestHeldLocksCostNoGoroutine(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		e.lock(l, "first")
		synctest.Wait()
		before := runtime.NumGoroutine()
		for i := range 1000 {
			e.lock(l, fmt.Sprint(i))
		}
		time.Sleep(2*ttl + time.Millisecond)
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before+5 {
			e.Errorf("%d goroutines for 1000 locks", after-before)
		}
	})
}

func TestLockContextDescendsFromTheCallersWithoutItsEnd(t *testing.T) {
	each(t, func(e *env) {
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(bg, key{}, "value"), time.Second)
		lk, err := e.locker("a").Lock(ctx, "n")
		e.is(err, nil)
		cancel()
		e.neverLost(lk, 2*ttl)
		if lk.Context().Value(key{}) != "value" || lk.Context().Err() != nil {
			e.Error("the context lost its values, or ended with the caller's")
		}
		if _, ok := lk.Context().Deadline(); ok {
			e.Error("the caller's deadline bounds the hold")
		}
		e.unlock(lk)
		e.is(context.Cause(lk.Context()), distlock.ErrReleased)
		e.is(lk.Context().Err(), context.Canceled)
	})
}

func TestFixedLeaseIsNotRenewed(t *testing.T) {
	where(t, ownTTL, func(e *env) {
		l := e.locker("a")
		start := time.Now()
		lk := e.lock(l, "n", distlock.WithFixedLease(10*time.Second))
		e.lost(lk, 10*time.Second, distlock.Expired)
		if d := time.Since(start); d != 10*time.Second-100*time.Millisecond-2*time.Millisecond {
			e.Errorf("lost after %v", d)
		}
		if n := e.s.Requests(membackend.Renew); n != 0 {
			e.Errorf("%d renewals", n)
		}
		synctest.Wait()
		e.free()
	})
}

func TestFixedLeaseOnASessionReleasesItsOwnKeyOnly(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		kept := e.lock(l, "kept")
		start := time.Now()
		lk := e.lock(l, "n", distlock.WithFixedLease(10*time.Second))
		e.lost(lk, 10*time.Second, distlock.Expired)
		e.took(start, 10*time.Second, 10*time.Second) // longer than the session's TTL
		synctest.Wait()
		if e.s.Inspect("n").Held {
			e.Error("its key is still there")
		}
		e.neverLost(kept, 3*ttl)
	})
}

func TestRenewStartsAFixedLeaseAnew(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n", distlock.WithFixedLease(ttl))
		for range 4 {
			time.Sleep(2 * time.Second)
			e.is(lk.Renew(bg), nil)
			e.held(lk)
		}
		start := time.Now()
		e.lost(lk, ttl, distlock.Expired)
		e.took(start, ttl-margin, ttl)
	})
}

func TestOverlappingRenewsOfAFixedLeaseShortenNothing(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n", distlock.WithFixedLease(ttl/2)) // less than what the session has
		e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.SlowReply, Delay: ttl / 10})
		var all sync.WaitGroup
		for range 20 { // the second and all after it are answered together, in any order
			all.Go(func() { e.is(lk.Renew(bg), nil) })
			time.Sleep(time.Millisecond)
		}
		last := time.Now().Add(-time.Millisecond)
		all.Wait()
		if got := lk.ValidUntil().Sub(last); got < ttl/2 {
			e.Errorf("valid for %v after the last call, want %v", got, ttl/2)
		}
	})
}

func TestRenewReportsErrorsAndKeepsTheLock(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		e.inject(membackend.Fault{Op: membackend.Renew, Kind: membackend.FailBefore})
		err := lk.Renew(bg)
		e.is(err, membackend.ErrInjected)
		e.isNot(err, distlock.ErrLost)
		var de *distlock.Error
		if !errors.As(err, &de) || de.Op != "renew" || de.Backend != "memory" || de.Name != "n" {
			e.Errorf("%#v", err)
		}
		e.held(lk)

		f := e.inject(membackend.Fault{Op: membackend.Renew, Kind: membackend.HangRequest})
		ctx, cancel := context.WithTimeout(bg, time.Millisecond)
		defer cancel()
		e.is(lk.Renew(ctx), context.DeadlineExceeded)
		f.Resume()
		e.neverLost(lk, 2*ttl)

		e.unlock(lk)
		e.is(lk.Renew(bg), distlock.ErrNotHeld)
	})
}

func TestMaxHoldEndsAHolding(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a", distlock.WithMaxHold(5*ttl))
		kept := e.lock(l, "kept")
		start := time.Now()
		lk := e.lock(l, "n", distlock.WithMaxHold(2*ttl))
		if until := lk.ValidUntil(); until.After(start.Add(2 * ttl)) {
			e.Errorf("valid until %v", until.Sub(start))
		}
		e.is(lk.Renew(bg), nil) // prolongs nothing
		e.lost(lk, 2*ttl, distlock.MaxHold)
		e.took(start, 2*ttl, 2*ttl)
		synctest.Wait()
		if e.s.Inspect("n").Held {
			e.Error("not released")
		}
		e.held(kept)
		e.lost(kept, 3*ttl, distlock.MaxHold)
		e.took(start, 5*ttl, 5*ttl)
	})
}

func TestRenewEveryBoundsThePauseBetweenRenewals(t *testing.T) {
	each(t, func(e *env) {
		e.o.RenewWithin = ttl / 10
		lk := e.lock(e.locker("a"), "n")
		least := ttl
		for range 200 {
			time.Sleep(ttl / 100)
			least = min(least, time.Until(lk.ValidUntil()))
		}
		if least < ttl-margin-ttl/10 {
			e.Errorf("only %v left, although renewed every %v", least, ttl/10)
		}
	})
}

func TestTheZeroLockHoldsNothing(t *testing.T) {
	for _, lk := range []*distlock.Lock{nil, {}} {
		e := &env{T: t}
		e.is(lk.Err(), distlock.ErrNotHeld)
		e.is(lk.Unlock(bg), distlock.ErrNotHeld)
		e.is(lk.Renew(bg), distlock.ErrNotHeld)
		e.is(context.Cause(lk.Context()), distlock.ErrNotHeld)
		if lk.Name() != "" || lk.Token() != 0 || !lk.ValidUntil().IsZero() {
			t.Error("it has something")
		}
		select {
		case <-lk.Lost():
		default:
			t.Error("Lost is open, so that waiting for it would block")
		}
	}
}
