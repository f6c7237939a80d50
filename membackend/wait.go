package membackend

import (
	"context"
	"sync"
	"time"

	"example.com/distlock/driver"
)

// queueing is a base whose waiters stand in a queue at the Store.
type queueing struct{ *base }

var _ driver.Queuer = queueing{}

// Enqueue implements driver.Queuer.
func (d queueing) Enqueue(ctx context.Context, req driver.Request) (driver.Ticket, error) {
	var e *entry
	sent := time.Now()
	err := d.send(ctx, call{op: Enqueue, lock: req.Name}, req.Owner, func(context.Context) (err error) {
		d.s.locked(func() {
			if e, err = d.place(req, sent, true); err == nil {
				e.advance(sent)
			}
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &ticket{lease{e: e}}, nil
}

// ticket is a place in a queue; once it is served, the same entry is the lease.
type ticket struct{ lease }

// Wait implements driver.Ticket.
func (t *ticket) Wait(ctx context.Context) (driver.Grant, error) {
	var g driver.Grant
	e, s := t.e, t.e.d.s
	err := e.d.send(ctx, call{op: Wait, lock: e.name}, "", func(ctx context.Context) error {
		if e.turn != nil {
			select {
			case <-e.turn:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := e.d.reach(ctx); err != nil { // a grant is news, too
			return err
		}
		err := driver.ErrNotHeld
		s.locked(func() {
			if e.session != nil && e.session.retired || !s.alive(e) || e.state != held {
				return
			}
			// Its turn may have come at any time since its last answer, and its
			// countdown began then.
			g, err = e.confirm(e.from), nil
		})
		return err
	})
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

// Leave implements driver.Ticket.
func (t *ticket) Leave(ctx context.Context) error { return t.e.giveUp(ctx, Leave, &t.open) }

// polling is a base whose waiters are told when to try again.
type polling struct{ *base }

var _ driver.Hinter = polling{}

// listener is a waiter that wants hints.
type listener struct {
	d *base
	c chan struct{}
}

func (h *listener) hint() {
	select {
	case h.c <- struct{}{}:
	default: // one hint is enough
	}
}

// Hints implements driver.Hinter.
func (d polling) Hints(ctx context.Context, name string) (<-chan struct{}, func(), error) {
	h := &listener{d: d.base, c: make(chan struct{}, 1)}
	err := d.send(ctx, call{op: Hints, lock: name}, "", func(context.Context) error {
		d.s.locked(func() {
			if d.s.listeners[name] == nil {
				d.s.listeners[name] = map[*listener]struct{}{}
			}
			d.s.listeners[name][h] = struct{}{}
		})
		return nil
	})
	stop := sync.OnceFunc(func() {
		d.s.locked(func() {
			delete(d.s.listeners[name], h)
			if len(d.s.listeners[name]) == 0 {
				delete(d.s.listeners, name)
			}
		})
	})
	if err != nil {
		stop()
		return nil, nil, err
	}
	return h.c, stop, nil
}
