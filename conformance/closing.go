package conformance

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"example.com/distlock"
)

func closing() []clause {
	return []clause{
		{
			name: "close/releases",
			rule: "Close releases the locks that are held: others get them, long before their TTL would have ended.",
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				var names []string
				for i := range 5 {
					names = append(names, e.name(strconv.Itoa(i)))
					e.take(a, names[i])
				}
				e.close(a)
				for _, name := range names {
					e.unlock(e.lock(b, name))
				}
			},
		},
		{
			name: "close/tells-holders",
			rule: "Locks held at Close are lost with Reason Closed, and their Unlock matches ErrLost.",
			run: func(e *env) {
				a, name := e.locker(), e.name("x")
				lk := e.take(a, name)
				e.close(a)
				if !isClosed(lk.Lost()) {
					e.Error("Lost() is open after Close")
				}
				if le := e.lossNow(lk); le.Reason != distlock.Closed {
					e.Errorf("loss %+v, want Reason Closed", le)
				}
				e.wantErr("context.Cause after Close", context.Cause(lk.Context()), distlock.ErrLost)
				e.wantErr("Unlock after Close", lk.Unlock(e.ctx), distlock.ErrLost)
			},
		},
		{
			name: "close/ends-waits",
			rule: "Close ends waiting Locks with ErrClosed, those that wait behind others of the same Locker too.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				var ps []*pending
				for range 4 {
					ps = append(ps, e.wait(e.ctx, b, name))
				}
				e.close(b)
				for _, p := range ps {
					e.wantErr("Lock that waited at Close", p.failed(), distlock.ErrClosed)
				}
				e.held(lk)
			},
		},
		{
			name: "close/waiters-leave-nothing",
			rule: "What waited at Close leaves its place: once the holder has unlocked, others get the name.",
			run: func(e *env) {
				a, b, c, name := e.locker(), e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				p := e.wait(e.ctx, b, name)
				e.close(b)
				_ = p.failed()
				e.unlock(lk)
				e.unlock(e.lock(c, name))
			},
		},
		{
			name: "close/refuses",
			rule: "After Close, Lock and TryLock are ErrClosed and take nothing.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				e.unlock(e.take(a, e.name("warm-up")))
				e.close(a)
				_, err := a.Lock(e.ctx, name)
				e.wantErr("Lock after Close", err, distlock.ErrClosed)
				_, err = a.TryLock(e.ctx, name)
				e.wantErr("TryLock after Close", err, distlock.ErrClosed)
				e.unlock(e.take(b, name))
			},
		},
		{
			name: "close/unused",
			rule: "A Locker that was never used closes without an error and refuses from then on.",
			run: func(e *env) {
				l := e.locker()
				e.close(l)
				_, err := l.TryLock(e.ctx, e.name("x"))
				e.wantErr("TryLock after Close", err, distlock.ErrClosed)
			},
		},
		{
			name: "close/twice",
			rule: "Close can be called again, and from many goroutines: each call returns when the Locker is closed.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				e.take(a, name)
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						_ = a.Close() // only the first need know how it went
						if _, err := a.TryLock(e.ctx, name); !errors.Is(err, distlock.ErrClosed) {
							e.Errorf("TryLock after Close: %v, want ErrClosed", err)
						}
					})
				}
				wg.Wait()
				_ = a.Close()
				e.unlock(e.lock(b, name))
			},
		},
		{
			name: "close/only-its-own",
			rule: "Close of one Locker touches no lock of another.",
			run: func(e *env) {
				a, b, c := e.locker(), e.locker(), e.locker()
				e.take(a, e.name("a"))
				theirs := e.take(b, e.name("b"))
				e.close(a)
				e.held(theirs)
				e.refused(c, theirs.Name())
				e.unlock(theirs)
			},
		},
		{
			name: "close/during-use",
			rule: "Close while Lock, TryLock and Unlock are at work leaves nothing held: all of them end, and the names are free.",
			run: func(e *env) {
				const goroutines = 6
				a, b := e.locker(), e.locker()
				var wg sync.WaitGroup
				running := make(chan struct{}, goroutines)
				for i := range goroutines {
					name := e.name(strconv.Itoa(i % 3))
					wg.Go(func() {
						for n := 0; ; n++ {
							lk, err := a.Lock(e.ctx, name)
							if err != nil {
								if !errors.Is(err, distlock.ErrClosed) {
									e.Errorf("Lock during Close: %v, want ErrClosed", err)
								}
								return
							}
							if n == 0 {
								running <- struct{}{}
							}
							if err := e.release(lk); err != nil && !errors.Is(err, distlock.ErrLost) {
								e.Errorf("Unlock during Close: %v", err)
							}
						}
					})
				}
				for range goroutines {
					e.await(running, "all goroutines to be at work")
				}
				e.close(a)
				ended := make(chan struct{})
				go func() { wg.Wait(); close(ended) }()
				e.await(ended, "Lock and Unlock to end after Close")
				for i := range 3 {
					e.unlock(e.lock(b, e.name(strconv.Itoa(i))))
				}
			},
		},
		{
			name:  "close/out-of-reach",
			rule:  "Close ends within the release timeout with the backend out of reach; waits end with ErrClosed, holders are told, and what could not be released is free after its TTL.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(distlock.WithReleaseTimeout(300*time.Millisecond)), e.locker(), e.name("x")
				other := e.name("other")
				e.take(b, other)
				lk := e.lock(a, name)
				p := e.wait(e.ctx, a, other)
				e.partition(a)
				closed := make(chan struct{})
				go func() { defer close(closed); _ = a.Close() }() // whether it says an error is up to what was open
				e.await(closed, "Close to end")
				if err := p.failed(); !errors.Is(err, distlock.ErrClosed) {
					e.Errorf("Lock that waited at Close: %v, want ErrClosed", err)
				}
				e.lost(lk)
				e.unlock(e.lock(b, name))
			},
		},
	}
}

// close closes l, which must work.
func (e *env) close(l distlock.Locker) {
	e.Helper()
	if err := l.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
}
