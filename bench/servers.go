package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"example.com/distlock/internal/testbed"
	"example.com/distlock/membackend"
)

// servers starts what is measured.
type servers struct {
	provider string
	log      io.Writer
	bed      *testbed.Bed // opened when it is first needed
}

// name is the provider that was chosen.
func (s *servers) name() string {
	if s.bed == nil {
		return "none"
	}
	return s.bed.Provider()
}

func (s *servers) close() error {
	if s.bed == nil {
		return nil
	}
	return s.bed.Close()
}

// start runs the servers of one backend: Redis as most do, in memory; ZooKeeper
// and etcd as they must to keep their promise, writing to disk before they answer.
func (s *servers) start(ctx context.Context, backend string) (t *target, err error) {
	t = &target{backend: backend}
	if backend == "memory" {
		t.store = membackend.NewStore()
		t.durability = "nothing is kept"
		return t, nil
	}
	if s.bed == nil {
		s.bed, err = testbed.Open(ctx, testbed.Config{Provider: s.provider, Log: s.log})
		if err != nil {
			return nil, err
		}
	}
	var list []*testbed.Server
	durability := "in memory, no persistence"
	switch backend {
	case "redis":
		var one *testbed.Server
		if one, err = s.bed.Redis(ctx); err == nil {
			list = []*testbed.Server{one}
		}
	case "redlock":
		list, err = s.bed.RedisNodes(ctx, 5)
	case "zookeeper":
		list, err = members(s.bed.ZooKeeper(ctx, 3, testbed.Durable()))
		durability = "each write on disk (fsync) before its answer"
	case "etcd":
		list, err = members(s.bed.Etcd(ctx, 3, testbed.Durable()))
		durability = "each write on disk (fsync) before its answer"
	default:
		err = fmt.Errorf("unknown backend %q", backend)
	}
	if err != nil {
		return nil, err
	}
	for _, server := range list {
		t.addrs = append(t.addrs, server.Addr())
	}
	if s.bed.Provider() == "external" {
		t.durability = "persistence as its owner set it"
		return t, nil
	}
	t.durability = durability
	t.kill = func(ctx context.Context, addr string) error {
		return list[slices.Index(t.addrs, addr)].Fault().Kill(ctx)
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
