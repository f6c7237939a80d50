package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/membackend"
)

// Rules of sessions that carry many locks.

// notRenewedYet is a moment at which a session has less than a quarter of its
// TTL left: its renewals hang.
func notRenewedYet(e *env, l *distlock.Client) (renewals *membackend.Injected) {
	e.lock(l, "first")
	f := e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.FailBefore})
	time.Sleep(ttl * 4 / 5)
	return f
}

func TestSessionNearItsDeadlineIsRenewedBeforeAGrantIsReturned(t *testing.T) {
	where(t, shared, func(e *env) {
		e.o.RenewWithin = 0
		l := e.locker("a")
		f := notRenewedYet(e, l)
		f.Remove()
		start := time.Now()
		n := e.s.Requests(membackend.Renew)
		lk, err := l.TryLock(bg, "n")
		e.is(err, nil)
		if e.s.Requests(membackend.Renew) == n {
			e.Error("no renewal was sent")
		}
		if left := lk.ValidUntil().Sub(start); left < ttl*3/4 {
			e.Errorf("only %v left", left)
		}
	})
}

func TestSessionWithEnoughLeftIsNotRenewedForAGrant(t *testing.T) {
	where(t, shared, func(e *env) {
		e.o.RenewWithin = 0
		l := e.locker("a")
		e.lock(l, "first")
		time.Sleep(ttl / 4)
		n := e.s.Requests(membackend.Renew)
		e.lock(l, "n")
		if e.s.Requests(membackend.Renew) != n {
			e.Error("a renewal was sent")
		}
	})
}

func TestSessionsDeadlineNeverMovesBack(t *testing.T) {
	where(t, shared, func(e *env) {
		e.o.RenewWithin = 0
		l := e.locker("a", distlock.WithRenewEvery(ttl/3))
		first := e.lock(l, "first")
		// A grant that knows only of the session's start arrives after a renewal.
		e.inject(membackend.Fault{Op: membackend.Acquire, Kind: membackend.SlowReply, Delay: ttl / 4})
		time.Sleep(ttl / 4)
		lk, err := l.TryLock(bg, "n")
		e.is(err, nil)
		for _, lk := range []*distlock.Lock{first, lk} {
			if left := time.Until(lk.ValidUntil()); left < ttl-ttl/4-margin {
				e.Errorf("%v left, although it was renewed less than %v ago", left, ttl/4)
			}
		}
	})
}

func TestGrantOnASessionThatCannotBeRenewedIsHeldBack(t *testing.T) {
	where(t, shared, func(e *env) {
		e.o.RenewWithin = 0
		l := e.locker("a")
		f := notRenewedYet(e, l)
		time.AfterFunc(ttl/20, f.Remove)
		start := time.Now()
		lk := e.lock(l, "n")
		if left := time.Until(lk.ValidUntil()); left < ttl/4 {
			e.Errorf("%v left", left)
		}
		e.took(start, ttl/20, ttl/2)
	})
}

func TestGrantOnARetiredSessionIsUndoneAndTheWaitGoesOn(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a", distlock.WithTryTimeout(10*ttl))
		first := e.lock(l, "first")
		f := e.inject(membackend.Fault{Op: membackend.Acquire, Kind: membackend.SlowReply, Delay: 2 * ttl})
		q := e.inject(membackend.Fault{Op: membackend.Wait, Kind: membackend.SlowReply, Delay: 2 * ttl})
		keep := e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.FailBefore})
		waits := e.waitsFor(bg, l, "n")
		e.lost(first, ttl, distlock.Expired)
		keep.Remove()
		r := <-waits
		e.is(r.err, nil)
		if f.Hits()+q.Hits() != 1 {
			e.Error("nothing was late")
		}
		e.neverLost(r.lk, 3*ttl)
		e.unlock(r.lk)
		e.free()
	})
}

func TestLocksOfOneSessionAreLostTogetherThenItIsRetired(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		var locks []*distlock.Lock
		start := time.Now()
		for i := range 5 {
			locks = append(locks, e.lock(l, fmt.Sprint(i)))
			time.Sleep(ttl / 100)
		}
		e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.LoseReply})
		retire := e.inject(membackend.Fault{Op: membackend.Retire, Times: -1, Kind: membackend.HangRequest})
		for _, lk := range locks {
			e.lost(lk, ttl, distlock.Expired)
		}
		e.took(start, ttl-margin, ttl-margin)
		synctest.Wait()
		select {
		case <-retire.Reached():
		default:
			e.Fatal("not retired at its deadline")
		}
		n := e.s.Requests(membackend.Renew)
		time.Sleep(3 * ttl)
		if e.s.Requests(membackend.Renew) != n {
			e.Error("renewed after it was retired")
		}
	})
}

func TestUnreachableRetiredSessionIsNotKept(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		heal := e.s.Partition("a")
		e.lost(lk, ttl, distlock.Expired)
		n := e.s.Requests(membackend.Renew)
		heal()
		time.Sleep(2 * ttl)
		if e.s.Requests(membackend.Renew) != n {
			e.Error("renewed after it was retired")
		}
		if left := e.s.Leftovers(); len(left) > 0 {
			e.Errorf("left at the Store: %q", left)
		}
		e.neverLost(e.lock(l, "n"), 2*ttl) // on a new session
	})
}

func TestIdleSessionIsKeptForATTLThenRetired(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		e.unlock(e.lock(l, "n"))
		time.Sleep(ttl - soon)
		if n := e.s.Requests(membackend.Retire); n != 0 || len(e.s.Leftovers()) != 1 {
			e.Fatalf("%d times retired, %q left", n, e.s.Leftovers())
		}
		e.unlock(e.lock(l, "n")) // idle anew from here
		time.Sleep(ttl - soon)
		if n := e.s.Requests(membackend.Retire); n != 0 {
			e.Error("retired too early")
		}
		time.Sleep(2 * soon)
		if n := e.s.Requests(membackend.Retire); n != 1 || len(e.s.Leftovers()) != 0 {
			e.Errorf("%d times retired, %q left", n, e.s.Leftovers())
		}
		e.unlock(e.lock(l, "n"))
	})
}

func TestSessionOnWhichNothingWasGrantedIsKeptThenRetired(t *testing.T) {
	where(t, shared, func(e *env) {
		lk := e.lock(e.locker("holder"), "n")
		l := e.locker("a")
		_, err := l.TryLock(bg, "n")
		e.is(err, distlock.ErrHeld)
		sessions := len(e.s.Leftovers())
		time.Sleep(ttl + soon)
		if n := e.s.Requests(membackend.Retire); n != 1 || len(e.s.Leftovers()) != sessions-1 {
			e.Errorf("%d times retired, %q left", n, e.s.Leftovers())
		}
		e.held(lk)
	})
}

func TestWaitersKeepTheirSession(t *testing.T) {
	where(t, shared, func(e *env) {
		lk := e.lock(e.locker("holder"), "n")
		waits := e.waitsFor(bg, e.locker("a"), "n")
		time.Sleep(5 * ttl)
		if n := e.s.Requests(membackend.Retire); n != 0 {
			e.Errorf("%d times retired", n)
		}
		e.unlock(lk)
		r := <-waits
		e.is(r.err, nil)
		e.held(r.lk)
	})
}

func TestLostKeyLeavesTheSessionsOtherLocks(t *testing.T) {
	where(t, shared, func(e *env) {
		e.o.Quiet = true
		l := e.locker("a")
		lk, other := e.lock(l, "n"), e.lock(l, "other")
		e.s.Expire("n")
		e.lost(lk, ttl/3+soon, distlock.Revoked)
		e.neverLost(other, 2*ttl)
	})
}

func TestLostSessionIsReplaced(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		lk, other := e.lock(l, "n"), e.lock(l, "other")
		e.s.ExpireAll("a")
		e.lost(lk, ttl/3+soon, distlock.Revoked)
		e.lost(other, 0, distlock.Revoked)
		again := e.lock(l, "n")
		e.neverLost(again, 3*ttl)
		e.unlock(again)
		e.free()
	})
}

func TestWaiterWhoseSessionIsLostGoesOnWaiting(t *testing.T) {
	where(t, shared, func(e *env) {
		lk := e.lock(e.locker("holder"), "n")
		waits := e.waitsFor(bg, e.locker("a"), "n")
		for range 3 {
			e.s.ExpireAll("a")
			time.Sleep(ttl)
		}
		if len(waits) > 0 {
			e.Fatalf("ended: %v", (<-waits).err)
		}
		e.unlock(lk)
		r := <-waits
		e.is(r.err, nil)
		e.neverLost(r.lk, 2*ttl)
	})
}

func TestOneSessionForEachTTL(t *testing.T) {
	bubble(t, membackend.Options{SharedFate: true}, func(e *env) {
		l := e.locker("a")
		start := time.Now()
		short, long := e.lock(l, "short"), e.lock(l, "long", distlock.WithTTL(10*ttl))
		if until := long.ValidUntil().Sub(start); until < 9*ttl {
			e.Errorf("valid for %v", until)
		}
		heal := e.s.Partition("a")
		e.lost(short, ttl, distlock.Expired)
		e.held(long)
		e.lost(long, 10*ttl, distlock.Expired)
		heal()
	})
}

func TestOneTTLPerLockerWhereASessionHasOnlyOne(t *testing.T) {
	bubble(t, membackend.Options{SharedFate: true, SingleTTL: true}, func(e *env) {
		l := e.locker("a")
		_, err := l.Lock(bg, "n", distlock.WithTTL(2*ttl))
		e.is(err, distlock.ErrUnsupported)
		if n := e.s.Requests(); n != 0 {
			e.Errorf("%d requests", n)
		}
		e.unlock(e.lock(l, "n", distlock.WithTTL(ttl)))
		e.lock(l, "n", distlock.WithFixedLease(2*ttl)) // counted by the core
	})
}

func TestSessionIsRenewedByOneRequestAtATime(t *testing.T) {
	where(t, shared, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		f := e.inject(membackend.Fault{Op: membackend.Renew, Kind: membackend.SlowReply, Delay: ttl / 8})
		n := e.s.Requests(membackend.Renew)
		ctx, cancel := context.WithTimeout(bg, ttl)
		defer cancel()
		for range 5 {
			go func() { _ = lk.Renew(ctx) }()
		}
		synctest.Wait()
		if got := e.s.Requests(membackend.Renew) - n; got != 1 || f.Hits() != 1 {
			e.Errorf("%d renewals at once", got)
		}
		time.Sleep(ttl / 6)
		if got := e.s.Requests(membackend.Renew) - n; got > 3 {
			e.Errorf("%d renewals for five that asked together", got)
		}
		e.held(lk)
	})
}

func TestTryLockOutlivesASessionThatIsRetiredUnderIt(t *testing.T) {
	for _, kind := range []membackend.Kind{membackend.SlowRequest, membackend.SlowReply} {
		where(t, shared, func(e *env) {
			l := e.locker("a")
			e.unlock(e.lock(l, "n"))
			time.Sleep(ttl - 10*time.Millisecond) // almost idle for a TTL
			e.inject(membackend.Fault{Op: membackend.Acquire, Times: 1, Kind: kind, Delay: 50 * time.Millisecond})
			retired := e.s.Requests(membackend.Retire)
			lk, err := l.TryLock(bg, "n")
			if err != nil {
				e.Fatal(err)
			}
			if e.s.Requests(membackend.Retire) == retired {
				e.Fatal("the session was not retired meanwhile")
			}
			e.held(lk)
			time.Sleep(2 * ttl)
			e.held(lk)
			e.unlock(lk)
		})
	}
}

// stingy is a driver that is granted less than it asks for, as on ZooKeeper.
type stingy struct {
	driver.Driver
	ttl time.Duration
}

func (d *stingy) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	g, err := d.Driver.Acquire(ctx, req)
	g.TTL = d.ttl
	return g, err
}

func TestGrantNoLongerThanTheMarginIsAnErrorAtOnce(t *testing.T) {
	each(t, func(e *env) {
		o := e.o
		inner, err := membackend.NewDriver(e.s, &o)
		e.is(err, nil)
		l, err := distlock.New(&stingy{inner, ttl / 3}, distlock.WithTTL(ttl), distlock.WithSafetyMargin(ttl/2))
		e.is(err, nil)
		defer l.Close()
		start := time.Now()
		_, err = l.Lock(bg, "n")
		e.took(start, 0, soon)
		if _, ok := errors.AsType[*driver.PermanentError](err); !ok || !strings.Contains(err.Error(), "margin") {
			e.Errorf("Lock: %v", err)
		}
		synctest.Wait()
		if e.s.Inspect("n").Held {
			e.Error("the grant was not given back")
		}
	})
}

// lateError is a driver whose next try fails after a while: what a driver does
// whose session was retired while its request was on the way.
type lateError struct {
	driver.Driver
	armed atomic.Bool
}

func (d *lateError) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if d.armed.CompareAndSwap(true, false) {
		time.Sleep(50 * time.Millisecond)
		return driver.Grant{}, errors.New("the session was retired")
	}
	return d.Driver.Acquire(ctx, req)
}

func TestTryLockTriesAgainAfterASessionWasRetiredUnderIt(t *testing.T) {
	where(t, shared, func(e *env) {
		o := e.o
		inner, err := membackend.NewDriver(e.s, &o)
		e.is(err, nil)
		d := &lateError{Driver: inner}
		l, err := distlock.New(d, distlock.WithTTL(ttl))
		e.is(err, nil)
		defer l.Close()
		e.unlock(e.lock(l, "n"))
		time.Sleep(ttl - 10*time.Millisecond)
		d.armed.Store(true)
		lk, err := l.TryLock(bg, "n") // its session ends meanwhile
		if err != nil {
			e.Fatal(err)
		}
		e.unlock(lk)

		d.armed.Store(true)
		if _, err := l.TryLock(bg, "n"); err == nil { // but an error is an error otherwise
			e.Error("one attempt became two")
		}
	})
}
