package distlock_test

import (
	"context"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// Rules of re-entry.

func TestContextThatHoldsTheLockIsADeadlock(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		n := e.s.Requests()
		ctx, cancel := context.WithCancel(lk.Context())
		defer cancel()
		for _, lock := range []func(context.Context, string, ...distlock.LockOption) (*distlock.Lock, error){l.Lock, l.TryLock} {
			start := time.Now()
			_, err := lock(ctx, "n")
			e.is(err, distlock.ErrDeadlock, distlock.ErrHeld)
			e.took(start, 0, 0)
		}
		if e.s.Requests() != n {
			e.Error("something was sent")
		}
		other, err := l.Lock(ctx, "other")
		e.is(err, nil)
		_, err = l.Lock(other.Context(), "n") // carried along
		e.is(err, distlock.ErrDeadlock)
		e.unlock(other)
		e.unlock(lk)
	})
}

func TestReentrantIsACountedHandleOnTheSameHolding(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		outer := e.lock(l, "n")
		n := e.s.Requests()
		inner, err := l.Lock(outer.Context(), "n", distlock.Reentrant())
		e.is(err, nil)
		third, err := l.TryLock(inner.Context(), "n", distlock.Reentrant())
		e.is(err, nil)
		if inner.Token() != outer.Token() || third.Token() != outer.Token() || !inner.ValidUntil().Equal(outer.ValidUntil()) {
			e.Error("another token or deadline")
		}
		e.unlock(inner)
		e.is(inner.Err(), distlock.ErrReleased)
		e.is(context.Cause(inner.Context()), distlock.ErrReleased)
		e.is(inner.Unlock(bg), distlock.ErrNotHeld)
		e.unlock(outer) // in any order
		e.held(third)
		if e.s.Requests() != n {
			e.Error("something was sent")
		}
		e.neverLost(third, 3*ttl)
		e.unlock(third)
		e.free()
	})
}

func TestLossIsToldToEveryHandle(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		outer := e.lock(l, "n")
		inner, err := l.Lock(outer.Context(), "n", distlock.Reentrant())
		e.is(err, nil)
		gone, err := l.Lock(outer.Context(), "n", distlock.Reentrant())
		e.is(err, nil)
		e.unlock(gone)
		e.s.Expire("n")
		e.lost(outer, ttl, distlock.Revoked)
		e.lost(inner, 0, distlock.Revoked)
		e.is(gone.Err(), distlock.ErrReleased)
		e.neverLost(gone, ttl)
		e.is(inner.Unlock(bg), distlock.ErrLost)
	})
}

func TestContextOfAnEndedHoldingHoldsNothing(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		ctx := context.WithoutCancel(lk.Context())
		e.unlock(lk)
		again, err := l.Lock(ctx, "n", distlock.Reentrant())
		e.is(err, nil)
		if again.Token() == 0 || e.s.Inspect("n").Number != again.Token().Number() {
			e.Error("a handle on a holding that has ended")
		}
		_, err = l.TryLock(ctx, "n")
		e.is(err, distlock.ErrHeld)
		e.isNot(err, distlock.ErrDeadlock)
		e.unlock(again)
	})
}

func TestReentryIsPerLockerAndName(t *testing.T) {
	each(t, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		_, err := rival.TryLock(lk.Context(), "n", distlock.Reentrant())
		e.is(err, distlock.ErrHeld)
		e.isNot(err, distlock.ErrDeadlock)
	})
}

func TestReentrantWithoutAHeldLockIsAnOrdinaryLock(t *testing.T) {
	bubble(t, membackend.Options{}, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n", distlock.Reentrant())
		_, err := l.TryLock(bg, "n", distlock.Reentrant()) // not by a context of lk
		e.is(err, distlock.ErrHeld)
		e.unlock(lk)
	})
}
