package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"example.com/distlock/internal/testbed"
	"example.com/distlock/membackend"
)

// servers starts what is measured. Redis runs as most do, in memory, and
// ZooKeeper and etcd as they must, writing to disk before they answer; that takes
// two beds, opened when they are first needed.
type servers struct {
	provider string
	log      io.Writer
	beds     map[bool]*testbed.Bed // by durable
}

func (s *servers) bed(ctx context.Context, durable bool) (*testbed.Bed, error) {
	if b := s.beds[durable]; b != nil {
		return b, nil
	}
	b, err := testbed.Open(ctx, testbed.Config{Provider: s.provider, Durable: durable, Log: s.log})
	if err != nil {
		return nil, err
	}
	if s.beds == nil {
		s.beds = map[bool]*testbed.Bed{}
	}
	s.beds[durable] = b
	return b, nil
}

// name is the provider that was chosen.
func (s *servers) name() string {
	for _, b := range s.beds {
		return b.Provider()
	}
	return "none"
}

func (s *servers) close() error {
	var errs []error
	for _, b := range s.beds {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// start runs the servers of one backend.
func (s *servers) start(ctx context.Context, backend string) (*target, error) {
	t := &target{backend: backend}
	if backend == "memory" {
		t.store = membackend.NewStore()
		t.durability = "nothing is kept"
		return t, nil
	}
	durable := backend == "zookeeper" || backend == "etcd"
	b, err := s.bed(ctx, durable)
	if err != nil {
		return nil, err
	}
	var list []*testbed.Server
	switch backend {
	case "redis":
		var one *testbed.Server
		if one, err = b.Redis(ctx); err == nil {
			list = []*testbed.Server{one}
		}
	case "redlock":
		list, err = b.RedisNodes(ctx, 5)
	case "zookeeper":
		list, err = members(b.ZooKeeper(ctx, 3))
	case "etcd":
		list, err = members(b.Etcd(ctx, 3))
	default:
		err = fmt.Errorf("unknown backend %q", backend)
	}
	if err != nil {
		return nil, err
	}
	for _, server := range list {
		t.addrs = append(t.addrs, server.Addr())
	}
	external := b.Provider() == "external"
	switch {
	case external:
		t.durability = "persistence as its owner set it"
	case durable:
		t.durability = "each write on disk (fsync) before its answer"
	default:
		t.durability = "in memory, no persistence"
	}
	if !external {
		t.kill = func(ctx context.Context, addr string) error {
			i := slices.Index(t.addrs, addr)
			return list[i].Fault().Kill(ctx)
		}
	}
	return t, nil
}

func members(c *testbed.Cluster, err error) ([]*testbed.Server, error) {
	if err != nil {
		return nil, err
	}
	return c.Servers(), nil
}

// version asks a server of t for its version.
func (t *target) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	switch t.backend {
	case "redis", "redlock":
		c := t.redis(t.addrs[0])
		defer c.Close()
		info, err := c.Info(ctx, "server").Result()
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
				return "Redis " + strings.TrimSpace(v), err
			}
		}
		return "", err
	case "zookeeper":
		status, err := zkStatus(ctx, t.addrs[0])
		v, _, _ := strings.Cut(status["Zookeeper version"], "-")
		return "ZooKeeper " + v, err
	case "etcd":
		c, err := t.etcd()
		if err != nil {
			return "", err
		}
		defer c.Close()
		status, err := c.Status(ctx, t.addrs[0])
		if err != nil {
			return "", err
		}
		return "etcd " + status.Version, nil
	}
	return "", nil
}

// leaderFirst returns the addresses of t with the leader's, where there is one,
// in front.
func (t *target) leaderFirst(ctx context.Context) ([]string, error) {
	leads := func(addr string) (bool, error) { return false, nil }
	switch t.backend {
	case "zookeeper":
		leads = func(addr string) (bool, error) {
			status, err := zkStatus(ctx, addr)
			return status["Mode"] == "leader", err
		}
	case "etcd":
		c, err := t.etcd()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		leads = func(addr string) (bool, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			status, err := c.Status(ctx, addr)
			if err != nil {
				return false, err
			}
			return status.Leader == status.Header.MemberId, nil
		}
	}
	order := slices.Clone(t.addrs)
	for i, addr := range order {
		yes, err := leads(addr)
		if err != nil {
			return nil, err
		}
		if yes {
			order[0], order[i] = order[i], order[0]
		}
	}
	return order, nil
}
