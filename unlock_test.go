package distlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// Rules of Unlock.

func TestUnlockEndsTheHoldingAndIsNoLoss(t *testing.T) {
	each(t, func(e *env) {
		seen := &events{}
		l := e.locker("a", distlock.WithObserver(seen))
		lk := e.lock(l, "n")
		e.unlock(lk)
		e.is(lk.Err(), distlock.ErrReleased)
		e.isNot(lk.Err(), distlock.ErrLost)
		e.is(context.Cause(lk.Context()), distlock.ErrReleased)
		if lk.Token() != 0 || !lk.ValidUntil().IsZero() {
			e.Error("token or deadline outlive the holding")
		}
		e.free()
		e.neverLost(lk, 3*ttl)
		if n := len(seen.of(distlock.EventLost)); n != 0 {
			e.Errorf("%d losses told", n)
		}
	})
}

func TestUnlockAgainSendsNothingAndIsErrNotHeld(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		e.unlock(lk)
		n := e.s.Requests()
		for range 2 {
			err := lk.Unlock(bg)
			e.is(err, distlock.ErrNotHeld)
			e.isNot(err, distlock.ErrLost, distlock.ErrHeld)
		}
		if got := e.s.Requests(); got != n {
			e.Errorf("%d requests", got-n)
		}
	})
}

func TestUnlockAfterALossIsErrLostAndFreesNobody(t *testing.T) {
	each(t, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		e.s.Expire("n")
		theirs := e.lock(rival, "n")
		e.lost(lk, ttl, distlock.Revoked)
		for range 2 {
			e.is(lk.Unlock(bg), distlock.ErrLost)
		}
		e.neverLost(theirs, 2*ttl)
	})
}

func TestUnlockOfWhatIsGoneUnnoticedIsErrNotHeld(t *testing.T) {
	where(t, func(o membackend.Options) bool { return o.Quiet }, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		e.s.Expire("n")
		e.is(lk.Unlock(bg), distlock.ErrNotHeld)
		e.neverLost(lk, ttl)
	})
}

func TestUnlockMakesItsAttemptOnADetachedContext(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		ctx, cancel := context.WithCancel(bg)
		cancel()
		e.is(lk.Unlock(ctx), nil)
		e.free()
	})
}

func TestUnlockIsBoundedByTheReleaseTimeout(t *testing.T) {
	each(t, func(e *env) {
		for _, kind := range []membackend.Kind{membackend.HangRequest, membackend.SlowRequest} {
			l := e.locker("a", distlock.WithReleaseTimeout(time.Second))
			lk := e.lock(l, "n")
			f := e.inject(membackend.Fault{Op: membackend.Release, Kind: kind, Delay: time.Minute})
			start := time.Now()
			err := lk.Unlock(bg)
			e.is(err, context.DeadlineExceeded)
			e.isNot(err, distlock.ErrNotHeld, distlock.ErrLost)
			e.took(start, time.Second, time.Second+soon)
			e.is(lk.Err(), distlock.ErrReleased)
			f.Resume()
			time.Sleep(10 * time.Second) // it goes on in the background
			e.free()
			e.is(lk.Unlock(bg), nil)
		}
	})
}

func TestUnlockReturnsWhenItsContextEndsButGoesOn(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		e.inject(membackend.Fault{Op: membackend.Release, Kind: membackend.SlowRequest, Delay: time.Second})
		ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		e.is(lk.Unlock(ctx), context.DeadlineExceeded)
		e.took(start, 100*time.Millisecond, 100*time.Millisecond)
		time.Sleep(time.Second)
		e.free()
		e.is(lk.Unlock(bg), nil)
		e.is(lk.Unlock(bg), distlock.ErrNotHeld)
	})
}

func TestUnlockAfterATransportErrorReportsTheSameRelease(t *testing.T) {
	for _, kind := range []membackend.Kind{membackend.FailBefore, membackend.LoseReply} {
		each(t, func(e *env) {
			lk := e.lock(e.locker("a"), "n")
			f := e.inject(membackend.Fault{Op: membackend.Release, Times: -1, Kind: kind})
			e.is(lk.Unlock(bg), membackend.ErrInjected)
			for range 3 { // the error while it is open
				err := lk.Unlock(bg)
				e.is(err, membackend.ErrInjected)
				e.isNot(err, distlock.ErrNotHeld, distlock.ErrLost)
			}
			f.Remove()
			time.Sleep(ttl / 2) // shorter than the TTL: it is tried again
			e.free()
			e.is(lk.Unlock(bg), nil) // nil, once, when it is confirmed
			e.is(lk.Unlock(bg), distlock.ErrNotHeld)
			e.neverLost(lk, ttl)
		})
	}
}

func TestUnlockIsConfirmedByThePassingOfTheTTL(t *testing.T) {
	where(t, ownTTL, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		e.inject(membackend.Fault{Op: membackend.Release, Times: -1, Kind: membackend.FailBefore})
		e.is(lk.Unlock(bg), membackend.ErrInjected)
		time.Sleep(ttl + 10*time.Millisecond)
		e.free()
		e.is(lk.Unlock(bg), nil)
		e.is(lk.Unlock(bg), distlock.ErrNotHeld)
	})
}

func TestUnlockIsNotConfirmedByTheTTLWhileItsSessionLives(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		other := e.lock(l, "other")
		lk := e.lock(l, "n")
		f := e.inject(membackend.Fault{Op: membackend.Release, Times: -1, Kind: membackend.FailBefore})
		e.is(lk.Unlock(bg), membackend.ErrInjected)
		time.Sleep(5 * ttl)
		if !e.s.Inspect("n").Held {
			e.Fatal("the session is meant to keep it")
		}
		e.is(lk.Unlock(bg), membackend.ErrInjected)
		f.Remove()
		time.Sleep(6 * time.Second) // the longest pause between tries is 5 s
		if e.s.Inspect("n").Held {
			e.Error("the release was given up")
		}
		e.is(lk.Unlock(bg), nil)
		e.held(other)
	})
}

func TestUnlockIsConfirmedByTheEndOfItsSession(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		heal := e.s.Partition("a")
		defer heal()
		err := lk.Unlock(bg)
		e.is(err, context.DeadlineExceeded)
		e.isNot(err, distlock.ErrNotHeld)
		time.Sleep(3 * ttl)
		e.free()
		e.is(lk.Unlock(bg), nil)
	})
}

func TestUnlockWaitsForNoRenewalInFlight(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		f := e.inject(membackend.Fault{Op: membackend.Renew, Kind: membackend.HangRequest})
		<-f.Reached()
		start := time.Now()
		e.unlock(lk)
		e.took(start, 0, 0)
		f.Resume() // a renewal that finds nothing is no loss
		e.neverLost(lk, 2*ttl)
		e.is(lk.Err(), distlock.ErrReleased)
	})
}

func TestUnlockRemovesOnlyItsOwnHolding(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		first := e.lock(l, "n")
		other := e.lock(l, "other")
		e.unlock(first)
		second := e.lock(l, "n")
		e.is(first.Unlock(bg), distlock.ErrNotHeld)
		e.held(second)
		e.held(other)
	})
}

func TestUnlockOfManyAtOnceReleasesOnce(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		errs := make(chan error, 10)
		for range 10 {
			go func() { errs <- lk.Unlock(bg) }()
		}
		ok := 0
		for range 10 {
			if err := <-errs; err == nil {
				ok++
			} else if errors.Is(err, distlock.ErrLost) {
				e.Error(err)
			}
		}
		if n := e.s.Requests(membackend.Release); n != 1 || ok != 1 {
			e.Errorf("%d requests, %d times nil", n, ok)
		}
	})
}

func TestNextLocalContenderGetsInWhileAReleaseIsOpen(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		waits := e.waitsFor(bg, l, "n")
		e.inject(membackend.Fault{Op: membackend.Release, Times: 2, Kind: membackend.FailBefore})
		e.is(lk.Unlock(bg), membackend.ErrInjected)
		start := time.Now()
		r := <-waits
		e.is(r.err, nil)
		e.took(start, 0, ttl)
		synctest.Wait()
		e.neverLost(r.lk, 2*ttl)
	})
}
