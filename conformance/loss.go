package conformance

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"example.com/distlock"
)

func loss() []clause {
	return []clause{
		{
			name:  "loss/watchdog-keeps",
			rule:  "A held lock is renewed by itself: it outlives several TTLs and no rival gets in.",
			waits: true,
			run: func(e *env) {
				e.keeps(func(l distlock.Locker, name string) (*distlock.Lock, error) {
					return l.Lock(e.ctx, name)
				})
			},
		},
		{
			name:  "loss/watchdog-keeps-many",
			rule:  "All locks of a Locker are renewed, not only some of them.",
			waits: true,
			run: func(e *env) {
				const n = 40
				e.steady(e.keepTTL()/4, func(attempt string) error {
					a, b := e.open(e.keepTTL(), nil), e.locker()
					var lks []*distlock.Lock
					for i := range n {
						lks = append(lks, e.lock(a, e.name(attempt+strconv.Itoa(i))))
					}
					e.pass(2*e.keepTTL(), "all are to be renewed")
					for _, lk := range lks {
						if err := lk.Err(); err != nil {
							return fmt.Errorf("lock %q of %d: %w", lk.Name(), n, err)
						}
						e.refused(b, lk.Name())
					}
					return a.Close()
				})
			},
		},
		{
			name:  "loss/told-before-rival",
			rule:  "A holder that is cut off is told of the loss before a rival can get the name: Err, Token and ValidUntil say so by then at the latest.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(), e.brief(), e.name("x")
				lk := e.lock(a, name)
				p := e.start(e.ctx, b, name)
				e.partition(a)
				p.got()
				// The state is read by this goroutine after the rival's Lock has
				// returned: no timer and no other goroutine is relied upon.
				if err := lk.Err(); !errors.Is(err, distlock.ErrLost) {
					e.Errorf("a rival got the name while the holder's Err() was %v", err)
				}
				if tok := lk.Token(); tok != 0 {
					e.Errorf("a rival got the name while the holder's Token() was %d", tok)
				}
				if until := lk.ValidUntil(); until.After(p.at) {
					e.Errorf("a rival got the name %v before the holder's ValidUntil()", until.Sub(p.at))
				}
				e.lost(lk)
			},
		},
		{
			name:  "loss/channel-before-rival",
			rule:  "The signal comes in time too: Lost() of a holder that is cut off is closed before a rival gets the name, although its renewals hang.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				// The margin is what a timer may be late; a process that stands
				// still for longer is told late by any library.
				margin := max(e.ttl/10, 50*time.Millisecond)
				e.steady(margin/2, func(attempt string) error {
					a, b, name := e.brief(distlock.WithSafetyMargin(margin)), e.brief(), e.name(attempt)
					lk := e.lock(a, name)
					p := e.start(e.ctx, b, name)
					heal := e.partition(a)
					defer heal()
					next := p.got()
					told := isClosed(lk.Lost())
					e.lost(lk)
					e.unlock(next)
					if !told {
						return errors.New("a rival got the name before Lost() was closed")
					}
					return nil
				})
			},
		},
		{
			name:  "loss/acquire-extends-no-session",
			rule:  "The deadline of a lock taken on a session that has been there for a while counts from the session's last confirmation, not from the acquire: cut off right after it, the holder is told before a rival gets in.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(), e.brief(), e.name("x")
				e.lock(a, e.name("first"))
				e.pass(e.ttl/4, "the session gets older, and is not yet renewed")
				lk := e.lock(a, name)
				e.partition(a)
				e.lock(b, name)
				if err := lk.Err(); !errors.Is(err, distlock.ErrLost) {
					e.Errorf("a rival got the name while the holder's Err() was %v", err)
				}
			},
		},
		{
			name:  "loss/deadline-counts-from-the-request",
			rule:  "The deadline counts from before the request was sent, not from its answer: over a slow connection too a holder knows of its end before a rival gets in.",
			needs: all(delays),
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(distlock.WithTryTimeout(e.ttl)), e.locker(), e.name("x")
				e.unlock(e.lock(a, e.name("warm-up")))
				stop := e.h.(Delayer).Delay(e.T, a, e.ttl/12)
				defer stop()
				lk := e.lock(a, name, distlock.WithFixedLease(e.ttl))
				e.lock(b, name)
				if err := lk.Err(); !errors.Is(err, distlock.ErrLost) {
					e.Errorf("a rival got the name while the holder's Err() was %v", err)
				}
			},
		},
		{
			name:  "loss/told-without-rival",
			rule:  "A holder that is cut off is told when its deadline has passed, with Reason Expired, though nobody else wants the name and its renewals hang.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, name := e.brief(), e.name("x")
				lk := e.lock(a, name)
				tok := lk.Token()
				e.partition(a)
				le := e.lossOf(lk)
				if le.Reason != distlock.Expired || le.Name != name || le.Token != tok {
					e.Errorf("loss %+v, want Reason Expired, Name %q and Token %d", le, name, tok)
				}
				if le.At.After(time.Now()) {
					e.Errorf("loss noticed at %v, in the future", le.At)
				}
			},
		},
		{
			name:  "loss/complete-when-told",
			rule:  "When Lost() is closed everything says so: Context() has ended with the *LostError as its cause, Err matches ErrLost and ErrNotHeld, Token is 0, ValidUntil is over.",
			waits: true,
			run: func(e *env) {
				lk := e.lock(e.locker(), e.name("x"), distlock.WithMaxHold(e.ttl))
				e.await(lk.Lost(), "MaxHold to end the holding")
				cause := context.Cause(lk.Context())
				if lk.Context().Err() == nil {
					e.Fatal("Lost() is closed and Context() goes on")
				}
				if _, ok := errors.AsType[*distlock.LostError](cause); !ok {
					e.Errorf("context.Cause = %v (%T), want a *LostError", cause, cause)
				}
				e.wantErr("context.Cause", cause, distlock.ErrLost)
				e.wantErr("Err", lk.Err(), distlock.ErrLost, distlock.ErrNotHeld)
				if lk.Token() != 0 {
					e.Errorf("Token = %d after a loss, want 0", lk.Token())
				}
				if lk.ValidUntil().After(time.Now()) {
					e.Errorf("ValidUntil = %v after a loss", lk.ValidUntil())
				}
			},
		},
		{
			name:  "loss/dropped-by-backend",
			rule:  "A holder whose lease the backend has ended is told by the deadline of its last renewal, with Reason Revoked or Expired.",
			needs: all(expires),
			waits: true,
			run: func(e *env) {
				name := e.name("x")
				lk := e.lock(e.brief(), name)
				e.expire(name)
				if le := e.lossOf(lk); le.Reason != distlock.Revoked && le.Reason != distlock.Expired {
					e.Errorf("loss %+v, want Reason Revoked or Expired", le)
				}
			},
		},
		{
			name:  "loss/not-revived-by-renewal",
			rule:  "Renewing never re-creates a lost lock: after the backend has dropped it, Renew fails and the name stays free for others.",
			needs: all(expires),
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(), e.locker(), e.name("x")
				lk := e.lock(a, name)
				e.expire(name)
				if err := lk.Renew(e.ctx); err == nil {
					e.Fatal("Renew of a lock that the backend has dropped returned nil")
				}
				e.lost(lk)
				e.unlock(e.lock(b, name))
				e.pass(e.ttl, "no late renewal may bring the lock back")
				e.unlock(e.take(b, name))
				_ = e.lossNow(lk)
			},
		},
		{
			name:  "loss/successor-not-renewed-away",
			rule:  "The renewals of a holder that was dropped do nothing to its successor's lock.",
			needs: all(expires),
			waits: true,
			run: func(e *env) {
				a, b, c, name := e.brief(), e.locker(), e.locker(), e.name("x")
				stale := e.lock(a, name)
				e.expire(name)
				fresh := e.lock(b, name)
				_ = stale.Renew(e.ctx) // fails or finds the loss
				e.lost(stale)
				e.wantErr("Unlock after a loss", stale.Unlock(e.ctx), distlock.ErrLost)
				e.held(fresh)
				e.refused(c, name)
			},
		},
		{
			name:  "loss/never-taken-back",
			rule:  "A loss is final: when the connection is healed the holding stays lost, and its Unlock matches ErrLost.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				a, name := e.brief(), e.name("x")
				lk := e.lock(a, name)
				heal := e.partition(a)
				e.lost(lk)
				heal()
				e.unlock(e.lock(a, e.name("other"))) // it works again
				_ = e.lossNow(lk)
				e.wantErr("Renew after a loss", lk.Renew(e.ctx), distlock.ErrLost)
				e.wantErr("Unlock after a loss", lk.Unlock(e.ctx), distlock.ErrLost, distlock.ErrNotHeld)
				_ = e.lossNow(lk)
			},
		},
		{
			name:  "loss/short-outage-survived",
			rule:  "Errors of communication are no loss: a holder that can renew again before its deadline keeps the lock.",
			needs: all(partitions),
			waits: true,
			run: func(e *env) {
				ttl := 2 * e.keepTTL()
				e.steady(ttl/8, func(attempt string) error {
					a, b, name := e.open(ttl, nil), e.locker(), e.name(attempt)
					lk := e.lock(a, name)
					heal := e.partition(a)
					// Until a renewal has failed; but on backends whose confirmations are
					// old when they come, not so long that none could help any more.
					cut, failed := time.Now(), e.newsOf(a)
					e.eventually("a renewal has failed", func() bool {
						return failed.count(name, distlock.EventRenewed) > 0 ||
							time.Since(cut) >= ttl/2 && time.Until(lk.ValidUntil()) < ttl*3/10
					})
					heal()
					e.pass(ttl, "the TTL of the last renewal before the outage ends")
					if err := lk.Err(); err != nil {
						return fmt.Errorf("lost after a short outage: %w", err)
					}
					e.refused(b, name)
					return a.Close()
				})
			},
		},
		{
			name:  "loss/lock-again",
			rule:  "A Locker that lost a lock can take the name again, and the new holding is renewed like any other.",
			waits: true,
			run: func(e *env) {
				e.keeps(func(l distlock.Locker, name string) (*distlock.Lock, error) {
					first, err := l.Lock(e.ctx, name, distlock.WithMaxHold(50*time.Millisecond))
					if err != nil {
						return nil, err
					}
					e.lost(first) // and not unlocked
					return l.Lock(e.ctx, name)
				})
			},
		},
		{
			name:  "loss/lock-again-after-drop",
			rule:  "After the backend has dropped its lease or session a Locker makes a new one: it takes the name again and keeps it.",
			needs: all(expires),
			waits: true,
			run: func(e *env) {
				e.keeps(func(l distlock.Locker, name string) (*distlock.Lock, error) {
					first, err := l.Lock(e.ctx, name)
					if err != nil {
						return nil, err
					}
					e.expire(name)
					e.lost(first)
					ctx, cancel := e.soon()
					defer cancel()
					return l.Lock(ctx, name)
				})
			},
		},
		{
			name:  "loss/fixed-lease",
			rule:  "WithFixedLease is not renewed: the holding is lost when the lease is over, the name is free then, and not before ValidUntil.",
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(), e.locker(), e.name("x")
				lk := e.lock(a, name, distlock.WithFixedLease(e.ttl))
				until := lk.ValidUntil()
				next := e.lock(b, name)
				if now := time.Now(); now.Before(until) {
					e.Errorf("a rival got the name %v before the fixed lease's ValidUntil", until.Sub(now))
				}
				if le := e.lossOf(lk); le.Reason != distlock.Expired {
					e.Errorf("loss %+v, want Reason Expired", le)
				}
				e.held(next)
			},
		},
		{
			name:  "loss/max-hold",
			rule:  "WithMaxHold ends the holding with Reason MaxHold and releases it: others need not wait for the TTL.",
			waits: true,
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				const most = 200 * time.Millisecond
				before := time.Now()
				lk := e.lock(a, name, distlock.WithMaxHold(most))
				e.unlock(e.lock(b, name)) // far beyond patience if it were left to the TTL
				if held := time.Since(before); held < most {
					e.Errorf("held for %v, want at least MaxHold = %v", held, most)
				}
				if le := e.lossOf(lk); le.Reason != distlock.MaxHold {
					e.Errorf("loss %+v, want Reason MaxHold", le)
				}
				e.wantErr("Unlock after MaxHold", lk.Unlock(e.ctx), distlock.ErrLost)
			},
		},
		{
			name:  "loss/not-told-after-unlock",
			rule:  "What was ended by Unlock is never reported lost: Lost() stays open and the Context's cause is ErrReleased.",
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(), e.brief(), e.name("x")
				lk := e.lock(a, name)
				e.unlock(lk)
				e.lock(b, name)
				e.pass(e.ttl+e.ttl/2, "the TTL of what was unlocked ends")
				if isClosed(lk.Lost()) {
					e.Errorf("Lost() is closed after Unlock: %v", lk.Err())
				}
				if err := lk.Err(); errors.Is(err, distlock.ErrLost) || err == nil {
					e.Errorf("Err() after Unlock = %v, want an error that does not match ErrLost", err)
				}
				e.wantErr("context.Cause after Unlock", context.Cause(lk.Context()), distlock.ErrReleased)
			},
		},
		{
			name:  "loss/only-the-own",
			rule:  "Without SharedFate the end of one lock is the end of no other.",
			needs: all(expires, not(sharedFate)),
			waits: true,
			run: func(e *env) {
				e.steady(e.keepTTL()/4, func(attempt string) error {
					a := e.open(e.keepTTL(), nil)
					first, second := e.lock(a, e.name(attempt+"first")), e.lock(a, e.name(attempt+"second"))
					e.expire(first.Name())
					e.lost(first)
					return second.Err()
				})
			},
		},
		{
			name:  "loss/shared-fate",
			rule:  "With SharedFate the end of the session is the end of all its locks, and each holder is told.",
			needs: all(expires, sharedFate),
			waits: true,
			run: func(e *env) {
				a := e.brief()
				first, second := e.lock(a, e.name("first")), e.lock(a, e.name("second"))
				e.expire(first.Name())
				e.lost(first)
				e.lost(second)
			},
		},
		{
			name:  "loss/other-lockers-untouched",
			rule:  "The end of one Locker's lease or session touches no lock of another Locker.",
			needs: all(expires),
			run: func(e *env) {
				a, b, c := e.brief(), e.locker(), e.locker()
				mine, theirs := e.lock(a, e.name("mine")), e.lock(b, e.name("theirs"))
				e.expire(mine.Name())
				e.lost(mine)
				e.held(theirs)
				e.refused(c, theirs.Name())
			},
		},
		{
			name:  "loss/paused-process",
			rule:  "A process that stood still beyond its TTL knows of the loss as soon as it looks, before any news from the backend, though a rival got in meanwhile.",
			needs: all(stops),
			waits: true,
			run: func(e *env) {
				name := e.name("x")
				b, p := e.locker(), e.spawn(e.ttl)
				p.lock(name)
				p.stop()
				e.lock(b, name)
				state := p.send("state", name, 0) // it lies in the pipe: the first thing to be done
				p.resume()
				if a := state.answer(); !a.Lost || a.Token != 0 {
					e.Errorf("after the pause the process says %+v, want that the lock is lost", a)
				}
				if a := p.send("unlock", name, 0).answer(); !a.Lost {
					e.Errorf("Unlock after the pause: %+v, want ErrLost", a)
				}
				e.refused(e.locker(), name)
			},
		},
		{
			name:  "loss/short-pause-survived",
			rule:  "A process that stood still for a fraction of its TTL keeps its lock.",
			needs: all(stops),
			waits: true,
			run: func(e *env) {
				ttl := 2 * e.keepTTL()
				e.steady(ttl/8, func(attempt string) error {
					name := e.name(attempt)
					b, p := e.locker(), e.spawn(ttl)
					p.lock(name)
					p.stop()
					e.pass(ttl/4, "the process stands still")
					p.resume()
					e.pass(ttl, "the TTL of the last renewal before the pause ends")
					if a := p.send("state", name, 0).answer(); a.Err != "" {
						return fmt.Errorf("after a pause of TTL/4: %s", a.Err)
					}
					e.refused(b, name)
					return nil
				})
			},
		},
		{
			name:  "loss/do",
			rule:  "Do cancels fn's ctx on loss, waits for fn, and returns an error that matches ErrLost and fn's own.",
			waits: true,
			run: func(e *env) {
				a, name := e.locker(), e.name("x")
				own := errors.New("fn's own error")
				ended := false
				err := distlock.Do(e.ctx, a, name, func(ctx context.Context, lk *distlock.Lock) error {
					e.await(ctx.Done(), "fn's ctx to end")
					e.wantErr("cause of fn's ctx", context.Cause(ctx), distlock.ErrLost)
					ended = true
					return own
				}, distlock.WithMaxHold(100*time.Millisecond))
				if !ended {
					e.Error("Do returned before fn")
				}
				e.wantErr("Do", err, distlock.ErrLost, own)
				e.unlock(e.lock(e.locker(), name))
			},
		},
	}
}

// keepTTL is a TTL for locks that must be kept up: short enough to wait for,
// long enough for a busy machine.
func (e *env) keepTTL() time.Duration { return max(e.ttl, 1500*time.Millisecond) }

// keeps checks that what lock returns is still held two and a half TTLs later,
// and that a rival was refused all the time.
func (e *env) keeps(lock func(l distlock.Locker, name string) (*distlock.Lock, error)) {
	e.Helper()
	ttl := e.keepTTL()
	e.steady(ttl/4, func(attempt string) error {
		a, b, name := e.open(ttl, nil), e.locker(), e.name(attempt)
		lk, err := lock(a, name)
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		first := lk.ValidUntil()
		for end := time.Now().Add(ttl * 5 / 2); time.Now().Before(end); {
			if got, err := e.try(e.ctx, b, name); err == nil {
				_ = got.Unlock(e.ctx)
				return errors.Join(errors.New("a rival got the name"), lk.Err())
			}
			e.pass(ttl/10, "the lock is to be renewed")
		}
		if err := lk.Err(); err != nil {
			return fmt.Errorf("after 2.5 TTLs: %w", err)
		}
		if !lk.ValidUntil().After(first) {
			return fmt.Errorf("ValidUntil stayed at %v although the lock is held", first)
		}
		return a.Close()
	})
}
