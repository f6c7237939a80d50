package zkbackend

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"example.com/distlock/driver"
)

var _ driver.Ticket = (*ticket)(nil)

// Enqueue makes the attempt's node, which is its place in the queue.
func (d *backend) Enqueue(ctx context.Context, req driver.Request) (driver.Ticket, error) {
	n, err := d.enroll(ctx, req)
	if err != nil {
		return nil, err
	}
	s, err := n.enter(ctx)
	if err != nil {
		return nil, err
	}
	return &ticket{s, n}, nil
}

// A ticket is a node that waits for its turn.
type ticket struct {
	session *session
	node    *node
}

func (t *ticket) Keeper() driver.Keeper { return t.session }

// Wait watches whoever stands next before the node, and nobody else.
func (t *ticket) Wait(ctx context.Context) (driver.Grant, error) {
	s, n := t.session, t.node
	for {
		g, ok, err := n.grant(s)
		if ok || err != nil {
			return g, err
		}
		if err := t.step(ctx); err != nil {
			if ctx.Err() != nil {
				return g, context.Cause(ctx)
			}
			if isPermanent(err) {
				return g, err
			}
			// Anything else the next round finds out about: a connection that was
			// lost, the node or the session gone, a predecessor that left meanwhile.
		}
	}
}

// step does one of the things that bring the node nearer to its turn: learn who
// stands before it, watch the nearest, or wait for news.
func (t *ticket) step(ctx context.Context) error {
	s, n := t.session, t.node
	l, err := s.ready(ctx)
	if err != nil {
		return err
	}
	if err := n.look(ctx, s, l); err != nil {
		return err
	}
	s.d.mu.Lock()
	if n.first || len(n.ahead) == 0 {
		s.d.mu.Unlock()
		return nil
	}
	path := n.nearest()
	set := s.watching(path, n, l)
	s.d.mu.Unlock()
	if set {
		_, err := call(ctx, s, l, path, func(c *zk.Conn) (struct{}, error) {
			_, _, err := c.Get(path) // wire makes it set the watch
			return struct{}{}, err
		})
		if err != nil {
			s.unwatched(path, l)
			if errors.Is(err, zk.ErrNoNode) {
				return nil // it has left: look again
			}
			return err
		}
	}
	select {
	case <-n.wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave removes the node, whether it is its turn by now or not.
func (t *ticket) Leave(ctx context.Context) error {
	_, err := t.node.remove(ctx)
	return err
}
