package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"example.com/distlock"
)

func errorsArea() []clause {
	return []clause{
		{
			name: "errors/held",
			rule: "TryLock of a taken name returns a nil *Lock and an *Error that matches ErrHeld and nothing else, with operation, backend and name.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				e.take(a, name)
				lk, err := e.try(e.ctx, b, name)
				if lk != nil {
					e.Errorf("TryLock returned a non-nil *Lock with the error %v", err)
				}
				e.wantErr("TryLock of a held name", err, distlock.ErrHeld)
				e.wantDetail(err, name)
				for _, other := range []error{
					distlock.ErrDeadlock, distlock.ErrNotHeld, distlock.ErrLost, distlock.ErrInvalid,
					context.DeadlineExceeded, context.Canceled,
				} {
					if errors.Is(err, other) {
						e.Errorf("%v matches %q too", err, other)
					}
				}
			},
		},
		{
			name: "errors/unlock-twice",
			rule: "Unlock after a successful Unlock is ErrNotHeld, which is neither ErrHeld nor ErrLost.",
			run: func(e *env) {
				l, name := e.locker(), e.name("x")
				lk := e.take(l, name)
				e.unlock(lk)
				for range 2 {
					err := lk.Unlock(e.ctx)
					e.wantErr("Unlock after Unlock", err, distlock.ErrNotHeld)
					if errors.Is(err, distlock.ErrLost) || errors.Is(err, distlock.ErrHeld) {
						e.Errorf("Unlock after Unlock: %v matches ErrLost or ErrHeld", err)
					}
				}
			},
		},
		{
			name: "errors/nothing-held",
			rule: "A nil or zero *Lock holds nothing, says so, and never panics: so a deferred Unlock after a failed Lock is harmless.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				held := e.take(a, name)
				failed, err := e.try(e.ctx, b, name)
				e.wantErr("TryLock of a held name", err, distlock.ErrHeld)
				for _, lk := range []*distlock.Lock{failed, nil, {}} {
					e.wantErr("Unlock of nothing", lk.Unlock(e.ctx), distlock.ErrNotHeld)
					e.wantErr("Renew of nothing", lk.Renew(e.ctx), distlock.ErrNotHeld)
					e.wantErr("Err of nothing", lk.Err(), distlock.ErrNotHeld)
					if lk.Token() != 0 || lk.Name() != "" || lk.ValidUntil().After(time.Now()) {
						e.Errorf("nothing has token %d, name %q, valid until %v", lk.Token(), lk.Name(), lk.ValidUntil())
					}
					if lk.Context() == nil {
						e.Error("the Context of nothing is nil")
					}
					_ = lk.Lost()
				}
				e.held(held)
				e.refused(b, name)
			},
		},
		{
			name: "errors/unlock-with-ended-ctx",
			rule: "Unlock makes its attempt although its ctx has ended: the name is free afterwards.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				ctx, cancel := context.WithCancel(e.ctx)
				lk, err := a.Lock(ctx, name)
				if err != nil {
					e.Fatalf("Lock: %v", err)
				}
				cancel()
				if err := lk.Unlock(ctx); err != nil {
					e.Errorf("Unlock with an ended ctx: %v", err)
				}
				e.unlock(e.take(b, name))
			},
		},
		{
			name: "errors/after-unlock",
			rule: "After Unlock the holding has ended with ErrReleased as its cause; Renew is ErrNotHeld and brings nothing back.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				ctx := lk.Context()
				e.unlock(lk)
				if ctx.Err() == nil {
					e.Error("Context() goes on after Unlock")
				}
				e.wantErr("context.Cause after Unlock", context.Cause(ctx), distlock.ErrReleased)
				if err := lk.Err(); err == nil || errors.Is(err, distlock.ErrLost) {
					e.Errorf("Err() after Unlock = %v, want an error that does not match ErrLost", err)
				}
				e.wantErr("Renew after Unlock", lk.Renew(e.ctx), distlock.ErrNotHeld)
				if lk.Name() != name {
					e.Errorf("Name() = %q after Unlock, want %q still", lk.Name(), name)
				}
				e.unlock(e.take(b, name))
			},
		},
		{
			name: "errors/loss-matches",
			rule: "A loss matches ErrLost and ErrNotHeld everywhere it is met: Err, Renew, Unlock, and the Context's cause, all with the same *LostError.",
			run: func(e *env) {
				name := e.name("x")
				lk := e.take(e.locker(), name, distlock.WithMaxHold(100*time.Millisecond))
				tok := lk.Token()
				first := e.lossOf(lk)
				if first.Name != name || first.Token != tok || first.At.IsZero() || first.Error() == "" {
					e.Errorf("loss %+v, want Name %q, Token %d, and the time At", first, name, tok)
				}
				for what, err := range map[string]error{
					"Err": lk.Err(), "Renew": lk.Renew(e.ctx), "Unlock": lk.Unlock(e.ctx), "second Unlock": lk.Unlock(e.ctx),
					"Cause": context.Cause(lk.Context()),
				} {
					e.wantErr(what+" after a loss", err, distlock.ErrLost, distlock.ErrNotHeld)
					le, ok := errors.AsType[*distlock.LostError](err)
					if !ok {
						e.Errorf("%s after a loss: %v holds no *LostError", what, err)
					} else if le.Reason != first.Reason || !le.At.Equal(first.At) {
						e.Errorf("%s after a loss says %+v, Err said %+v: a loss does not change", what, le, first)
					}
				}
			},
		},
		{
			name:  "errors/try-out-of-reach",
			rule:  "With the backend out of reach TryLock ends by itself within its own bound, with an error that names backend and lock and is not ErrHeld.",
			needs: all(partitions),
			run: func(e *env) {
				l, name := e.locker(distlock.WithTryTimeout(300*time.Millisecond)), e.name("x")
				e.unlock(e.lock(l, e.name("warm-up")))
				heal := e.partition(l)
				ended := make(chan struct{})
				var lk *distlock.Lock
				var err error
				go func() {
					defer close(ended)
					lk, err = l.TryLock(e.ctx, name)
				}()
				e.await(ended, "TryLock to end")
				if err == nil {
					e.Fatalf("TryLock got a lock (token %d) over a connection that is cut", lk.Token())
				}
				if errors.Is(err, distlock.ErrHeld) {
					e.Errorf("TryLock: %v matches ErrHeld, though nothing is known about the name", err)
				}
				e.wantDetail(err, name)
				heal()
				e.unlock(e.lock(l, name))
			},
		},
		{
			name:  "errors/unlock-out-of-reach",
			rule:  "Unlock that cannot reach the backend ends within the release timeout with an error; the holding has ended, is not reported lost, and is released as soon as the backend is reached, when Unlock is nil once and ErrNotHeld from then on.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, b, name := e.locker(distlock.WithReleaseTimeout(300*time.Millisecond)), e.locker(), e.name("x")
				lk := e.lock(a, name)
				heal := e.partition(a)
				err := lk.Unlock(e.ctx)
				if err == nil || errors.Is(err, distlock.ErrNotHeld) {
					e.Errorf("Unlock without a backend: %v, want an error of communication", err)
				}
				if lk.Err() == nil || lk.Token() != 0 {
					e.Errorf("after Unlock: Err() = %v, Token() = %d: the holding has ended", lk.Err(), lk.Token())
				}
				heal()
				e.eventually("Unlock reports that the release is confirmed", func() bool {
					err := lk.Unlock(e.ctx)
					if errors.Is(err, distlock.ErrNotHeld) {
						e.Fatalf("Unlock: %v, want nil once for the release that was open", err)
					}
					return err == nil
				})
				e.wantErr("Unlock after the confirmed release", lk.Unlock(e.ctx), distlock.ErrNotHeld)
				if isClosed(lk.Lost()) {
					e.Error("Lost() is closed after Unlock")
				}
				e.unlock(e.lock(b, name))
			},
		},
		{
			name:  "errors/abandoned-release-goes-on",
			rule:  "A release that could not be confirmed goes on in the background: others get the name soon after the connection is healed, without another Unlock.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, b, name := e.locker(distlock.WithReleaseTimeout(300*time.Millisecond)), e.locker(), e.name("x")
				lk := e.lock(a, name)
				heal := e.partition(a)
				if err := lk.Unlock(e.ctx); err == nil {
					e.Error("Unlock without a backend returned nil")
				}
				heal()
				e.unlock(e.lock(b, name)) // patience, not the TTL
			},
		},
		{
			name: "errors/do",
			rule: "Do returns fn's error, passes a lock that is held, and has released it when it returns; if the lock can't be had fn is not called.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				own := errors.New("fn's own error")
				err := distlock.Do(e.ctx, a, name, func(ctx context.Context, lk *distlock.Lock) error {
					e.held(lk)
					if err := ctx.Err(); err != nil {
						e.Errorf("fn's ctx has ended: %v", err)
					}
					e.refused(b, name)
					return own
				})
				e.wantErr("Do", err, own)
				if err := distlock.Do(e.ctx, b, name, func(context.Context, *distlock.Lock) error { return nil }); err != nil {
					e.Errorf("Do: %v, want nil", err)
				}
				e.take(a, name)
				ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
				defer cancel()
				err = distlock.Do(ctx, b, name, func(context.Context, *distlock.Lock) error {
					e.Error("fn was called without the lock")
					return nil
				})
				e.wantErr("Do of a held name", err, distlock.ErrHeld, context.DeadlineExceeded)
			},
		},
		{
			name: "errors/concurrent-use",
			rule: "A Lock's methods can be used from many goroutines at once: one Unlock succeeds, and readers see a holding that is either held or ended.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				for range 5 {
					lk := e.take(a, name)
					tok := lk.Token()
					var wg sync.WaitGroup
					for range 4 {
						wg.Go(func() {
							for lk.Err() == nil {
								if got := lk.Token(); got != tok && got != 0 {
									e.Errorf("token %d became %d", tok, got)
								}
								_ = lk.ValidUntil()
								_ = lk.Context().Err()
							}
						})
					}
					wg.Go(func() { _ = lk.Renew(e.ctx) }) // races the Unlock
					nils := make(chan error, 3)
					for range cap(nils) {
						wg.Go(func() { nils <- lk.Unlock(e.ctx) })
					}
					wg.Wait()
					confirmed := 0
					for range cap(nils) {
						// One that comes while the release is under way may say that.
						if err := <-nils; err == nil {
							confirmed++
						} else if errors.Is(err, distlock.ErrLost) {
							e.Errorf("concurrent Unlock: %v", err)
						}
					}
					if confirmed != 1 {
						e.Errorf("%d of 3 concurrent Unlocks returned nil, want 1", confirmed)
					}
					e.unlock(e.take(b, name))
				}
			},
		},
	}
}
