package testbed_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"

	"example.com/distlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func redisClient(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr:        addr,
		MaxRetries:  -1,
		DialTimeout: time.Second,
		ReadTimeout: 500 * time.Millisecond,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestSharedRedisIsStartedOnce(t *testing.T) {
	addrs := make([]string, 2)
	t.Run("group", func(t *testing.T) {
		for i := range addrs {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				s := testbed.Redis(t)
				addrs[i] = s.Addr()
				if err := redisClient(t, s.Addr()).Set(t.Context(), testbed.Name(t), "v", time.Minute).Err(); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
	if addrs[0] != addrs[1] {
		t.Errorf("two tests got %v", addrs)
	}
}

func TestRedisNodesAreApart(t *testing.T) {
	nodes := testbed.RedisNodes(t, 5)
	key := testbed.Name(t)
	if err := redisClient(t, nodes[0].Addr()).Set(t.Context(), key, "v", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{nodes[0].Addr(): true}
	for _, s := range nodes[1:] {
		seen[s.Addr()] = true
		if n, err := redisClient(t, s.Addr()).Exists(t.Context(), key).Result(); err != nil || n != 0 {
			t.Errorf("%s: exists = %d, %v", s.Addr(), n, err)
		}
	}
	if len(seen) != 5 {
		t.Errorf("addresses: %v", seen)
	}
}

func TestZooKeeper(t *testing.T) {
	c := testbed.ZooKeeper(t, 1)
	conn := zkConn(t, c.Addrs())
	if _, err := conn.Create("/"+testbed.Name(t), nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if c.Leader(t) != c.Servers()[0] {
		t.Error("a single server is not its own leader")
	}
}

func zkConn(t *testing.T, addrs []string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect(addrs, 4*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return conn
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no ZooKeeper session")
		}
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func TestEtcd(t *testing.T) {
	c := testbed.Etcd(t, 1)
	if err := etcdPut(t, c.Addrs(), testbed.Name(t), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if c.Leader(t) != c.Servers()[0] {
		t.Error("a single server is not its own leader")
	}
}

func etcdPut(t *testing.T, addrs []string, key string, timeout time.Duration) error {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err = client.Put(ctx, key, "v")
	return err
}

func TestSharedServersCannotBeStopped(t *testing.T) {
	s := testbed.Redis(t)
	for what, err := range map[string]error{
		"pause":   s.Fault().Pause(t.Context()),
		"kill":    s.Fault().Kill(t.Context()),
		"restart": s.Fault().Restart(t.Context(), true),
	} {
		if err == nil || !strings.Contains(err.Error(), "testbed.Own()") {
			t.Errorf("%s: %v, want an error that names testbed.Own()", what, err)
		}
	}
}

func TestRedisFaults(t *testing.T) {
	t.Parallel()
	s := testbed.Redis(t, testbed.Own())
	c := redisClient(t, s.Addr())
	ctx := t.Context()
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}

	s.Pause(t)
	if err := c.Ping(ctx).Err(); err == nil {
		t.Error("a paused server answered")
	}
	s.Resume(t)
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("after Resume: %v", err)
	}

	s.Kill(t)
	if conn, err := net.Dial("tcp", s.Addr()); err == nil {
		conn.Close()
		t.Error("a killed server accepts connections")
	}
	s.Restart(t, true)
	if got, err := c.Get(ctx, "k").Result(); got != "v" {
		t.Errorf("after a restart with data: %q, %v", got, err)
	}
	s.Restart(t, false)
	if got, err := c.Get(ctx, "k").Result(); err != redis.Nil {
		t.Errorf("after a restart without data: %q, %v", got, err)
	}
}

func TestZooKeeperRestart(t *testing.T) {
	t.Parallel()
	c := testbed.ZooKeeper(t, 1, testbed.Own())
	s, path := c.Servers()[0], "/kept"
	conn := zkConn(t, c.Addrs())
	if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for _, keep := range []bool{true, false} {
		s.Restart(t, keep)
		conn := zkConn(t, c.Addrs())
		if ok, _, err := conn.Exists(path); ok != keep || err != nil {
			t.Errorf("restart with data kept = %v: the node exists: %v, %v", keep, ok, err)
		}
		conn.Close()
	}
}

func TestEtcdRestart(t *testing.T) {
	t.Parallel()
	c := testbed.Etcd(t, 1, testbed.Own())
	s := c.Servers()[0]
	if err := etcdPut(t, c.Addrs(), "k", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, keep := range []bool{true, false} {
		s.Restart(t, keep)
		client, err := clientv3.New(clientv3.Config{Endpoints: c.Addrs(), Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.Get(t.Context(), "k")
		client.Close()
		if err != nil || (len(got.Kvs) == 1) != keep {
			t.Errorf("restart with data kept = %v: %v, %v", keep, got, err)
		}
	}
}
