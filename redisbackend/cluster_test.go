package redisbackend

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
	"example.com/distlock/internal/testbed"
)

// cluster is a Redis Cluster of three primaries.
type cluster struct {
	t     testing.TB
	addrs []string
	nodes []*redis.Client
	ids   []string
}

const slots = 16384

func newCluster(t testing.TB) *cluster {
	t.Helper()
	servers := testbed.RedisNodes(t, 3, testbed.Own(), testbed.RedisArgs("--cluster-enabled", "yes", "--appendonly", "no"))
	k := &cluster{t: t}
	for i, s := range servers {
		n := redis.NewClient(&redis.Options{Addr: s.Addr()})
		t.Cleanup(func() { _ = n.Close() })
		k.addrs = append(k.addrs, s.Addr())
		k.nodes = append(k.nodes, n)
		k.do(i, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		k.do(i, "CLUSTER", "ADDSLOTSRANGE", slots*i/3, slots*(i+1)/3-1)
		k.ids = append(k.ids, k.do(i, "CLUSTER", "MYID").(string))
	}
	for _, addr := range k.addrs[1:] {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		k.do(0, "CLUSTER", "MEET", host, port)
	}
	for i := range k.nodes {
		eventually(t, "all nodes know the cluster", func() bool {
			info := k.do(i, "CLUSTER", "INFO").(string)
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384") &&
				strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return k
}

func (k *cluster) do(i int, args ...any) any {
	k.t.Helper()
	v, err := k.nodes[i].Do(k.t.Context(), args...).Result()
	if err != nil {
		k.t.Fatalf("%v: %v", args, err)
	}
	return v
}

func (k *cluster) client() *redis.ClusterClient {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: k.addrs})
	k.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (k *cluster) open(prefix string) *redisDriver {
	k.t.Helper()
	d, err := newDriver(k.client(), &Options{Prefix: prefix})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			k.t.Errorf("Close: %v", err)
		}
	})
	if _, err := d.Capabilities(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
	return d
}

// slot returns the slot of a key and the index of its node.
func (k *cluster) slot(key string) (slot int64, node int) {
	slot = k.do(0, "CLUSTER", "KEYSLOT", key).(int64)
	return slot, int(slot) * 3 / slots
}

// nameOn finds a name whose lock is kept by node i.
func (k *cluster) nameOn(i int, l redisnode.Layout) string {
	for n := 0; ; n++ {
		name := fmt.Sprint("name", n)
		if _, on := k.slot(l.Lock(name)); on == i {
			return name
		}
	}
}

func TestCluster(t *testing.T) {
	k := newCluster(t)
	ctx := t.Context()
	d, waiter := k.open("c"), k.open("c")

	// One batch over all shards, and hints from each.
	var ks []driver.Kept
	grants := make(map[string]driver.Grant)
	hints := make(map[string]<-chan struct{})
	for i := range 3 {
		name := k.nameOn(i, d.layout)
		g, err := d.Acquire(ctx, request(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := waiter.Acquire(ctx, request(name)); err == nil {
			t.Fatalf("%s was given twice", name)
		}
		hint, stop, err := waiter.Hints(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		fresh(hint)
		ks, grants[name], hints[name] = append(ks, g.Lease), g, hint
	}
	for _, c := range d.keeper.Renew(ctx, ks) {
		if c.Err != nil {
			t.Error(c.Err)
		}
	}
	waiter.hints.mu.Lock()
	if n := len(waiter.hints.conns); n != 3 {
		t.Errorf("%d subscription connections, want one for each shard", n)
	}
	waiter.hints.mu.Unlock()
	for name, g := range grants {
		if err := g.Lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
		wantHint(t, hints[name], "from the shard of "+name)
	}
}

// As TestPermissionsAsAdvised, with the commands of a Cluster.
func TestPermissionsInACluster(t *testing.T) {
	k := newCluster(t)
	login := func(name, prefix string, rules ...string) (*redisDriver, error) {
		for _, addr := range k.addrs {
			user(t, addr, name, rules...)
		}
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: k.addrs, Username: name, Password: "pw"})
		t.Cleanup(func() { _ = c.Close() })
		d, err := newDriver(c, &Options{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close(context.Background()) })
		_, err = d.Capabilities(t.Context())
		return d, err
	}
	_, err := login("mute", "acl", "~*", "&*", "+@all", "-spublish", "-del")
	wantPermanent(t, err)
	if !strings.Contains(err.Error(), "lacks the permission to run DEL, SPUBLISH:") {
		t.Errorf("without DEL and SPUBLISH: %v", err)
	}
	for i := range k.nodes {
		if n := k.nodes[i].DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%d keys are left on node %d", n, i)
		}
	}
	_, advice, _ := strings.Cut(err.Error(), "ACL rules ")
	advice, _, _ = strings.Cut(advice, " (")
	d, err := login("advised", "acl", strings.Fields(advice)...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range k.nodes {
		name := k.nameOn(i, d.layout)
		g, err := d.Acquire(t.Context(), request(name))
		if err != nil {
			t.Fatal(err)
		}
		_, stop, err := d.Hints(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		stop()
		if c := d.keeper.Renew(t.Context(), []driver.Kept{g.Lease})[0]; c.Err != nil {
			t.Error(c.Err)
		}
		if err := g.Lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A slot moves to another shard while a lock in it is held and waited for.
func TestClusterSlotMoves(t *testing.T) {
	k := newCluster(t)
	ctx := t.Context()
	d, waiter := k.open("c"), k.open("c")
	name := k.nameOn(0, d.layout)
	g, err := d.Acquire(ctx, request(name))
	if err != nil {
		t.Fatal(err)
	}
	hint, stop, err := waiter.Hints(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	fresh(hint)
	renew := func(when string) {
		t.Helper()
		if c := d.keeper.Renew(ctx, []driver.Kept{g.Lease})[0]; c.Err != nil {
			t.Errorf("renewal %s: %v", when, c.Err)
		}
	}

	key := d.layout.Lock(name)
	slot, _ := k.slot(key)
	const from, to = 0, 1
	k.do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", k.ids[from])
	k.do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", k.ids[to])
	renew("before the keys move")
	host, port, _ := net.SplitHostPort(k.addrs[to])
	k.do(from, "MIGRATE", host, port, key, 0, 5000)
	renew("between the keys' move and the slot's")
	// An acquire has several keys, some of which have moved: no answer about the
	// lock, but an error that is tried again.
	_, err = waiter.Acquire(ctx, request(name))
	wantTransient(t, err)
	k.do(from, "MIGRATE", host, port, d.layout.Clock(name), 0, 5000)
	for _, i := range []int{to, from, 2} {
		k.do(i, "CLUSTER", "SETSLOT", slot, "NODE", k.ids[to])
	}
	renew("after the slot's move")
	wantHint(t, hint, "after the move")
	ch := d.layout.Hints(name)
	eventually(t, "the waiter listens to the new shard", func() bool {
		n, err := k.nodes[to].PubSubShardNumSub(ctx, ch).Result()
		return err == nil && n[ch] == 1
	})
	fresh(hint)
	if _, err := waiter.Acquire(ctx, request(name)); err == nil {
		t.Error("the lock was given twice")
	}
	if err := g.Lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	wantHint(t, hint, "from the new shard")
	next, err := waiter.Acquire(ctx, request(name))
	if err != nil || next.Number <= g.Number {
		t.Errorf("after the move: %+v, %v, want a number above %d", next, err, g.Number)
	}
}

func TestConformanceOnACluster(t *testing.T) {
	k := newCluster(t)
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		return &clusterHarness{k, "c-" + rand.Text()}
	})
}

type clusterHarness struct {
	k      *cluster
	prefix string
}

func (h *clusterHarness) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: h.k.addrs, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	l, err := New(c, &Options{Prefix: h.prefix}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (h *clusterHarness) Capabilities() driver.Capabilities { return capabilities }

func (h *clusterHarness) Expire(t testing.TB, name string) {
	t.Helper()
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: h.k.addrs})
	defer c.Close()
	if n, err := c.Del(t.Context(), redisnode.Layout{Prefix: h.prefix}.Lock(name)).Result(); err != nil || n != 1 {
		t.Fatalf("removing the lock %q: %d keys, %v", name, n, err)
	}
}
