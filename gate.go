package distlock

import (
	"container/list"
	"context"
)

// gate lets one contender per name and Locker go to the server; the others wait
// here, in the order in which they came. The Client's mutex guards it.
type gate struct {
	c       *Client
	name    string
	state   gateState
	waiters list.List     // of chan struct{}, closed when the gate is theirs
	changed chan struct{} // closed when the state changes, for TryLock
	trying  int           // how many TryLocks look at changed
}

type gateState uint8

const (
	gateFree  gateState = iota
	gateBusy            // someone is at the server; how that ends is not known yet
	gateTaken           // someone of this process holds the lock, or waits at the server for it
)

// enter waits until the gate of n's name is n's; then it is busy. A TryLock does
// not wait for a holder: ErrHeld.
func (n *contender) enter(ctx context.Context) (*gate, error) {
	c := n.c
	c.mu.Lock()
	defer c.unlock()
	g := c.gates[n.name]
	if g == nil {
		g = &gate{c: c, name: n.name, changed: make(chan struct{})}
		c.gates[n.name] = g
	}
	if n.try {
		return g.tryEnter(ctx, n)
	}
	if g.state == gateFree {
		g.set(gateBusy)
		return g, nil
	}
	n.waits(nil)
	n.isHeld()
	mine := make(chan struct{})
	place := g.waiters.PushBack(mine)
	c.unlocked(func() {
		select {
		case <-mine:
		case <-ctx.Done():
		}
	})
	select {
	case <-mine: // it is ours even if ctx ended at the same time
		if ctx.Err() == nil {
			return g, nil
		}
		g.pass()
	default:
		g.waiters.Remove(place)
	}
	return nil, n.gaveUp(ctx)
}

func (g *gate) tryEnter(ctx context.Context, n *contender) (*gate, error) {
	c := g.c
	for {
		switch {
		case g.state == gateFree:
			g.set(gateBusy)
			return g, nil
		case g.state == gateTaken || g.waiters.Len() > 0:
			return nil, ErrHeld
		}
		changed := g.changed
		g.trying++
		c.unlocked(func() {
			select {
			case <-changed:
			case <-ctx.Done():
			}
		})
		g.trying--
		if ctx.Err() != nil {
			g.tidy()
			n.isHeld()
			return nil, n.gaveUp(ctx)
		}
	}
}

// set changes the state and tells the TryLocks that wait for it.
func (g *gate) set(s gateState) {
	if g.state == s {
		return
	}
	g.state = s
	if g.trying > 0 {
		close(g.changed)
		g.changed = make(chan struct{})
	}
	g.tidy()
}

// pass lets the next contender in.
func (g *gate) pass() {
	if first := g.waiters.Front(); first != nil {
		g.set(gateBusy)
		close(g.waiters.Remove(first).(chan struct{}))
		return
	}
	g.set(gateFree)
}

func (g *gate) tidy() {
	if g.state == gateFree && g.trying == 0 && g.waiters.Len() == 0 {
		delete(g.c.gates, g.name)
	}
}
