package testbed_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-zookeeper/zk"

	"example.com/distlock/internal/testbed"
)

// eventually waits for a condition with a deadline.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > within {
			t.Fatalf("after %v: still not %s", within, what)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	return time.Since(start)
}

func TestRedisPair(t *testing.T) {
	t.Parallel()
	primary, replica := testbed.RedisPair(t, testbed.Own())
	p, r := redisClient(t, primary.Addr()), redisClient(t, replica.Addr())
	ctx := t.Context()
	has := func(key string) func() bool {
		return func() bool { return r.Exists(ctx, key).Val() == 1 }
	}
	if err := p.Set(ctx, "a", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "replicated", has("a"))

	replica.Link().Cut()
	if err := p.Set(ctx, "b", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // the time in which it would have arrived
	if has("b")() {
		t.Error("a write reached the replica over a link that is cut")
	}
	replica.Link().Heal()
	eventually(t, 5*time.Second, "replicated after Heal", has("b"))

	replica.Promote(t)
	if err := r.Set(ctx, "c", "v", 0).Err(); err != nil {
		t.Errorf("write to the promoted replica: %v", err)
	}
}

func TestZooKeeperEnsemble(t *testing.T) {
	t.Parallel()
	c := testbed.ZooKeeper(t, 3, testbed.Own())
	leader := c.Leader(t)
	others := without(c.Servers(), leader)
	name := "/" + testbed.Name(t)

	heal := c.Cut(t, leader)
	var next *testbed.Server
	took := eventually(t, 30*time.Second, "a new leader among the others", func() bool {
		next = leaderOf(t, others, func(ctx context.Context, s *testbed.Server) bool { return zkMode(ctx, s) == "leader" })
		return next != nil
	})
	t.Logf("new leader %v after the cut", took)
	conn := zkConn(t, []string{others[0].Addr(), others[1].Addr()})
	if _, err := conn.Create(name, []byte("v"), 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatalf("write to the majority: %v", err)
	}
	eventually(t, 15*time.Second, "out of service: the old leader", func() bool { return zkMode(t.Context(), leader) == "" })
	// It finds no way round the cut while it looks for the others.
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if mode := zkMode(t.Context(), leader); mode != "" {
			t.Fatalf("the isolated member is %s", mode)
		}
	}

	heal()
	took = eventually(t, 30*time.Second, "back in the ensemble: the old leader", func() bool { return zkMode(t.Context(), leader) == "follower" })
	t.Logf("follower again %v after Heal", took)
	back := zkConn(t, []string{leader.Addr()})
	if _, err := back.Sync(name); err != nil {
		t.Fatal(err)
	}
	if data, _, err := back.Get(name); string(data) != "v" {
		t.Errorf("the healed member reads %q, %v", data, err)
	}

	leader.Kill(t)
	leader.Restart(t, false)
	again := zkConn(t, []string{leader.Addr()})
	if data, _, err := again.Get(name); string(data) != "v" {
		t.Errorf("a member that came back empty reads %q, %v", data, err)
	}
}

func without(all []*testbed.Server, one *testbed.Server) []*testbed.Server {
	var rest []*testbed.Server
	for _, s := range all {
		if s != one {
			rest = append(rest, s)
		}
	}
	return rest
}

func leaderOf(t *testing.T, servers []*testbed.Server, leads func(context.Context, *testbed.Server) bool) *testbed.Server {
	t.Helper()
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		ok := leads(ctx, s)
		cancel()
		if ok {
			return s
		}
	}
	return nil
}

func zkMode(ctx context.Context, s *testbed.Server) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return ""
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return ""
	}
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return ""
	}
	text, _ := io.ReadAll(conn) // a part of the answer may do
	_, mode, _ := strings.Cut(string(text), "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}

func TestEtcdCluster(t *testing.T) {
	t.Parallel()
	c := testbed.Etcd(t, 3, testbed.Own())
	leader := c.Leader(t)
	others := without(c.Servers(), leader)
	addrs := []string{others[0].Addr(), others[1].Addr()}

	heal := c.Cut(t, leader)
	took := eventually(t, 20*time.Second, "a new leader among the others", func() bool {
		return leaderOf(t, others, etcdLeads) != nil
	})
	t.Logf("new leader %v after the cut", took)
	if err := etcdPut(t, addrs, "k", 5*time.Second); err != nil {
		t.Fatalf("write to the majority: %v", err)
	}
	if err := etcdPut(t, []string{leader.Addr()}, "other", time.Second); err == nil {
		t.Error("the isolated member committed a write")
	}
	st, err := etcdStatus(t.Context(), leader)
	if err != nil {
		t.Fatal(err)
	}
	if st.Leader != 0 && st.Leader != st.Header.MemberId {
		t.Error("the isolated member has heard of the new leader")
	}

	heal()
	start := time.Now()
	if err := etcdPut(t, []string{leader.Addr()}, "k2", 20*time.Second); err != nil {
		t.Fatalf("write through the healed member: %v", err)
	}
	t.Logf("the member writes again %v after Heal", time.Since(start))

	// A follower that is cut: everything it sends goes to others' proxies.
	leader = c.Leader(t)
	follower := without(c.Servers(), leader)[0]
	heal = c.Cut(t, follower)
	defer heal()
	eventually(t, 20*time.Second, "without a leader: the isolated follower", func() bool {
		return etcdPut(t, []string{follower.Addr()}, "k3", time.Second) != nil
	})
	if c.Leader(t) != leader {
		t.Error("the cut of a follower unseated the leader")
	}
	if err := follower.Fault().Restart(t.Context(), false); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("restart without data: %v, want ErrUnsupported", err)
	}
}

func etcdLeads(ctx context.Context, s *testbed.Server) bool {
	st, err := etcdStatus(ctx, s)
	return err == nil && st.Leader != 0 && st.Leader == st.Header.MemberId
}

func etcdStatus(ctx context.Context, s *testbed.Server) (*clientv3.StatusResponse, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Status(ctx, s.Addr())
}

func TestSharedEnsembles(t *testing.T) {
	t.Parallel()
	z, e := testbed.ZooKeeper(t, 3), testbed.Etcd(t, 3)
	if len(z.Addrs()) != 3 || len(e.Addrs()) != 3 {
		t.Fatalf("members: %v, %v", z.Addrs(), e.Addrs())
	}
	if z != testbed.ZooKeeper(t, 3) {
		t.Error("asked again, another ensemble was given")
	}
	if _, err := z.Isolate(z.Servers()[0]); err == nil {
		t.Error("a shared ensemble was cut")
	}
}
