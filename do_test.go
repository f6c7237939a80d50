package distlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// Rules of Do.

func TestDoHoldsWhileFnRunsAndReleases(t *testing.T) {
	each(t, func(e *env) {
		type key struct{}
		l := e.locker("a")
		boom := errors.New("boom")
		err := distlock.Do(context.WithValue(bg, key{}, 1), l, "n", func(ctx context.Context, lk *distlock.Lock) error {
			e.held(lk)
			if ctx.Value(key{}) != 1 || ctx.Err() != nil {
				e.Error("not the caller's context")
			}
			_, err := l.TryLock(ctx, "n")
			e.is(err, distlock.ErrDeadlock)
			return boom
		})
		e.is(err, boom)
		e.isNot(err, distlock.ErrLost)
		e.free()
		e.is(distlock.Do(bg, l, "n", func(context.Context, *distlock.Lock) error { return nil }), nil)
	})
}

func TestDoCancelsFnOnLossAndWaitsForIt(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		returned := false
		err := distlock.Do(bg, l, "n", func(ctx context.Context, lk *distlock.Lock) error {
			e.s.Expire("n")
			<-ctx.Done()
			e.is(context.Cause(ctx), distlock.ErrLost)
			time.Sleep(time.Second)
			returned = true
			return nil
		})
		e.is(err, distlock.ErrLost) // even if fn returned nil
		if !returned {
			e.Error("Do did not wait for fn")
		}
	})
}

func TestDoEndsFnsContextWithTheCallersAndReleases(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		cause := errors.New("cause")
		ctx, cancel := context.WithCancelCause(bg)
		err := distlock.Do(ctx, l, "n", func(ctx context.Context, lk *distlock.Lock) error {
			cancel(cause)
			<-ctx.Done()
			e.is(context.Cause(ctx), cause)
			e.held(lk)
			return ctx.Err()
		})
		e.is(err, context.Canceled)
		e.free()
	})
}

func TestDoReleasesWhenFnPanics(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		defer func() {
			if r := recover(); r != "boom" {
				e.Errorf("recovered %v", r)
			}
			e.free()
		}()
		_ = distlock.Do(bg, l, "n", func(context.Context, *distlock.Lock) error { panic("boom") })
	})
}

func TestDoReportsAFailedReleaseBesideFnsError(t *testing.T) {
	each(t, func(e *env) {
		boom := errors.New("boom")
		e.inject(membackend.Fault{Op: membackend.Release, Kind: membackend.FailBefore})
		err := distlock.Do(bg, e.locker("a"), "n", func(context.Context, *distlock.Lock) error { return boom })
		e.is(err, boom, membackend.ErrInjected)
	})
}

func TestDoDoesNotRunFnWithoutTheLock(t *testing.T) {
	each(t, func(e *env) {
		e.lock(e.locker("holder"), "n")
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		err := distlock.Do(ctx, e.locker("a"), "n", func(context.Context, *distlock.Lock) error {
			e.Error("fn ran")
			return nil
		})
		e.is(err, distlock.ErrHeld, context.DeadlineExceeded)
	})
}
