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

// The cause of a caller's context can be an error of this package: another lock's
// loss when locks are nested, a sibling's ErrHeld in an errgroup.
func foreignCauses() map[string]error {
	return map[string]error{
		"lost":     &distlock.LostError{Name: "another", Reason: distlock.Expired},
		"held":     distlock.ErrHeld,
		"not held": distlock.ErrNotHeld,
		"closed":   distlock.ErrClosed,
		"released": distlock.ErrReleased,
	}
}

func eachCause(t *testing.T, f func(e *env, cause error)) {
	t.Helper()
	for name, cause := range foreignCauses() {
		t.Run(name, func(t *testing.T) { each(t, func(e *env) { f(e, cause) }) })
	}
}

// wantContextError checks that err speaks of the context and not of its cause.
func (e *env) wantContextError(err, cause error, unless ...error) {
	e.Helper()
	e.is(err, context.Canceled)
	for _, ours := range []error{distlock.ErrHeld, distlock.ErrNotHeld, distlock.ErrLost, distlock.ErrClosed, distlock.ErrReleased} {
		if errors.Is(cause, ours) && (len(unless) == 0 || !errors.Is(ours, unless[0])) {
			e.isNot(err, ours)
		}
	}
}

func TestCauseOfAWaitIsNotTheServersWord(t *testing.T) {
	eachCause(t, func(e *env, cause error) {
		a, b := e.locker("a"), e.locker("b")
		lk := e.lock(a, "n")
		ctx, cancel := context.WithCancelCause(bg)
		waits := e.waitsFor(ctx, b, "n")
		cancel(cause)
		r := <-waits
		e.wantContextError(r.err, cause, distlock.ErrHeld)
		synctest.Wait()
		e.unlock(lk)
		e.unlock(e.lock(a, "n")) // nothing of b's stands before it
		e.unlock(e.lock(e.locker("c"), "n"))
	})
}

func TestCauseOfARequestInFlightIsNotTheServersWord(t *testing.T) {
	eachCause(t, func(e *env, cause error) {
		for _, op := range []membackend.Op{membackend.Acquire, membackend.Enqueue} {
			for _, kind := range []membackend.Kind{membackend.SlowReply, membackend.LoseReply} {
				b := e.locker("b")
				f := e.inject(membackend.Fault{Op: op, Locker: "b", Times: 1, Kind: kind, Delay: ttl / 5})
				ctx, cancel := context.WithCancelCause(bg)
				time.AfterFunc(ttl/10, func() { cancel(cause) })
				lk, err := b.Lock(ctx, "n")
				if lk != nil {
					e.unlock(lk)
				} else {
					e.wantContextError(err, cause)
				}
				cancel(nil)
				f.Remove()
				c := e.locker("c")
				e.unlock(e.lock(c, "n"))
				e.is(b.Close(), nil)
				e.is(c.Close(), nil)
			}
		}
		if left := e.s.Leftovers(); len(left) > 0 {
			e.Errorf("left behind: %v", left)
		}
	})
}

func TestCauseOfAnotherIsNoErrorOfThisLock(t *testing.T) {
	eachCause(t, func(e *env, cause error) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		ctx, cancel := context.WithCancelCause(bg)
		renew := e.inject(membackend.Fault{Op: membackend.Renew, Locker: "a", Times: -1, Kind: membackend.HangRequest})
		time.AfterFunc(time.Millisecond, func() { cancel(cause) })
		e.wantContextError(lk.Renew(ctx), cause)
		e.held(lk)
		renew.Remove()
		renew.Resume()

		release := e.inject(membackend.Fault{Op: membackend.Release, Locker: "a", Times: 1, Kind: membackend.HangRequest})
		ctx, cancel = context.WithCancelCause(bg)
		time.AfterFunc(time.Millisecond, func() { cancel(cause) })
		e.wantContextError(lk.Unlock(ctx), cause)
		release.Resume()
		synctest.Wait()
		e.is(lk.Unlock(bg), nil) // the release that was open is confirmed
		e.is(lk.Unlock(bg), distlock.ErrNotHeld)
	})
}
