package redlockbackend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
	"example.com/distlock/internal/testbed"
)

// workerEnv makes the test binary a worker process of the conformance suite:
// "address,address,… prefix".
const workerEnv = "DISTLOCK_REDLOCK_WORKER"

func TestMain(m *testing.M) {
	if where := os.Getenv(workerEnv); where != "" {
		work(where)
		return
	}
	testbed.Main(m)
}

func work(where string) {
	var addrs, prefix string
	if _, err := fmt.Sscan(where, &addrs, &prefix); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	clients := dial(strings.Split(addrs, ","))
	conformance.WorkerMain(func(opts ...distlock.Option) (distlock.Locker, error) {
		return New(clients, &Options{Prefix: prefix, NodeTimeout: patientTimeout}, opts...)
	})
	hangUp(clients)
}

// patientTimeout keeps a loaded machine from looking like dead nodes.
const patientTimeout = time.Second

// ttl is long enough not to end during a test.
const ttl = 30 * time.Second

func dial(addrs []string, tweak ...func(*redis.Options)) []redis.UniversalClient {
	var clients []redis.UniversalClient
	for _, addr := range addrs {
		o := &redis.Options{Addr: addr}
		for _, f := range tweak {
			f(o)
		}
		clients = append(clients, redis.NewClient(o))
	}
	return clients
}

func hangUp(clients []redis.UniversalClient) {
	for _, c := range clients {
		_ = c.Close()
	}
}

func addrs(servers []*testbed.Server) []string {
	var a []string
	for _, s := range servers {
		a = append(a, s.Addr())
	}
	return a
}

// rig is a driver, and clients to look at its servers with.
type rig struct {
	*redlockDriver
	raw []*redis.Client
	t   testing.TB
}

// open returns a driver that reaches servers through the given addresses; raw
// clients go to the servers themselves.
func open(t testing.TB, servers []*testbed.Server, through []string, o *Options, tweak ...func(*redis.Options)) *rig {
	t.Helper()
	var opt Options
	if o != nil {
		opt = *o
	}
	if opt.Prefix == "" {
		opt.Prefix = "t-" + rand.Text()
	}
	if opt.NodeTimeout == 0 {
		opt.NodeTimeout = patientTimeout
	}
	clients := dial(through, tweak...)
	d, err := newDriver(clients, &opt)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{redlockDriver: d, t: t}
	for _, s := range servers {
		r.raw = append(r.raw, redis.NewClient(&redis.Options{Addr: s.Addr()}))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		hangUp(clients)
		for _, c := range r.raw {
			_ = c.Close()
		}
	})
	return r
}

// nodes opens a driver on n servers that it shares with other tests.
func nodes(t testing.TB, n int) *rig {
	t.Helper()
	s := testbed.RedisNodes(t, n)
	return open(t, s, addrs(s), nil)
}

// peer returns another driver on the same servers and prefix.
func (r *rig) peer() *rig {
	r.t.Helper()
	var a []string
	for _, c := range r.raw {
		a = append(a, c.Options().Addr)
	}
	p := open(r.t, nil, a, &Options{Prefix: r.opt.Prefix, NodeTimeout: r.opt.NodeTimeout})
	p.raw = r.raw
	return p
}

// hasty gives a request up soon, so that a lost reply costs the test little.
func hasty(o *redis.Options) {
	o.ReadTimeout, o.DialTimeout = 200*time.Millisecond, 200*time.Millisecond
}

func noRetries(o *redis.Options) { o.MaxRetries = -1 }

var owners atomic.Int64

func newOwner() string { return fmt.Sprintf("owner-%016d", owners.Add(1)) }

func request(name string) driver.Request {
	return driver.Request{Name: name, Owner: newOwner(), TTL: ttl, Metadata: "test"}
}

// warm returns when every node has been probed and has a connection to it.
func (r *rig) warm() {
	r.t.Helper()
	if _, err := r.Capabilities(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "all nodes are probed", func() bool { return r.fit() == len(r.nodes) })
}

func (r *rig) must(req driver.Request) driver.Grant {
	r.t.Helper()
	g, err := r.Acquire(r.t.Context(), req)
	if err != nil {
		r.t.Fatalf("Acquire(%q): %v", req.Name, err)
	}
	return g
}

// held acquires a name that another owner has.
func (r *rig) held(req driver.Request) *driver.HeldError {
	r.t.Helper()
	_, err := r.Acquire(r.t.Context(), req)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		r.t.Fatalf("Acquire(%q) = %v, want a HeldError", req.Name, err)
	}
	return held
}

func (r *rig) renew(ls ...driver.Lease) []driver.Confirm {
	r.t.Helper()
	ks := make([]driver.Kept, len(ls))
	for i, l := range ls {
		ks[i] = l
	}
	return r.keeper.Renew(r.t.Context(), ks)
}

func (r *rig) release(l driver.Lease) {
	r.t.Helper()
	if err := l.Release(r.t.Context()); err != nil {
		r.t.Fatalf("Release: %v", err)
	}
}

// value returns what node i has for name, the zero Value if nothing.
func (r *rig) value(i int, name string) redisnode.Value {
	r.t.Helper()
	s, err := r.raw[i].Get(r.t.Context(), r.layout.Lock(name)).Result()
	if errors.Is(err, redis.Nil) {
		return redisnode.Value{}
	}
	if err != nil {
		r.t.Fatal(err)
	}
	v, err := redisnode.ParseValue(s)
	if err != nil {
		r.t.Fatalf("lock key of %q on node %d holds %q: %v", name, i, s, err)
	}
	return v
}

// count returns on how many nodes owner has name; any owner if it is "".
func (r *rig) count(name, owner string) (n int) {
	r.t.Helper()
	for i := range r.raw {
		v := r.value(i, name)
		if v.Owner != "" && (owner == "" || strings.HasPrefix(v.Owner, owner+".")) {
			n++
		}
	}
	return n
}

// occupy gives name on node i to somebody else, who comes first where both have as
// many nodes.
func (r *rig) occupy(i int, name string) {
	r.t.Helper()
	v := redisnode.Value{Owner: "a-rival.1", Since: time.Now(), TTL: ttl}
	if err := r.raw[i].Set(r.t.Context(), r.layout.Lock(name), v.String(), ttl).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// confirmed returns on how many nodes l is known to be.
func confirmed(l driver.Lease) (n int) {
	held := l.(*lease)
	held.mu.Lock()
	defer held.mu.Unlock()
	for _, s := range held.state {
		if s.has == hasIt {
			n++
		}
	}
	return n
}

func (r *rig) del(i int, name string) {
	r.t.Helper()
	if err := r.raw[i].Del(r.t.Context(), r.layout.Lock(name)).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// eventually polls until cond is true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(10 * time.Second)
	defer end.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func permanent(err error) bool {
	var p *driver.PermanentError
	return errors.As(err, &p)
}

// wantQuorum checks that err is a QuorumError, and whether it is permanent.
func wantQuorum(t testing.TB, err error, isPermanent bool) *QuorumError {
	t.Helper()
	var q *QuorumError
	if !errors.As(err, &q) || permanent(err) != isPermanent {
		t.Fatalf("error is %v (permanent: %v), want a QuorumError (permanent: %v)", err, permanent(err), isPermanent)
	}
	if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotHeld) {
		t.Fatalf("%v matches ErrHeld or ErrNotHeld", err)
	}
	return q
}
