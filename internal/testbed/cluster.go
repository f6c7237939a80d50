package testbed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// Cluster is one or several servers that are one service.
type Cluster struct {
	servers []*Server
	leads   func(ctx context.Context, addr string) (bool, error)
	cut     func(*Server) (heal func(), err error) // nil for external servers
}

var (
	errNotMember   = errors.New("testbed: the server is no member of this cluster")
	errNotCuttable = fmt.Errorf("testbed: the members are connected directly; ask for testbed.Own() or testbed.Cuttable(): %w", errors.ErrUnsupported)
)

// Servers returns the members.
func (c *Cluster) Servers() []*Server { return slices.Clone(c.servers) }

// Addrs returns the members' host:port addresses for clients.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.servers))
	for i, s := range c.servers {
		addrs[i] = s.addr
	}
	return addrs
}

// Leader returns the member that leads; it waits while there is none.
func (c *Cluster) Leader(t testing.TB) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	s, err := c.FindLeader(ctx)
	check(t, err)
	return s
}

// Cut isolates a member from the other members, not from its clients: nothing
// passes between them, in either direction, and no connection is closed. heal
// ends it (and does nothing when called again).
func (c *Cluster) Cut(t testing.TB, s *Server) (heal func()) {
	t.Helper()
	heal, err := c.Isolate(s)
	check(t, err)
	return heal
}

// FindLeader is Leader without a testing.TB.
func (c *Cluster) FindLeader(ctx context.Context) (*Server, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var errs []error
		for _, s := range c.servers {
			once, cancel := context.WithTimeout(ctx, time.Second)
			ok, err := c.leads(once, s.addr)
			cancel()
			if ok {
				return s, nil
			}
			errs = append(errs, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("testbed: no leader: %w", errors.Join(append(errs, ctx.Err())...))
		}
	}
}

// Isolate is Cut without a testing.TB.
func (c *Cluster) Isolate(s *Server) (heal func(), err error) {
	if c.cut == nil {
		return nil, fmt.Errorf("testbed: cut: external servers cannot be controlled: %w", errors.ErrUnsupported)
	}
	if s.shared {
		return nil, errors.New("testbed: cut: the servers are shared with other tests; ask for testbed.Own()")
	}
	undo, err := c.cut(s)
	if err != nil {
		return nil, err
	}
	done := false
	return func() {
		if !done {
			done = true
			undo()
		}
	}, nil
}
