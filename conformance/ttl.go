package conformance

import (
	"errors"
	"fmt"
	"math"
	"time"

	"example.com/distlock"
)

func ttl() []clause {
	return []clause{
		{
			name: "ttl/zero-and-negative",
			rule: "A TTL or lease of zero or less is ErrInvalid; nothing is taken.",
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				for _, d := range []time.Duration{0, -1, -time.Hour, math.MinInt64} {
					e.badTTL(a, name, d, distlock.ErrInvalid)
				}
				e.unlock(e.take(b, name))
			},
		},
		{
			name:  "ttl/below-minimum",
			rule:  "A TTL below the backend's minimum is ErrInvalid, never rounded to nothing.",
			needs: all(lockTTL, minTTL),
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				for _, d := range []time.Duration{1, e.caps.MinTTL / 2, e.caps.MinTTL - 1} {
					e.badTTL(a, name, d, distlock.ErrInvalid)
				}
				e.unlock(e.take(b, name))
			},
		},
		{
			name:  "ttl/beyond-maximum",
			rule:  "A TTL beyond the backend's maximum is ErrInvalid.",
			needs: all(lockTTL, maxTTL),
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				for _, d := range []time.Duration{e.caps.MaxTTL + 1, 2 * e.caps.MaxTTL, math.MaxInt64} {
					if d > e.caps.MaxTTL {
						e.badTTL(a, name, d, distlock.ErrInvalid)
					}
				}
				e.unlock(e.take(b, name))
			},
		},
		{
			name:  "ttl/extremes",
			rule:  "A very long TTL is refused with ErrInvalid or really kept: never a lock that others can have.",
			needs: all(lockTTL),
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				for _, d := range []time.Duration{
					24 * time.Hour, math.MaxInt32 * time.Millisecond, math.MaxInt32 * time.Second,
					math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64,
				} {
					name := e.name(d.String())
					lk, err := e.try(e.ctx, a, name, distlock.WithTTL(d))
					if err != nil {
						e.wantErr("TTL "+d.String(), err, distlock.ErrInvalid)
						continue
					}
					e.held(lk)
					e.refused(b, name)
					if lk.ValidUntil().Before(time.Now().Add(time.Hour)) {
						e.Errorf("TTL %v: ValidUntil is %v", d, lk.ValidUntil())
					}
					e.unlock(lk)
				}
			},
		},
		{
			name:  "ttl/of-its-own",
			rule:  "With LockTTL each lock has the TTL that it was asked for: one with a short lease ends, one with a long TTL of the same Locker goes on.",
			needs: all(lockTTL),
			waits: true,
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				short := e.lock(a, e.name("short"), distlock.WithFixedLease(e.ttl))
				long := e.lock(a, e.name("long"))
				if short.ValidUntil().After(time.Now().Add(e.ttl)) {
					e.Errorf("a lease of %v is valid until %v from now", e.ttl, time.Until(short.ValidUntil()))
				}
				if d := time.Until(long.ValidUntil()); d < e.long/2 {
					e.Errorf("a TTL of %v is valid for %v from now", e.long, d)
				}
				e.lock(b, short.Name())
				e.lost(short)
				e.held(long)
				e.refused(b, long.Name())
			},
		},
		{
			name:  "ttl/one-for-all",
			rule:  "Without LockTTL a different TTL per call is ErrUnsupported; the Locker's own is not.",
			needs: all(not(lockTTL)),
			run: func(e *env) {
				l, name := e.locker(), e.name("x")
				e.badTTL(l, name, e.long+time.Second, distlock.ErrUnsupported)
				e.unlock(e.take(l, name, distlock.WithTTL(e.long)))
			},
		},
		{
			name:  "ttl/not-carried-over",
			rule:  "The TTL of one acquisition does not leak into the next: without an option it is the Locker's again.",
			needs: all(lockTTL),
			run: func(e *env) {
				l, name := e.locker(), e.name("x")
				e.unlock(e.take(l, name, distlock.WithTTL(e.ttl)))
				lk := e.take(l, name)
				if d := time.Until(lk.ValidUntil()); d <= e.ttl || d > e.long {
					e.Errorf("valid for %v from now, want the Locker's TTL of %v", d, e.long)
				}
				e.unlock(lk)
				lk = e.take(l, name, distlock.WithTTL(2*e.ttl))
				if d := time.Until(lk.ValidUntil()); d > 2*e.ttl+e.caps.TTLQuantum {
					e.Errorf("valid for %v from now, want at most the call's TTL of %v", d, 2*e.ttl)
				}
				e.unlock(lk)
			},
		},
		{
			name: "ttl/valid-until",
			rule: "ValidUntil lies in the future while the lock is held, and no further than the TTL less the safety margin.",
			run: func(e *env) {
				margin := e.long / 10
				lk := e.take(e.locker(distlock.WithSafetyMargin(margin)), e.name("x"))
				d := time.Until(lk.ValidUntil())
				if d <= 0 {
					e.Errorf("ValidUntil is %v ago while the lock is held", -d)
				}
				if most := roundUp(e.long, e.caps.TTLQuantum) - margin; d > most {
					e.Errorf("valid for %v from now, want at most TTL %v less margin %v", d, e.long, margin)
				}
				e.held(lk)
				e.unlock(lk)
				if lk.ValidUntil().After(time.Now()) {
					e.Error("ValidUntil lies in the future after Unlock")
				}
			},
		},
		{
			name: "ttl/renew",
			rule: "Renew moves ValidUntil forward, never back.",
			run: func(e *env) {
				lk := e.take(e.locker(), e.name("x"))
				first := lk.ValidUntil()
				last := first
				e.eventually("renewals move ValidUntil forward", func() bool {
					if err := lk.Renew(e.ctx); err != nil {
						e.Fatalf("Renew: %v", err)
					}
					now := lk.ValidUntil()
					if now.Before(last) {
						e.Fatalf("a renewal moved ValidUntil back by %v", last.Sub(now))
					}
					last = now
					return last.After(first)
				})
				e.held(lk)
			},
		},
		{
			name:  "ttl/fixed-lease-renewed-by-hand",
			rule:  "Renew starts the time of a fixed lease anew: the holding goes on beyond the first lease, and ends with the second.",
			waits: true,
			run: func(e *env) {
				e.steady(e.keepTTL()/8, func(attempt string) error {
					d := e.keepTTL()
					a, b, name := e.open(d, nil), e.locker(), e.name(attempt)
					before := time.Now()
					lk := e.lock(a, name, distlock.WithFixedLease(d))
					e.pass(d/2, "half of the first lease is over")
					if err := lk.Renew(e.ctx); err != nil {
						return fmt.Errorf("renew: %w", err)
					}
					until := lk.ValidUntil()
					e.lock(b, name)
					now := time.Now()
					if now.Before(until) {
						e.Errorf("a rival got in %v before ValidUntil", until.Sub(now))
					}
					if held := now.Sub(before); held < d+d/4 {
						return fmt.Errorf("a rival got in after %v, though a lease of %v was renewed at half time", held, d)
					}
					e.lost(lk)
					return nil
				})
			},
		},
		{
			name:  "ttl/lasts",
			rule:  "A lease lasts as long as was asked for, rounded up and never down: nobody else gets in earlier, though nothing renews it.",
			waits: true,
			run: func(e *env) {
				d := e.ttl + e.ttl/4 + 1 // no multiple of any quantum
				if !e.caps.LockTTL {
					d = e.ttl
				}
				a, b, name := e.open(d, nil), e.locker(), e.name("x")
				before := time.Now()
				lk := e.lock(a, name, distlock.WithFixedLease(d))
				until := lk.ValidUntil()
				e.lock(b, name)
				now := time.Now()
				if now.Before(until) {
					e.Errorf("a rival got in %v before ValidUntil", until.Sub(now))
				}
				// The holder's deadline is earlier than the server's by the margin
				// (TTL/100 + 2 ms), and where the core ends a lease it ends it then.
				if held := now.Sub(before); held < d-d/100-3*time.Millisecond {
					e.Errorf("a rival got in after %v, though the lease is %v", held, d)
				}
			},
		},
		{
			name:  "ttl/backend-forgets",
			rule:  "Nothing stays beyond its TTL: what a killed process held is free after about one TTL, without any help.",
			needs: all(spawns),
			waits: true,
			run: func(e *env) {
				p := e.spawn(e.ttl)
				names := []string{e.name("a"), e.name("b"), e.name("c")}
				for _, name := range names {
					p.lock(name)
				}
				p.kill()
				b := e.locker()
				for _, name := range names {
					e.unlock(e.lock(b, name))
				}
			},
		},
	}
}

// badTTL checks that l refuses d as a TTL and as a fixed lease.
func (e *env) badTTL(l distlock.Locker, name string, d time.Duration, want error) {
	e.Helper()
	ctx, cancel := e.soon()
	defer cancel()
	opts := []distlock.LockOption{distlock.WithTTL(d)}
	if d <= 0 || errors.Is(want, distlock.ErrInvalid) && !e.caps.SharedFate { // there a fixed lease is a timer of the core
		opts = append(opts, distlock.WithFixedLease(d))
	}
	for i, opt := range opts {
		if lk, err := l.Lock(ctx, name, opt); !errors.Is(err, want) {
			e.Errorf("Lock with option %d of %v: %v, want an error that matches %q", i, d, err, want)
			_ = lk.Unlock(ctx)
		}
		if lk, err := l.TryLock(ctx, name, opt); !errors.Is(err, want) {
			e.Errorf("TryLock with option %d of %v: %v, want an error that matches %q", i, d, err, want)
			_ = lk.Unlock(ctx)
		}
	}
}

func roundUp(d, quantum time.Duration) time.Duration {
	if quantum <= 0 || d%quantum == 0 {
		return d
	}
	return d - d%quantum + quantum
}
