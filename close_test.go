package distlock_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// Rules of Close.

func TestCloseLosesAndReleasesWhatIsHeld(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		lk, other := e.lock(l, "n"), e.lock(l, "other")
		e.is(l.Close(), nil)
		e.lost(lk, 0, distlock.Closed)
		e.lost(other, 0, distlock.Closed)
		if left := e.s.Leftovers(); len(left) > 0 {
			e.Errorf("left at the Store: %q", left)
		}
		e.is(lk.Unlock(bg), distlock.ErrLost)
		e.is(lk.Renew(bg), distlock.ErrLost)
	})
}

func TestCloseEndsWaitsWithErrClosed(t *testing.T) {
	each(t, func(e *env) {
		holder := e.lock(e.locker("holder"), "n")
		l := e.locker("a")
		atServer := e.waitsFor(bg, l, "n")
		inMemory := e.waitsFor(bg, l, "n")
		start := time.Now()
		e.is(l.Close(), nil)
		for _, waits := range []<-chan result{atServer, inMemory} {
			err := (<-waits).err
			e.is(err, distlock.ErrClosed)
			e.isNot(err, context.Canceled)
		}
		e.took(start, 0, soon)
		if w := e.s.Inspect("n").Waiters; len(w) != 0 {
			e.Error("a place in the queue is left")
		}
		e.held(holder)
	})
}

func TestClosedLockerRefusesAndSendsNothing(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		e.unlock(e.lock(l, "n"))
		e.is(l.Close(), nil)
		n := e.s.Requests()
		_, err := l.Lock(bg, "n")
		e.is(err, distlock.ErrClosed)
		_, err = l.TryLock(bg, "n")
		e.is(err, distlock.ErrClosed)
		e.is(l.Close(), nil)
		time.Sleep(3 * ttl)
		if e.s.Requests() != n {
			e.Error("something was sent")
		}
	})
}

func TestCloseWaitsForAcquiresInFlight(t *testing.T) {
	for _, kind := range []membackend.Kind{membackend.SlowReply, membackend.HangReply} {
		each(t, func(e *env) {
			l := e.locker("a")
			f := e.inject(membackend.Fault{Op: membackend.Acquire, Kind: kind, Delay: ttl / 10})
			errs := make(chan error, 1)
			go func() { _, err := l.TryLock(bg, "n"); errs <- err }()
			<-f.Reached()
			synctest.Wait()
			e.is(l.Close(), nil)
			e.is(<-errs, distlock.ErrClosed)
			if left := e.s.Leftovers(); len(left) > 0 {
				e.Errorf("left at the Store: %q", left)
			}
		})
	}
}

func TestCloseIsBoundedByTheReleaseTimeout(t *testing.T) {
	for _, kind := range []membackend.Kind{membackend.HangRequest, membackend.FailBefore} {
		each(t, func(e *env) {
			l := e.locker("a", distlock.WithReleaseTimeout(time.Second))
			lk := e.lock(l, "n")
			e.inject(membackend.Fault{Op: membackend.Release, Times: -1, Kind: kind})
			e.inject(membackend.Fault{Op: membackend.Retire, Times: -1, Kind: kind})
			start := time.Now()
			if err := l.Close(); err == nil {
				e.Error("nothing said that the release is unconfirmed")
			}
			e.took(start, 0, time.Second+soon)
			e.is(lk.Err(), distlock.ErrLost)
			n := e.s.Requests()
			time.Sleep(ttl + soon) // what is unconfirmed is left to the TTL
			if left := e.s.Leftovers(); len(left) > 0 {
				e.Errorf("left at the Store: %q", left)
			}
			if e.s.Requests() != n {
				e.Error("something runs after Close")
			}
		})
	}
}

func TestCloseWithTheLongestReleaseTimeoutWaits(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a", distlock.WithReleaseTimeout(math.MaxInt64))
		e.lock(l, "n")
		e.inject(membackend.Fault{Op: membackend.Release, Times: 1, Kind: membackend.SlowRequest, Delay: ttl / 2})
		e.is(l.Close(), nil)
		if left := e.s.Leftovers(); len(left) > 0 {
			e.Errorf("left at the Store: %q", left)
		}
	})
}

func TestCloseNamesWhatIsUnconfirmed(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a", distlock.WithReleaseTimeout(time.Second))
		for i := range 100 {
			e.lock(l, fmt.Sprint("lock-", i))
		}
		e.inject(membackend.Fault{Op: membackend.Release, Times: -1, Kind: membackend.FailBefore})
		err := l.Close()
		if err == nil || len(err.Error()) > 1000 || !strings.Contains(err.Error(), "100 locks") || !strings.Contains(err.Error(), `"lock-0"`) {
			e.Errorf("Close: %v", err)
		}
	})
}

func TestCloseOfAnUnreachableLockerStopsKeepingIt(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		e.lock(l, "n")
		heal := e.s.Partition("a")
		_ = l.Close()
		heal()
		n := e.s.Requests()
		time.Sleep(ttl)
		if left := e.s.Leftovers(); len(left) > 0 || e.s.Requests() != n {
			e.Errorf("left at the Store: %q", left)
		}
	})
}

func TestCloseOfAnUnusedLockerSendsNothing(t *testing.T) {
	each(t, func(e *env) {
		e.is(e.locker("a").Close(), nil)
		if n := e.s.Requests(); n != 0 {
			e.Errorf("%d requests", n)
		}
	})
}

func TestCloseByManyAtOnce(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		done := make(chan error, 10)
		for range 9 {
			go func() { done <- l.Close() }()
		}
		go func() { _ = lk.Unlock(bg); done <- nil }()
		for range 10 {
			e.is(<-done, nil)
		}
		e.free()
	})
}
