package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"example.com/distlock/driver"
)

func driverArea() []clause {
	return []clause{
		{
			name:  "driver/known-without-a-server",
			rule:  "With a ctx that has ended Capabilities returns at once and names the backend, what sessions carry and the limits of TTLs, as it does later.",
			needs: all(opens),
			run: func(e *env) {
				d := e.driver()
				ended, cancel := context.WithCancel(e.ctx)
				cancel()
				before, _ := d.Capabilities(ended) // with an error or without
				after, err := d.Capabilities(e.ctx)
				if err != nil {
					e.Fatalf("Capabilities: %v", err)
				}
				static := func(c driver.Capabilities) driver.Capabilities {
					return driver.Capabilities{
						Backend: c.Backend, LockTTL: c.LockTTL, SharedFate: c.SharedFate,
						MinTTL: c.MinTTL, MaxTTL: c.MaxTTL, TTLQuantum: c.TTLQuantum,
					}
				}
				if static(before) != static(after) {
					e.Errorf("with an ended ctx: %+v\nlater: %+v", static(before), static(after))
				}
				if after != e.caps {
					e.Errorf("the driver claims %+v\nthe harness says %+v", after, e.caps)
				}
			},
		},
		{
			name:  "driver/granted-again",
			rule:  "A request that is sent again by the owner that holds is granted again with a number that is not smaller, and is still one holding: one Release ends it.",
			needs: all(opens),
			run: func(e *env) {
				d, rival, req := e.driver(), e.driver(), e.request(e.name("x"), e.long)
				first := e.acquire(d, req)
				second := e.acquire(d, req)
				if second.Number < first.Number {
					e.Errorf("number %d, then %d for the same owner", first.Number, second.Number)
				}
				e.heldFrom(rival, req.Name)
				e.confirmed(second.Lease)
				e.releaseLease(second.Lease)
				next := e.acquire(rival, e.request(req.Name, e.long))
				if e.caps.Fencing && next.Number <= second.Number {
					e.Errorf("number %d of the next owner is not above %d", next.Number, second.Number)
				}
				e.releaseLease(next.Lease)
			},
		},
		{
			name:  "driver/refusal-leaves-nothing",
			rule:  "Acquire of a taken name is a *HeldError and leaves nothing: when the holder has released, others get the name.",
			needs: all(opens),
			run: func(e *env) {
				d, refused, rival := e.driver(), e.driver(), e.driver()
				g := e.acquire(d, e.request(e.name("x"), e.long))
				for range 3 {
					e.heldFrom(refused, e.name("x"))
					e.heldFrom(d, e.name("x"))
				}
				e.confirmed(g.Lease)
				e.releaseLease(g.Lease)
				e.free(rival, e.name("x"))
			},
		},
		{
			name:  "driver/release-checks-the-owner",
			rule:  "Release of a lease whose lock belongs to another owner by now answers ErrNotHeld and removes nothing.",
			needs: all(opens),
			waits: true,
			run: func(e *env) {
				old, holder := e.succeeded(e.name("x"), e.long)
				err := old.lease.Release(e.ctx)
				// Of a session that was retired nothing is left to be asked about.
				if !errors.Is(err, driver.ErrNotHeld) && (e.caps.LockTTL || err != nil) {
					e.Errorf("Release by the owner that held before: %v, want ErrNotHeld", err)
				}
				e.stillHeld(holder)
			},
		},
		{
			name:  "driver/second-release-is-harmless",
			rule:  "Release that is repeated after it was confirmed answers nil or ErrNotHeld and removes nothing of the next owner, on the same connection or another.",
			needs: all(opens),
			run: func(e *env) {
				d := e.driver()
				for _, next := range []driver.Driver{d, e.driver()} {
					old := e.acquire(d, e.request(e.name("x"), e.long)).Lease
					e.releaseLease(old)
					holder := holding{d: next, req: e.request(e.name("x"), e.long)}
					holder.lease = e.acquire(next, holder.req).Lease
					if err := old.Release(e.ctx); err != nil && !errors.Is(err, driver.ErrNotHeld) {
						e.Errorf("second Release: %v, want nil or ErrNotHeld", err)
					}
					e.stillHeld(holder)
					e.releaseLease(holder.lease)
				}
			},
		},
		{
			name:  "driver/renew-checks-the-owner",
			rule:  "Renew of a lease whose lock belongs to another owner by now answers ErrNotHeld, at its own place among others, and neither takes nor prolongs anything.",
			needs: all(opens),
			waits: true,
			run: func(e *env) {
				old, holder := e.succeeded(e.name("x"), e.ttl)
				k := old.lease.Keeper()
				ks, at := []driver.Kept{old.lease}, 0
				if n := k.MaxBatch(); !e.caps.SharedFate && (n == 0 || n >= 3) {
					// It stands between two that are held.
					before, after := e.acquire(old.d, e.request(e.name("before"), e.ttl)), e.acquire(old.d, e.request(e.name("after"), e.ttl))
					if before.Lease.Keeper() == k && after.Lease.Keeper() == k {
						ks, at = []driver.Kept{before.Lease, old.lease, after.Lease}, 1
					}
				}
				renew := func() {
					cs := k.Renew(e.ctx, ks)
					if len(cs) != len(ks) {
						e.Fatalf("Renew of %d leases gave %d answers", len(ks), len(cs))
					}
					if err := cs[at].Err; !errors.Is(err, driver.ErrNotHeld) {
						e.Fatalf("Renew by the owner that held before: %v, want ErrNotHeld", err)
					}
				}
				renew()
				e.stillHeld(holder)
				if e.caps.SharedFate {
					return // the other's session lives on, whoever renews
				}
				// Nobody renews the other's lock any more, so it ends.
				e.inherit(e.driver(), e.request(holder.req.Name, e.ttl), renew)
			},
		},
		{
			name:  "driver/abandon-checks-the-owner",
			rule:  "Abandon undoes what its owner has taken, and nothing else: not what another owner holds now.",
			needs: all(opens),
			waits: true,
			run: func(e *env) {
				d, rival := e.driver(), e.driver()
				holder := holding{d: d, req: e.request(e.name("x"), e.long)}
				holder.lease = e.acquire(d, holder.req).Lease
				for _, by := range []driver.Driver{d, rival} {
					e.abandon(by, e.request(e.name("x"), e.long))
				}
				e.stillHeld(holder)
				e.abandon(d, holder.req)
				e.free(rival, e.name("x"))

				old, holder := e.succeeded(e.name("y"), e.long)
				e.abandon(old.d, old.req)
				e.stillHeld(holder)
			},
		},
		{
			name:  "driver/keeper",
			rule:  "A Keeper is the same value for leases that share it, and its limits make sense: MaxBatch 0 means none, Every 0 means a third of the TTL.",
			needs: all(opens),
			run: func(e *env) {
				req := e.request(e.name("x"), e.long)
				l := e.acquire(e.driver(), req).Lease
				k := l.Keeper()
				if k != l.Keeper() {
					e.Error("Keeper returns another value each time")
				}
				if n, every := k.MaxBatch(), k.Every(); n < 0 || every < 0 {
					e.Errorf("MaxBatch %d, Every %v", n, every)
				}
				e.confirmed(l)
				e.releaseLease(l)
			},
		},
	}
}

// holding is one granted request.
type holding struct {
	d     driver.Driver
	req   driver.Request
	lease driver.Lease
}

// driver returns a driver of its own, closed at the end of the case.
func (e *env) driver() driver.Driver {
	e.Helper()
	d := e.h.(DriverOpener).OpenDriver(e.T)
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), patience)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			e.Errorf("Close of the driver: %v", err)
		}
	})
	if _, err := d.Capabilities(e.ctx); err != nil { // as distlock does before anything else
		e.Fatalf("Capabilities: %v", err)
	}
	return d
}

// request is one attempt, with an owner as distlock makes them.
func (e *env) request(name string, ttl time.Duration) driver.Request {
	return driver.Request{Name: name, Owner: rand.Text()[:22], TTL: ttl}
}

// acquire takes a free name. After an error of communication, which says nothing
// about the lock, the same request is sent again.
func (e *env) acquire(d driver.Driver, req driver.Request) driver.Grant {
	e.Helper()
	for n := 1; ; n++ {
		g, err := d.Acquire(e.ctx, req)
		if err == nil {
			if g.Lease == nil || g.TTL <= 0 || g.TTL < req.TTL && e.caps.LockTTL || g.From.After(time.Now()) {
				e.Fatalf("Acquire(%q) for %v granted %+v", req.Name, req.TTL, g)
			}
			return g
		}
		if n == 5 || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotHeld) {
			e.Fatalf("Acquire(%q) of a free name: %v", req.Name, err)
		}
	}
}

// heldFrom checks that d cannot have name.
func (e *env) heldFrom(d driver.Driver, name string) {
	e.Helper()
	req := e.request(name, e.long)
	for n := 1; ; n++ {
		g, err := d.Acquire(e.ctx, req)
		if err == nil {
			e.Fatalf("Acquire(%q) granted number %d of a name that is held", name, g.Number)
		}
		if _, ok := errors.AsType[*driver.HeldError](err); ok {
			return
		}
		if n == 5 {
			e.Fatalf("Acquire(%q) of a held name: %v, want a *HeldError", name, err)
		}
	}
}

// free checks that d can have name, and gives it back.
func (e *env) free(d driver.Driver, name string) {
	e.Helper()
	e.releaseLease(e.acquire(d, e.request(name, e.long)).Lease)
}

// releaseLease releases what is held.
func (e *env) releaseLease(l driver.Lease) {
	e.Helper()
	e.insist("Release of a held lock", func() error { return l.Release(e.ctx) })
}

// abandon abandons req.
func (e *env) abandon(d driver.Driver, req driver.Request) {
	e.Helper()
	e.insist("Abandon", func() error { return d.Abandon(e.ctx, req) })
}

// confirmed checks that Renew confirms l.
func (e *env) confirmed(l driver.Lease) {
	e.Helper()
	e.insist("Renew of a held lock", func() error {
		cs := l.Keeper().Renew(e.ctx, []driver.Kept{l})
		if len(cs) != 1 {
			e.Fatalf("Renew of one lease gave %d answers", len(cs))
		}
		return cs[0].Err
	})
}

// insist repeats fn after errors of communication.
func (e *env) insist(what string, fn func() error) {
	e.Helper()
	for n := 1; ; n++ {
		err := fn()
		if err == nil {
			return
		}
		if n == 5 || errors.Is(err, driver.ErrNotHeld) {
			e.Fatalf("%s: %v", what, err)
		}
	}
}

// stillHeld checks that h is: its own renewal is confirmed and others are refused.
func (e *env) stillHeld(h holding) {
	e.Helper()
	e.confirmed(h.lease)
	e.heldFrom(e.driver(), h.req.Name)
}

// succeeded returns an owner that held name, and has neither released nor
// abandoned it, and the one that holds it now, for ttl. Where locks have TTLs of
// their own the first one's ran out at the server; where a session carries them
// the session was retired.
func (e *env) succeeded(name string, ttl time.Duration) (old, now holding) {
	e.Helper()
	old = holding{d: e.driver(), req: e.request(name, e.ttl)}
	old.lease = e.acquire(old.d, old.req).Lease
	if !e.caps.LockTTL {
		e.insist("Retire", func() error { return old.lease.Keeper().Retire(e.ctx) })
	}
	return old, e.inherit(e.driver(), e.request(name, ttl), func() {})
}

// inherit takes a lock whose holder is to lose it, trying again until then, and
// calls meanwhile between the attempts.
func (e *env) inherit(d driver.Driver, req driver.Request, meanwhile func()) holding {
	e.Helper()
	var g driver.Grant
	e.eventually("the next owner gets "+req.Name, func() bool {
		var err error
		if g, err = d.Acquire(e.ctx, req); errors.Is(err, driver.ErrHeld) {
			req.Owner = e.request(req.Name, req.TTL).Owner // one that was refused is spent
		}
		if err != nil {
			meanwhile()
			e.pass(e.ttl/50, "the holder's lease runs out")
		}
		return err == nil
	})
	return holding{d, req, g.Lease}
}
