package membackend

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"example.com/distlock/driver"
)

// base is the driver of one Locker: the client's end of the Store.
type base struct {
	s      *Store
	opts   Options
	keeper *keeper
	closed atomic.Bool

	sessions map[time.Duration]*session // by TTL; guarded by s.mu
}

var (
	_ driver.Inspector = (*base)(nil)
	_ driver.Forcer    = (*base)(nil)
)

func newBase(s *Store, o Options) *base {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lockers++
	if o.Name == "" {
		o.Name = fmt.Sprintf("locker-%d", s.lockers)
	}
	d := &base{s: s, opts: o, sessions: map[time.Duration]*session{}}
	d.keeper = &keeper{d}
	return d
}

// Capabilities implements driver.Driver. What it answers is known without the
// Store, whose error tells only that it is out of reach.
func (d *base) Capabilities(ctx context.Context) (driver.Capabilities, error) {
	caps := driver.Capabilities{
		Backend:    "memory",
		Fencing:    true,
		FIFO:       !d.opts.Polling,
		SharedFate: d.opts.SharedFate,
		LockTTL:    !d.opts.SingleTTL,
		Push:       !d.opts.Polling || !d.opts.Quiet,
		MinTTL:     d.opts.MinTTL,
		MaxTTL:     d.opts.MaxTTL,
		TTLQuantum: d.opts.TTLQuantum,
		NumberKind: "counter",
	}
	return caps, d.send(ctx, call{op: Open}, "", func(context.Context) error { return nil })
}

// Acquire implements driver.Driver.
func (d *base) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	var g driver.Grant
	sent := time.Now()
	err := d.send(ctx, call{op: Acquire, lock: req.Name}, req.Owner, func(context.Context) (err error) {
		d.s.locked(func() {
			var e *entry
			if e, err = d.place(req, sent, false); err == nil {
				g = e.confirm(sent)
			}
		})
		return err
	})
	if err != nil {
		if errors.Is(err, driver.ErrHeld) && ctx.Err() == nil {
			d.s.locked(func() { d.s.bury(req.Owner, "ErrHeld") })
		}
		return driver.Grant{}, err
	}
	return g, nil
}

// place finds or makes the entry of req; s.mu is held. Without enqueue, a lock
// that is taken or waited for is a *driver.HeldError.
func (d *base) place(req driver.Request, sent time.Time, enqueue bool) (*entry, error) {
	s := d.s
	if s.dead[req.Owner] {
		return nil, errAbandoned
	}
	if e := s.find(req.Name, req.Owner); e != nil {
		if e.session == nil {
			s.extend(e)
		}
		return e, nil
	}
	ss := d.session(req.TTL, sent)
	l := s.lock(req.Name)
	free := l.holder == nil // and then nobody is queued
	if !free && !enqueue {
		he := &driver.HeldError{Remaining: l.holder.remaining(), Waiters: len(l.queue)}
		if ss != nil {
			he.Keeper = ss
		}
		return nil, he
	}
	e := &entry{
		d: d, name: req.Name, owner: req.Owner, metadata: req.Metadata, ttl: req.TTL,
		gone: req.Gone, session: ss, from: sent,
	}
	if ss != nil {
		ss.entries[e] = struct{}{}
	}
	if free {
		s.grant(l, e)
		return e, nil
	}
	e.turn = make(chan struct{})
	e.expires = time.Now().Add(e.ttl)
	l.queue = append(l.queue, e)
	return e, nil
}

// session returns the live session for ttl, a new one if need be, and nil where
// fate is not shared; s.mu is held.
func (d *base) session(ttl time.Duration, sent time.Time) *session {
	if !d.opts.SharedFate {
		return nil
	}
	if d.opts.SingleTTL {
		for t := range d.sessions {
			if t != ttl {
				d.s.breach("one TTL per Locker: %v after %v", ttl, t)
			}
		}
	}
	ss := d.sessions[ttl]
	if ss == nil || ss.retired || ss.expired() {
		if ss != nil && !ss.retired {
			d.s.endSession(ss, errExpired)
		}
		ss = d.s.newSession(d, ttl, sent)
		d.sessions[ttl] = ss
	}
	return ss
}

// confirm is the answer that e holds its lock; s.mu is held.
func (e *entry) confirm(sent time.Time) driver.Grant {
	g := driver.Grant{Lease: &lease{e: e}, Number: e.number, TTL: e.ttl}
	if e.session != nil {
		g.From = e.session.from // taking a lock extends no session
		return g
	}
	e.advance(sent)
	g.From = e.from
	return g
}

// advance moves From forward: answers may overtake each other.
func (e *entry) advance(sent time.Time) {
	if sent.After(e.from) {
		e.from = sent
	}
}

// Abandon implements driver.Driver.
func (d *base) Abandon(ctx context.Context, req driver.Request) error {
	d.s.locked(func() { d.s.lastly(req.Owner, "Abandon") })
	return d.send(ctx, call{op: Abandon, lock: req.Name}, "", func(context.Context) error {
		d.s.locked(func() {
			d.s.bury(req.Owner, "Abandon")
			if e := d.s.find(req.Name, req.Owner); e != nil {
				d.s.end(e, nil)
			}
		})
		return nil
	})
}

// Close implements driver.Driver.
func (d *base) Close(ctx context.Context) error {
	if d.closed.Swap(true) {
		return nil
	}
	var open []*session
	d.s.locked(func() {
		for _, ss := range d.sessions {
			ss.retired = true
			open = append(open, ss)
		}
	})
	for _, ss := range open {
		if err := ss.revoke(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Inspect implements driver.Inspector.
func (d *base) Inspect(ctx context.Context, name string) (driver.Info, error) {
	var info driver.Info
	err := d.send(ctx, call{op: Inspect, lock: name}, "", func(context.Context) error {
		info = d.s.Inspect(name)
		return nil
	})
	if err != nil {
		return driver.Info{}, err
	}
	return info, nil
}

// Force implements driver.Forcer.
func (d *base) Force(ctx context.Context, name string, number uint64) error {
	return d.send(ctx, call{op: Force, lock: name}, "", func(context.Context) error {
		return d.s.remove(name, number, errRemoved)
	})
}

// lease is one granted lock as the client sees it.
type lease struct {
	e    *entry
	open bool // a release was sent and its reply is missing; guarded by s.mu
}

func (l *lease) Keeper() driver.Keeper { return l.e.keeper() }

func (l *lease) entry() *entry { return l.e }

// Release implements driver.Lease.
func (l *lease) Release(ctx context.Context) error {
	return l.e.giveUp(ctx, Release, &l.open)
}

// giveUp ends e for its owner: a Release, or a Leave.
func (e *entry) giveUp(ctx context.Context, op Op, open *bool) error {
	s := e.d.s
	retired := false
	s.locked(func() {
		s.lastly(e.owner, string(op))
		retired = e.session != nil && e.session.retired
	})
	if retired {
		return driver.ErrNotHeld // its session has ended, or ends with its TTL
	}
	err := e.d.send(ctx, call{op: op, lock: e.name}, "", func(context.Context) (err error) {
		s.locked(func() {
			s.bury(e.owner, string(op))
			if !s.alive(e) {
				err = driver.ErrNotHeld
				return
			}
			s.end(e, nil)
		})
		return err
	})
	s.locked(func() {
		switch {
		case err == nil:
			*open = false
		case !errors.Is(err, driver.ErrNotHeld):
			*open = true
		case *open:
			*open, err = false, nil // the earlier request did it, or came too late
		}
	})
	return err
}

func (e *entry) keeper() driver.Keeper {
	if e.session != nil {
		return e.session
	}
	return e.d.keeper
}

// send carries one request to the Store and its answer back. owner is set for
// requests that could take a lock. apply runs at the Store; after an error that
// is not its own it may still run, and nobody reads what it leaves behind.
func (d *base) send(ctx context.Context, c call, owner string, apply func(context.Context) error) error {
	s := d.s
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var f *Injected
	var err error
	s.locked(func() { f, err = s.arrive(d, c, owner) })
	if err != nil {
		return err
	}
	return d.carry(ctx, c.op, f, func(ctx context.Context, arrived bool) error {
		if owner != "" {
			defer s.locked(func() { s.settle(owner) })
		}
		if !arrived {
			return nil
		}
		return apply(ctx)
	})
}

// carry runs apply as the fault f and the network let it: exactly once, with
// arrived false if the request got lost.
func (d *base) carry(ctx context.Context, op Op, f *Injected, apply func(ctx context.Context, arrived bool) error) error {
	lost := func(err error) error {
		_ = apply(ctx, false)
		return err
	}
	switch {
	case f.is(FailBefore), f.is(Late) && op == Wait: // waiting is no request that could be late
		return lost(f.f.Err)
	case f.is(Late):
		f.later(func() { _ = apply(context.WithoutCancel(ctx), true) })
		return f.f.Err
	case f.before():
		if err := f.pause(ctx); err != nil {
			return lost(err)
		}
	}
	if err := d.reach(ctx); err != nil {
		return lost(err)
	}
	err := apply(ctx, true)
	switch {
	case f.is(LoseReply):
		return f.f.Err
	case f.afterwards():
		if late := f.pause(ctx); late != nil {
			return late
		}
	}
	return err
}

// reach waits while the Locker is cut off.
func (d *base) reach(ctx context.Context) error {
	for {
		d.s.mu.Lock()
		c := d.s.cuts[d.opts.Name]
		d.s.mu.Unlock()
		if c == nil {
			return nil
		}
		select {
		case <-c.healed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// arrive counts a request and finds its fault; s.mu is held.
func (s *Store) arrive(d *base, c call, owner string) (*Injected, error) {
	s.requests[c.op]++
	if d.closed.Load() && c.op != Retire {
		s.breach("%s of %s after Close", c.op, d.opts.Name)
		return nil, errClosed
	}
	if owner != "" {
		s.inflight[owner]++
		if s.violation != nil {
			if by := s.lastWord[owner]; by != "" {
				s.breach("%s with owner %s of %q after its %s", c.op, owner, c.lock, by)
			}
			if name, ok := s.names[owner]; ok && name != c.lock {
				s.breach("owner %s of %q used for %q", owner, name, c.lock)
			}
			s.names[owner] = c.lock
		}
	}
	return s.hit(d, c), nil
}

// settle notes that a request of owner is on its way no longer; s.mu is held.
func (s *Store) settle(owner string) {
	if s.inflight[owner]--; s.inflight[owner] == 0 {
		delete(s.inflight, owner)
		delete(s.dead, owner)
	}
}

// lastly remembers for Strict what ended an owner; s.mu is held.
func (s *Store) lastly(owner, by string) {
	if s.violation != nil && s.lastWord[owner] == "" {
		s.lastWord[owner] = by
	}
}

// bury has requests of owner that arrive later refused; s.mu is held.
func (s *Store) bury(owner, by string) {
	s.lastly(owner, by)
	if s.inflight[owner] > 0 {
		s.dead[owner] = true
	}
}
