package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/membackend"
)

// Rules of waiting: what Lock and TryLock do until they hold.

func TestLockWaitsForARelease(t *testing.T) {
	each(t, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		token := lk.Token()
		waits := e.waitsFor(bg, rival, "n")
		time.Sleep(2 * ttl)
		if len(waits) > 0 {
			e.Fatal("two holders")
		}
		e.unlock(lk)
		start := time.Now()
		r := <-waits
		e.is(r.err, nil)
		e.took(start, 0, 300*time.Millisecond) // at most a poll
		if r.lk.Token() <= token {
			e.Errorf("token %v after %v", r.lk.Token(), token)
		}
	})
}

func TestTimedOutWaitMatchesErrHeldAndTheContextsError(t *testing.T) {
	each(t, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		for _, waiter := range []*distlock.Client{l, rival} {
			start := time.Now()
			ctx, cancel := context.WithTimeout(bg, 2*ttl)
			_, err := waiter.Lock(ctx, "n")
			cancel()
			e.took(start, 2*ttl, 2*ttl+soon)
			e.is(err, distlock.ErrHeld, context.DeadlineExceeded)
			var de *distlock.Error
			if !errors.As(err, &de) || de.Op != "lock" || de.Backend != "memory" || de.Name != "n" || !de.Timeout() {
				e.Errorf("%#v", err)
			}
		}
		cause := errors.New("cause")
		ctx, cancel := context.WithCancelCause(bg)
		waits := e.waitsFor(ctx, rival, "n")
		cancel(cause)
		e.is((<-waits).err, distlock.ErrHeld, context.Canceled, cause)
		e.held(lk)
	})
}

func TestWaitThatLosesItsServerStillKnowsOfTheHolder(t *testing.T) {
	where(t, func(o membackend.Options) bool { return o.Polling }, func(e *env) {
		rival := e.locker("b")
		e.lock(e.locker("a"), "n")
		ctx, cancel := context.WithTimeout(bg, 4*ttl)
		defer cancel()
		waits := e.waitsFor(ctx, rival, "n")
		e.inject(membackend.Fault{Op: membackend.Acquire, Locker: "b", Times: -1, Kind: membackend.FailBefore, Err: errOfTransport})
		e.is((<-waits).err, context.DeadlineExceeded, distlock.ErrHeld, errOfTransport)
	})
}

func TestDeadlineOfACallIsNoCancellation(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		defer e.s.Partition("a")()
		for _, lock := range []func(context.Context, string, ...distlock.LockOption) (*distlock.Lock, error){l.Lock, l.TryLock} {
			ctx, cancel := context.WithTimeout(bg, ttl/10)
			_, err := lock(ctx, "n")
			cancel()
			e.is(err, context.DeadlineExceeded)
			e.isNot(err, context.Canceled)
		}
	})
}

var errOfTransport = errors.New("broken pipe")

func TestCancelledWaitLeavesNothing(t *testing.T) {
	each(t, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		for i := range 20 {
			ctx, cancel := context.WithCancel(bg)
			waits := e.waitsFor(ctx, rival, "n")
			time.Sleep(time.Duration(i) * 7 * time.Millisecond)
			cancel()
			e.is((<-waits).err, context.Canceled)
		}
		time.Sleep(soon)
		if w := e.s.Inspect("n").Waiters; len(w) > 0 {
			e.Errorf("%d places in the queue", len(w))
		}
		e.unlock(lk)
		synctest.Wait()
		e.free()
	})
}

func TestGrantThatRacesTheEndOfContextIsReleased(t *testing.T) {
	each(t, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		for _, hold := range []time.Duration{0, time.Nanosecond, time.Millisecond} {
			lk := e.lock(l, "n")
			ctx, cancel := context.WithTimeout(bg, time.Second)
			waits := e.waitsFor(ctx, rival, "n")
			time.Sleep(time.Second - hold)
			e.unlock(lk)
			if r := <-waits; r.err == nil {
				e.unlock(r.lk)
			}
			cancel()
			time.Sleep(time.Second)
			e.free()
		}
	})
}

func TestEndedContextIsNotEvenAsked(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		ctx, cancel := context.WithCancel(bg)
		cancel()
		_, err := l.Lock(ctx, "n")
		e.is(err, context.Canceled)
		_, err = l.TryLock(ctx, "n")
		e.is(err, context.Canceled)
		if n := e.s.Requests(); n != 0 {
			e.Errorf("%d requests", n)
		}
	})
}

func TestTryLockIsOneFullAttempt(t *testing.T) {
	each(t, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk, err := l.TryLock(bg, "n")
		e.is(err, nil)
		n := e.s.Requests(membackend.Acquire, membackend.Enqueue)
		for _, other := range []*distlock.Client{rival, l} {
			start := time.Now()
			_, err = other.TryLock(bg, "n")
			e.is(err, distlock.ErrHeld)
			e.isNot(err, context.DeadlineExceeded, distlock.ErrDeadlock)
			e.took(start, 0, 0)
		}
		if got := e.s.Requests(membackend.Acquire, membackend.Enqueue); got != n+1 {
			e.Errorf("%d attempts by two failed TryLocks, want 1", got-n)
		}
		e.unlock(lk)
		if lk, err = rival.TryLock(bg, "n"); err != nil {
			e.Fatal(err)
		}
		e.unlock(lk)
		e.free()
	})
}

func TestTryLockIsBounded(t *testing.T) {
	for _, c := range []struct {
		ttl, option, want time.Duration
	}{
		{ttl, 0, ttl / 3},
		{time.Minute, 0, 5 * time.Second},
		{ttl, 100 * time.Millisecond, 100 * time.Millisecond},
	} {
		for _, kind := range []membackend.Kind{membackend.HangRequest, membackend.HangReply, membackend.SlowRequest} {
			t.Run(fmt.Sprint(c.ttl, c.option, kind), func(t *testing.T) {
				each(t, func(e *env) {
					opts := []distlock.Option{distlock.WithTTL(c.ttl)}
					if c.option > 0 {
						opts = append(opts, distlock.WithTryTimeout(c.option))
					}
					l := e.locker("a", opts...)
					f := e.inject(membackend.Fault{Op: membackend.Acquire, Kind: kind, Delay: time.Hour})
					start := time.Now()
					_, err := l.TryLock(bg, "n")
					e.is(err, context.DeadlineExceeded)
					e.took(start, c.want, c.want+soon)
					f.Resume()
					time.Sleep(time.Second)
					e.free()
				})
			})
		}
	}
}

func TestTryLockIsBoundedAsAWhole(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		slow := ttl / 3 * 7 / 10
		e.inject(membackend.Fault{Op: membackend.Open, Kind: membackend.SlowReply, Delay: slow})
		e.inject(membackend.Fault{Op: membackend.Acquire, Kind: membackend.SlowReply, Delay: slow})
		start := time.Now()
		_, err := l.TryLock(bg, "n")
		e.is(err, context.DeadlineExceeded)
		e.took(start, ttl/3, ttl/3+soon)
	})
}

func TestTryLockReportsATransportErrorAndLeavesNothing(t *testing.T) {
	for _, kind := range []membackend.Kind{membackend.FailBefore, membackend.LoseReply, membackend.Late} {
		each(t, func(e *env) {
			l := e.locker("a")
			f := e.inject(membackend.Fault{Op: membackend.Acquire, Kind: kind})
			_, err := l.TryLock(bg, "n")
			e.is(err, membackend.ErrInjected)
			e.isNot(err, distlock.ErrHeld)
			synctest.Wait()
			e.free() // undone long before its TTL
			f.Resume()
			synctest.Wait()
			e.free() // what is late takes nothing
			lk, err := l.TryLock(bg, "n")
			e.is(err, nil)
			e.unlock(lk)
		})
	}
}

func TestLockGoesOnThroughTransportErrors(t *testing.T) {
	for _, op := range []membackend.Op{membackend.Open, membackend.Acquire, membackend.Enqueue, membackend.Wait, membackend.Hints} {
		for _, kind := range []membackend.Kind{membackend.FailBefore, membackend.LoseReply, membackend.Late, membackend.HangRequest, membackend.HangReply} {
			t.Run(fmt.Sprint(op, kind), func(t *testing.T) {
				each(t, func(e *env) {
					holder := e.locker("holder")
					lk := e.lock(holder, "n")
					time.AfterFunc(ttl/2, func() { _ = lk.Unlock(bg) })
					fault := membackend.Fault{Op: op, Locker: "a", Times: 3, Kind: kind}
					if op == membackend.Wait && kind >= membackend.HangRequest {
						fault.Delay = 2 * ttl // nothing else bounds a wait
					}
					f := e.inject(fault)
					l := e.locker("a")
					mine := e.lock(l, "n")
					f.Resume()
					e.neverLost(mine, 2*ttl)
					e.unlock(mine)
					time.Sleep(2 * ttl)
					e.free()
				})
			})
		}
	}
}

func TestLockEndsWithItsContextThroughTransportErrors(t *testing.T) {
	for _, op := range []membackend.Op{membackend.Open, membackend.Acquire, membackend.Enqueue} {
		each(t, func(e *env) {
			l := e.locker("a")
			e.inject(membackend.Fault{Op: op, Times: -1, Kind: membackend.FailBefore})
			ctx, cancel := context.WithTimeout(bg, 2*ttl)
			defer cancel()
			start := time.Now()
			lk, err := l.Lock(ctx, "n")
			if lk != nil {
				return // this mode does not use op
			}
			e.took(start, 2*ttl, 2*ttl)
			e.is(err, context.DeadlineExceeded, membackend.ErrInjected)
			e.isNot(err, distlock.ErrHeld)
			// A pause between tries, not a busy loop.
			if n := e.s.Requests(op); n > 100 {
				e.Errorf("%d requests in %v", n, 2*ttl)
			}
		})
	}
}

func TestPermanentErrorsReturnAtOnce(t *testing.T) {
	boom := errors.New("WRONGPASS")
	for _, op := range []membackend.Op{membackend.Open, membackend.Acquire, membackend.Enqueue, membackend.Wait} {
		each(t, func(e *env) {
			holder := e.lock(e.locker("holder"), "n")
			l := e.locker("a")
			f := e.inject(membackend.Fault{Op: op, Locker: "a", Times: -1, Kind: membackend.FailBefore, Err: &driver.PermanentError{Err: boom}})
			ctx, cancel := context.WithTimeout(bg, ttl)
			defer cancel()
			start := time.Now()
			_, err := l.Lock(ctx, "n")
			if f.Hits() == 0 {
				return // this mode does not use op
			}
			e.is(err, boom)
			e.isNot(err, context.DeadlineExceeded)
			e.took(start, 0, 0)
			f.Remove()
			if op == membackend.Open { // the next call asks again
				lk, err := l.TryLock(bg, "other")
				e.is(err, nil)
				e.unlock(lk)
			}
			e.unlock(holder)
			synctest.Wait()
			e.free()
		})
	}
}

func TestServerIsLookedAtOnce(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		if n := e.s.Requests(); n != 0 {
			e.Errorf("New sent %d requests", n)
		}
		for i := range 3 {
			e.unlock(e.lock(l, fmt.Sprint(i)))
		}
		if n := e.s.Requests(membackend.Open); n != 1 {
			e.Errorf("looked %d times", n)
		}
	})
}

func TestSameAttemptIsSentAgainAfterAnUnclearOutcome(t *testing.T) {
	// A lost reply must not make the process wait for itself.
	for _, op := range []membackend.Op{membackend.Acquire, membackend.Enqueue} {
		each(t, func(e *env) {
			l := e.locker("a")
			e.inject(membackend.Fault{Op: op, Kind: membackend.LoseReply})
			start := time.Now()
			lk := e.lock(l, "n")
			e.took(start, 0, soon)
			if lk.Token().Number() != 1 {
				e.Errorf("number %d: granted more than once", lk.Token().Number())
			}
			if n := e.s.Requests(membackend.Abandon); n != 0 {
				e.Errorf("%d Abandons", n)
			}
		})
	}
}

func TestAbandonIsRepeatedUntilConfirmed(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		e.inject(membackend.Fault{Op: membackend.Acquire, Kind: membackend.LoseReply})
		f := e.inject(membackend.Fault{Op: membackend.Abandon, Times: 3, Kind: membackend.FailBefore})
		_, err := l.TryLock(bg, "n")
		e.is(err, membackend.ErrInjected)
		time.Sleep(ttl / 2)
		e.free()
		if f.Hits() != 3 {
			e.Errorf("%d hits", f.Hits())
		}
	})
}

func TestGrantAfterItsOwnDeadlineIsUndoneAndTheWaitGoesOn(t *testing.T) {
	where(t, ownTTL, func(e *env) {
		// One attempt may take longer than the lease lasts.
		l := e.locker("a", distlock.WithTryTimeout(2*ttl))
		f := e.inject(membackend.Fault{Op: membackend.Acquire, Kind: membackend.SlowReply, Delay: ttl})
		q := e.inject(membackend.Fault{Op: membackend.Wait, Kind: membackend.SlowReply, Delay: ttl})
		keep := e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.FailBefore})
		time.AfterFunc(ttl, keep.Remove)
		start := time.Now()
		lk := e.lock(l, "n")
		if f.Hits()+q.Hits() != 1 {
			e.Fatal("nothing was late")
		}
		e.took(start, ttl, ttl+time.Second)
		e.held(lk)
		if left := time.Until(lk.ValidUntil()); left < ttl/2 {
			e.Errorf("%v left: this is the late grant", left)
		}
	})
}

func TestLateGrantsAreUndone(t *testing.T) {
	for _, op := range []membackend.Op{membackend.Acquire, membackend.Enqueue, membackend.Wait} {
		for _, kind := range []membackend.Kind{membackend.HangReply, membackend.HangRequest} {
			each(t, func(e *env) {
				l, rival := e.locker("a"), e.locker("b")
				f := e.inject(membackend.Fault{Op: op, Locker: "a", Kind: kind})
				ctx, cancel := context.WithTimeout(bg, ttl/10)
				lk, err := l.Lock(ctx, "n")
				cancel()
				if lk != nil {
					return // this mode does not use op
				}
				e.is(err, context.DeadlineExceeded)
				time.Sleep(ttl / 10)
				f.Resume()
				start := time.Now()
				theirs := e.lock(rival, "n")
				e.took(start, 0, ttl/3) // no TTL is waited for
				e.neverLost(theirs, ttl)
			})
		}
	}
}

func TestHungAttemptIsUndoneAndTheLockIsHadBeforeItsTTL(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		var hung []*membackend.Injected
		for _, op := range []membackend.Op{membackend.Acquire, membackend.Enqueue} {
			hung = append(hung, e.inject(membackend.Fault{Op: op, Kind: membackend.HangReply}))
		}
		start := time.Now()
		lk := e.lock(l, "n")
		if hung[0].Hits()+hung[1].Hits() != 1 {
			e.Fatal("nothing hung")
		}
		e.took(start, ttl/3, ttl/3+200*time.Millisecond) // one attempt is given up
		e.neverLost(lk, 2*ttl)
	})
}

func TestGrantThatComesWhenContextHasEndedIsReleased(t *testing.T) {
	for _, op := range []membackend.Op{membackend.Acquire, membackend.Enqueue, membackend.Wait} {
		each(t, func(e *env) {
			l := e.locker("a")
			// The driver answers just after ctx ended, and the answer is a grant.
			f := e.inject(membackend.Fault{Op: op, Kind: membackend.HangReply, Delay: 105 * time.Millisecond})
			ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
			defer cancel()
			_, err := l.Lock(ctx, "n")
			if f.Hits() == 0 {
				return // this mode does not use op
			}
			e.is(err, context.DeadlineExceeded)
			synctest.Wait()
			e.free()
		})
	}
}

func TestLostPlaceInTheQueueIsTakenAnew(t *testing.T) {
	bubble(t, membackend.Options{}, func(e *env) {
		l, waiter := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		waits := e.waitsFor(bg, waiter, "n")
		before := e.s.Inspect("n").Waiters
		heal := e.s.Partition("b") // the place lapses meanwhile
		time.Sleep(2 * ttl)
		heal()
		time.Sleep(ttl)
		after := e.s.Inspect("n").Waiters
		if len(before) != 1 || len(after) != 1 || before[0] == after[0] {
			e.Errorf("waiters %q, later %q: want one, with a new owner", before, after)
		}
		e.unlock(lk)
		e.is((<-waits).err, nil)
	})
}

func TestPlaceInTheQueueIsKept(t *testing.T) {
	bubble(t, membackend.Options{}, func(e *env) {
		l, waiter := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		waits := e.waitsFor(bg, waiter, "n")
		before := e.s.Inspect("n").Waiters
		time.Sleep(10 * ttl)
		if after := e.s.Inspect("n").Waiters; !slices.Equal(before, after) {
			e.Errorf("waiters %q, later %q", before, after)
		}
		e.unlock(lk)
		r := <-waits
		e.is(r.err, nil)
		e.neverLost(r.lk, 3*ttl)
	})
}

func TestQueueIsFIFOAcrossLockers(t *testing.T) {
	where(t, func(o membackend.Options) bool { return !o.Polling }, func(e *env) {
		lk := e.lock(e.locker("first"), "n")
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			l := e.locker(fmt.Sprint(i))
			wg.Go(func() {
				lk, err := l.Lock(bg, "n")
				e.is(err, nil)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(ttl / 2)
				e.is(lk.Unlock(bg), nil)
			})
			synctest.Wait()
		}
		e.unlock(lk)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 10 {
			e.Errorf("served %v", order)
		}
	})
}

func TestLocalQueueIsFIFOWithOneContenderAtTheServer(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		rival := e.lock(e.locker("rival"), "n")
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				lk, err := l.Lock(bg, "n")
				e.is(err, nil)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				e.is(lk.Unlock(bg), nil)
			})
			synctest.Wait()
			if n := len(e.s.Inspect("n").Waiters); n > 1 {
				e.Fatalf("%d of one Locker wait at the server", n)
			}
		}
		e.unlock(rival)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 10 {
			e.Errorf("served %v", order)
		}
		e.free()
	})
}

func TestLocalWaiterThatGivesUpBlocksNobody(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		lk := e.lock(l, "n")
		ctx, cancel := context.WithCancel(bg)
		first := e.waitsFor(ctx, l, "n")
		second := e.waitsFor(bg, l, "n")
		cancel()
		e.is((<-first).err, context.Canceled, distlock.ErrHeld)
		e.unlock(lk)
		r := <-second
		e.is(r.err, nil)
		e.unlock(r.lk)
		e.free()
	})
}

func TestPollingIsBoundedWithAndWithoutHints(t *testing.T) {
	where(t, func(o membackend.Options) bool { return o.Polling }, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		before := e.s.Requests(membackend.Acquire)
		waits := e.waitsFor(bg, e.locker("b"), "n")
		time.Sleep(10 * time.Second)
		polls := e.s.Requests(membackend.Acquire) - before
		if limit := 20 * 10; e.o.Quiet && polls > limit || !e.o.Quiet && polls > 20 {
			e.Errorf("%d polls in 10 s", polls)
		}
		e.unlock(lk)
		e.is((<-waits).err, nil)
	})
}

func TestReleaseBetweenTheTryAndTheSubscriptionIsNotMissed(t *testing.T) {
	bubble(t, membackend.Options{Polling: true}, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		f := e.inject(membackend.Fault{Op: membackend.Hints, Locker: "b", Kind: membackend.HangRequest})
		waits := e.waitsFor(bg, e.locker("b", distlock.WithTryTimeout(time.Minute)), "n")
		<-f.Reached()
		e.unlock(lk)
		f.Resume()
		start := time.Now()
		e.is((<-waits).err, nil)
		e.took(start, 0, soon)
	})
}

func TestBackoffOptionSetsThePausesOfPolls(t *testing.T) {
	bubble(t, membackend.Options{Polling: true, Quiet: true}, func(e *env) {
		var ns []int
		l := e.locker("b", distlock.WithBackoff(func(n int) time.Duration {
			ns = append(ns, n)
			return time.Second
		}))
		lk := e.lock(e.locker("a"), "n")
		waits := e.waitsFor(bg, l, "n")
		time.Sleep(4500 * time.Millisecond)
		e.unlock(lk)
		e.is((<-waits).err, nil)
		if !slices.Equal(ns, []int{0, 1, 2, 3, 4}) {
			e.Errorf("asked for pauses %v", ns)
		}
	})
}

func TestExpiredHolderGivesWayWithoutItsHelp(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		heal := e.s.Partition("a")
		defer heal()
		start := time.Now()
		r := <-e.waitsFor(bg, e.locker("b"), "n")
		e.is(r.err, nil)
		e.took(start, ttl-ttl/3, ttl+300*time.Millisecond)
		e.is(lk.Err(), distlock.ErrLost)
	})
}

func TestUnusableNumberIsRefusedAndGivenBack(t *testing.T) {
	for _, first := range []uint64{1 << 58, 0} {
		synctest.Test(t, func(t *testing.T) {
			e := &env{t, membackend.NewStore(membackend.FirstNumber(first)), membackend.Options{}}
			l := e.locker("a")
			if _, err := l.Lock(bg, "n"); err == nil {
				t.Error("a token was made of it")
			}
			time.Sleep(soon)
			e.free()
		})
	}
}
