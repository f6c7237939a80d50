package conformance

import (
	"context"
	"errors"
	"time"

	"example.com/distlock"
)

func reentry() []clause {
	return []clause{
		{
			name: "reentry/deadlock",
			rule: "Lock and TryLock with a ctx that carries the held lock return at once with an error that matches ErrDeadlock and ErrHeld: no self-deadlock.",
			run: func(e *env) {
				l, name := e.locker(), e.name("x")
				lk := e.take(l, name)
				ctx, cancel := context.WithTimeout(lk.Context(), patience)
				defer cancel()
				_, err := l.Lock(ctx, name)
				e.wantErr("Lock from inside", err, distlock.ErrDeadlock, distlock.ErrHeld)
				_, err = l.TryLock(ctx, name)
				e.wantErr("TryLock from inside", err, distlock.ErrDeadlock, distlock.ErrHeld)
				e.held(lk)
				e.unlock(lk)
			},
		},
		{
			name: "reentry/counted",
			rule: "With Reentrant the same holding is got again with the same token, and only the last Unlock releases it.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				first := e.take(a, name)
				second, err := a.Lock(first.Context(), name, distlock.Reentrant())
				if err != nil {
					e.Fatalf("re-entry: %v", err)
				}
				third, err := a.TryLock(second.Context(), name, distlock.Reentrant())
				if err != nil {
					e.Fatalf("re-entry by TryLock: %v", err)
				}
				if first.Token() != second.Token() || first.Token() != third.Token() {
					e.Errorf("tokens %d, %d, %d of one holding differ", first.Token(), second.Token(), third.Token())
				}
				e.unlock(third)
				e.refused(b, name)
				e.unlock(first) // the order doesn't matter
				e.refused(b, name)
				e.held(second)
				e.unlock(second)
				e.unlock(e.take(b, name))
			},
		},
		{
			name: "reentry/handles-are-counted-once",
			rule: "Each handle counts once: unlocking one twice is ErrNotHeld and leaves the others' holding alone.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				first := e.take(a, name)
				second, err := a.Lock(first.Context(), name, distlock.Reentrant())
				if err != nil {
					e.Fatalf("re-entry: %v", err)
				}
				e.unlock(second)
				e.wantErr("second Unlock of one handle", second.Unlock(e.ctx), distlock.ErrNotHeld)
				e.held(first)
				e.refused(b, name)
				e.unlock(first)
				e.wantErr("second Unlock of the other handle", first.Unlock(e.ctx), distlock.ErrNotHeld)
			},
		},
		{
			name: "reentry/first-time",
			rule: "Reentrant on a ctx that carries no lock acquires like any other Lock.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name, distlock.Reentrant())
				e.refused(b, name)
				if _, err := e.try(e.ctx, a, name, distlock.Reentrant()); !errors.Is(err, distlock.ErrHeld) || errors.Is(err, distlock.ErrDeadlock) {
					e.Errorf("TryLock from elsewhere: %v, want ErrHeld and not ErrDeadlock: this ctx carries no lock", err)
				}
				e.unlock(lk)
			},
		},
		{
			name: "reentry/other-name",
			rule: "A ctx that carries one lock can be used to take another, and then carries both.",
			run: func(e *env) {
				l, x, y := e.locker(), e.name("x"), e.name("y")
				outer := e.take(l, x)
				inner, err := l.Lock(outer.Context(), y)
				if err != nil {
					e.Fatalf("Lock of another name: %v", err)
				}
				for _, name := range []string{x, y} {
					_, err = l.TryLock(inner.Context(), name)
					e.wantErr("TryLock from inside both", err, distlock.ErrDeadlock, distlock.ErrHeld)
				}
				e.unlock(inner)
				e.unlock(outer)
			},
		},
		{
			name: "reentry/other-locker",
			rule: "A ctx that carries a lock is no key to it for another Locker: it is refused like everybody else.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				if _, err := e.try(lk.Context(), b, name, distlock.Reentrant()); !errors.Is(err, distlock.ErrHeld) {
					e.Errorf("TryLock by another Locker: %v, want ErrHeld", err)
				}
				e.held(lk)
				e.unlock(lk)
			},
		},
		{
			name: "reentry/dead-after-unlock",
			rule: "A ctx carries a lock only until its Unlock: afterwards the name is contended for anew, with a new holding.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				lk := e.take(a, name)
				ctx := context.WithoutCancel(lk.Context())
				e.unlock(lk)
				again, err := e.try(ctx, a, name, distlock.Reentrant())
				if err != nil {
					e.Fatalf("TryLock after Unlock: %v", err)
				}
				e.wantErr("Unlock of the ended holding", lk.Unlock(e.ctx), distlock.ErrNotHeld)
				e.refused(b, name)
				e.unlock(again)
				other := e.take(b, name)
				if _, err := e.try(ctx, a, name, distlock.Reentrant()); !errors.Is(err, distlock.ErrHeld) || errors.Is(err, distlock.ErrDeadlock) {
					e.Errorf("TryLock with the ctx of an ended holding: %v, want ErrHeld and not ErrDeadlock", err)
				}
				e.unlock(other)
			},
		},
		{
			name:  "reentry/loss",
			rule:  "A loss ends all handles of a holding: each is told once, and each Unlock matches ErrLost.",
			waits: true,
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				first := e.take(a, name, distlock.WithMaxHold(300*time.Millisecond))
				second, err := a.Lock(first.Context(), name, distlock.Reentrant())
				if err != nil {
					e.Fatalf("re-entry: %v", err)
				}
				for _, lk := range []*distlock.Lock{first, second} {
					if le := e.lossOf(lk); le.Reason != distlock.MaxHold {
						e.Errorf("loss %+v, want Reason MaxHold", le)
					}
				}
				next := e.lock(b, name)
				e.wantErr("Unlock of the second handle", second.Unlock(e.ctx), distlock.ErrLost)
				e.wantErr("Unlock of the first handle", first.Unlock(e.ctx), distlock.ErrLost)
				e.held(next)
				e.refused(a, name)
			},
		},
		{
			name: "reentry/do",
			rule: "Do within Do of the same name is re-entry with Reentrant, and ErrDeadlock without; the outer one still holds the lock afterwards.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				err := distlock.Do(e.ctx, a, name, func(ctx context.Context, outer *distlock.Lock) error {
					err := distlock.Do(ctx, a, name, func(_ context.Context, inner *distlock.Lock) error {
						if inner.Token() != outer.Token() {
							e.Errorf("token %d inside, %d outside", inner.Token(), outer.Token())
						}
						return nil
					}, distlock.Reentrant())
					if err != nil {
						e.Errorf("inner Do: %v", err)
					}
					e.held(outer)
					e.refused(b, name)
					return distlock.Do(ctx, a, name, func(context.Context, *distlock.Lock) error { return nil })
				})
				e.wantErr("Do within Do without Reentrant", err, distlock.ErrDeadlock)
				e.unlock(e.take(b, name))
			},
		},
	}
}
