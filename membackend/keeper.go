package membackend

import (
	"context"
	"math"
	"time"

	"example.com/distlock/driver"
)

// kept is what a lease and a ticket have in common.
type kept interface {
	driver.Kept
	entry() *entry
}

// keeper renews leases and tickets that have a TTL of their own.
type keeper struct{ d *base }

// maxBatch is small, so that tests of a hundred locks need more than one batch.
const maxBatch = 64

func (k *keeper) Every() time.Duration         { return k.d.opts.RenewWithin }
func (k *keeper) MaxBatch() int                { return maxBatch }
func (k *keeper) Retire(context.Context) error { return nil }

func (k *keeper) Renew(ctx context.Context, ks []driver.Kept) []driver.Confirm {
	return k.d.renew(ctx, k, ks, func(e *entry) error {
		if !k.d.s.alive(e) {
			return driver.ErrNotHeld
		}
		k.d.s.extend(e)
		return nil
	})
}

func (ss *session) Every() time.Duration { return ss.d.opts.RenewWithin }
func (ss *session) MaxBatch() int        { return math.MaxInt }

func (ss *session) Renew(ctx context.Context, ks []driver.Kept) []driver.Confirm {
	s := ss.d.s
	return ss.d.renew(ctx, ss, ks, func(e *entry) error {
		if e == nil {
			if ss.expired() {
				s.endSession(ss, errExpired)
				return driver.ErrNotHeld
			}
			ss.expires = time.Now().Add(ss.ttl)
			ss.timer.Reset(ss.ttl)
			return nil
		}
		if !s.alive(e) {
			return driver.ErrNotHeld
		}
		return nil
	})
}

// Retire ends the session. Nothing is sent for it from now on, whether or not
// the Store can be told.
func (ss *session) Retire(ctx context.Context) error {
	first := false
	ss.d.s.locked(func() { first, ss.retired = !ss.retired, true })
	if !first {
		return nil
	}
	return ss.revoke(ctx)
}

func (ss *session) revoke(ctx context.Context) error {
	return ss.d.send(ctx, call{op: Retire}, "", func(context.Context) error {
		ss.d.s.locked(func() { ss.d.s.endSession(ss, nil) })
		return nil
	})
}

// renew is one request for all of ks. apply runs at the Store for each of them,
// and where fate is shared first for nil, which is the session itself.
func (d *base) renew(ctx context.Context, k driver.Keeper, ks []driver.Kept, apply func(*entry) error) []driver.Confirm {
	s := d.s
	sent := time.Now()
	ss, _ := k.(*session)
	out := make([]driver.Confirm, max(len(ks), 1))
	if ss == nil {
		out = out[:len(ks)]
	}
	all := func(err error) []driver.Confirm {
		for i := range out {
			out[i] = driver.Confirm{Err: err}
		}
		return out
	}

	if ctx.Err() != nil {
		return all(context.Cause(ctx))
	}
	var whole, slow *Injected
	parts := make([]*Injected, len(ks))
	retired := false
	var err error
	s.locked(func() {
		if retired = ss != nil && ss.retired; retired {
			return
		}
		if len(ks) > k.MaxBatch() {
			s.breach("Renew of %d, more than MaxBatch %d", len(ks), k.MaxBatch())
		}
		if whole, err = s.arrive(d, call{op: Renew}, ""); whole != nil || err != nil {
			return
		}
		for i, kp := range ks {
			if kp.Keeper() != k {
				s.breach("Renew on a Keeper of another")
			}
			parts[i] = s.hit(d, call{op: Renew, lock: kp.(kept).entry().name, part: true})
			if parts[i].before() || parts[i].afterwards() {
				slow = parts[i] // what slows one slows the request
			}
		}
	})
	if retired {
		return all(driver.ErrNotHeld)
	}
	if err != nil {
		return all(err)
	}
	if whole == nil {
		whole = slow
	}
	answers := out
	err = d.carry(ctx, Renew, whole, func(_ context.Context, arrived bool) error {
		if !arrived {
			return nil
		}
		s.locked(func() {
			var fate error
			if ss != nil {
				fate = apply(nil)
				answers[0] = driver.Confirm{From: sent, TTL: ss.ttl, Err: fate}
			}
			for i, kp := range ks {
				e, f := kp.(kept).entry(), parts[i]
				answers[i] = driver.Confirm{From: sent, TTL: e.ttl, Err: fate}
				switch {
				case fate != nil:
				case f.is(FailBefore):
					answers[i].Err = f.f.Err
				case f.is(Late):
					answers[i].Err = f.f.Err
					s.after = append(s.after, func() {
						f.later(func() { s.locked(func() { _ = apply(e) }) })
					})
				default:
					answers[i].Err = apply(e)
					if f.is(LoseReply) {
						answers[i].Err = f.f.Err
					}
				}
			}
		})
		return nil
	})
	if err != nil {
		// What apply wrote, or will write when it is late, is nobody's.
		out = make([]driver.Confirm, len(out))
		return all(err)
	}
	s.locked(func() {
		if ss != nil && ss.retired {
			all(driver.ErrNotHeld)
			return
		}
		confirmed := ss != nil && len(ks) == 0 && out[0].Err == nil
		for i, kp := range ks {
			if out[i].Err == nil {
				confirmed = true
				kp.(kept).entry().advance(sent)
			}
		}
		if ss != nil && confirmed && sent.After(ss.from) {
			ss.from = sent
		}
	})
	return out
}
