package redisbackend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
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
// "address prefix".
const workerEnv = "DISTLOCK_REDIS_WORKER"

func TestMain(m *testing.M) {
	if where := os.Getenv(workerEnv); where != "" {
		var addr, prefix string
		if _, err := fmt.Sscan(where, &addr, &prefix); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		c := redis.NewClient(&redis.Options{Addr: addr})
		conformance.WorkerMain(func(opts ...distlock.Option) (distlock.Locker, error) {
			return New(c, &Options{Prefix: prefix}, opts...)
		})
		_ = c.Close()
		return
	}
	testbed.Main(m)
}

// node is a driver, a client to look at its server with, and the prefix.
type node struct {
	*redisDriver
	raw *redis.Client
	t   testing.TB
}

// ttl is long enough not to end during a test.
const ttl = 30 * time.Second

// open returns a driver on the server at addr, under a prefix of its own unless o
// has one.
func open(t testing.TB, addr string, o *Options, tweak ...func(*redis.Options)) *node {
	t.Helper()
	opt := &redis.Options{Addr: addr}
	for _, f := range tweak {
		f(opt)
	}
	c := redis.NewClient(opt)
	if o == nil {
		o = &Options{}
	}
	if o.Prefix == "" {
		o.Prefix = "t-" + rand.Text()
	}
	d, err := newDriver(c, o)
	if err != nil {
		t.Fatal(err)
	}
	raw := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		_ = c.Close()
		_ = raw.Close()
	})
	return &node{redisDriver: d, raw: raw, t: t}
}

func noRetries(o *redis.Options) { o.MaxRetries = -1 }

// hasty gives a request up soon, so that a lost reply costs the test little.
func hasty(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond }

var owners atomic.Int64

func newOwner() string { return fmt.Sprintf("owner-%016d", owners.Add(1)) }

func request(name string) driver.Request {
	return driver.Request{Name: name, Owner: newOwner(), TTL: ttl, Metadata: "test"}
}

func (n *node) must(req driver.Request) driver.Grant {
	n.t.Helper()
	g, err := n.Acquire(n.t.Context(), req)
	if err != nil {
		n.t.Fatalf("Acquire(%q): %v", req.Name, err)
	}
	return g
}

// held acquires a name that another owner has.
func (n *node) held(req driver.Request) *driver.HeldError {
	n.t.Helper()
	_, err := n.Acquire(n.t.Context(), req)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		n.t.Fatalf("Acquire(%q) = %v, want a HeldError", req.Name, err)
	}
	return held
}

func (n *node) renew(ls ...driver.Lease) []driver.Confirm {
	ks := make([]driver.Kept, len(ls))
	for i, l := range ls {
		ks[i] = l
	}
	return n.keeper.Renew(n.t.Context(), ks)
}

func (n *node) value(name string) redisnode.Value {
	n.t.Helper()
	s, err := n.raw.Get(n.t.Context(), n.layout.Lock(name)).Result()
	if err != nil {
		n.t.Fatalf("GET of the lock key of %q: %v", name, err)
	}
	v, err := redisnode.ParseValue(s)
	if err != nil {
		n.t.Fatalf("lock key of %q holds %q: %v", name, s, err)
	}
	return v
}

func (n *node) pttl(key string) time.Duration {
	n.t.Helper()
	d, err := n.raw.PTTL(n.t.Context(), key).Result()
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

func (n *node) exists(key string) bool {
	n.t.Helper()
	k, err := n.raw.Exists(n.t.Context(), key).Result()
	if err != nil {
		n.t.Fatal(err)
	}
	return k == 1
}

func (n *node) set(key, value string) {
	n.t.Helper()
	if err := n.raw.Set(n.t.Context(), key, value, 0).Err(); err != nil {
		n.t.Fatal(err)
	}
}

func wantPermanent(t testing.TB, err error) {
	t.Helper()
	if _, ok := errors.AsType[*driver.PermanentError](err); !ok {
		t.Fatalf("error is %v, want a PermanentError", err)
	}
}

func wantTransient(t testing.TB, err error) {
	t.Helper()
	var p *driver.PermanentError
	if err == nil || errors.As(err, &p) || errors.Is(err, driver.ErrNotHeld) || errors.Is(err, driver.ErrHeld) {
		t.Fatalf("error is %v, want one that is tried again", err)
	}
}
