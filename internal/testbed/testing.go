package testbed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// shared is what the tests of one binary have in common.
var shared struct {
	mu     sync.Mutex
	bed    *Bed
	err    error
	groups map[string]*sharedGroup
}

type sharedGroup struct {
	once sync.Once
	g    *group
	err  error
}

// Redis gives the test one Redis server.
func Redis(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return RedisNodes(t, 1, opts...)[0]
}

// RedisNodes gives the test n Redis servers that know nothing of each other.
func RedisNodes(t testing.TB, n int, opts ...Option) []*Server {
	t.Helper()
	return serve(t, fmt.Sprintf("redis nodes=%d", n), opts, func(ctx context.Context, b *Bed, o options) (*group, error) {
		return b.redisNodes(ctx, n, o)
	}).servers
}

// RedisPair gives the test a Redis server and a replica of it.
func RedisPair(t testing.TB, opts ...Option) (primary, replica *Server) {
	t.Helper()
	g := serve(t, "redis pair", opts, func(ctx context.Context, b *Bed, o options) (*group, error) {
		return b.redisPair(ctx, o)
	})
	return g.servers[0], g.servers[1]
}

// ZooKeeper gives the test one ZooKeeper server (n = 1) or an ensemble of n.
func ZooKeeper(t testing.TB, n int, opts ...Option) *Cluster {
	t.Helper()
	return serve(t, fmt.Sprintf("zookeeper %d", n), opts, func(ctx context.Context, b *Bed, o options) (*group, error) {
		return b.zooKeeper(ctx, n, o)
	}).cluster
}

// Etcd gives the test one etcd server (n = 1) or a cluster of n.
func Etcd(t testing.TB, n int, opts ...Option) *Cluster {
	t.Helper()
	return serve(t, fmt.Sprintf("etcd %d", n), opts, func(ctx context.Context, b *Bed, o options) (*group, error) {
		return b.etcd(ctx, n, o)
	}).cluster
}

// Name returns a lock name that no other test, run or binary uses.
func Name(t testing.TB) string {
	return notInName.ReplaceAllString(t.Name(), "-") + "-" + rand.Text()[:10]
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9-]+`)

// sharedBed opens the bed of this test binary at its first use.
func sharedBed() (*Bed, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.bed == nil && shared.err == nil {
		shared.bed, shared.err = Open(context.Background(), Config{})
		shared.groups = make(map[string]*sharedGroup)
	}
	return shared.bed, shared.err
}

func serve(t testing.TB, what string, opts []Option, start func(context.Context, *Bed, options) (*group, error)) *group {
	t.Helper()
	b, err := sharedBed()
	if err != nil {
		giveUp(t, err)
	}
	o := b.options(opts)
	if o.own {
		if b.provider == nil {
			giveUp(t, &MissingError{
				What: "servers of the test's own",
				Why:  "external servers cannot be stopped and started",
				Help: "choose another DISTLOCK_TESTBED for this test",
			})
		}
		g, err := start(t.Context(), b, o)
		if err != nil {
			giveUp(t, err)
		}
		t.Cleanup(func() {
			t.Helper()
			if t.Failed() {
				for _, s := range g.servers {
					t.Logf("%s at %s, the end of its log:\n%s", s.kind, s.addr, s.Logs())
				}
			}
			if err := g.close(); err != nil {
				t.Error(err)
			}
		})
		return g
	}
	key := what + " " + o.key()
	shared.mu.Lock()
	sg := shared.groups[key]
	if sg == nil {
		sg = &sharedGroup{}
		shared.groups[key] = sg
	}
	shared.mu.Unlock()
	sg.once.Do(func() {
		// Not the context of the test that happens to come first.
		if sg.g, sg.err = start(context.Background(), b, o); sg.err == nil {
			for _, s := range sg.g.servers {
				s.shared = true
			}
		}
	})
	if sg.err != nil {
		giveUp(t, sg.err)
	}
	return sg.g
}

// giveUp skips a test for which something has to be installed, unless the
// environment says that everything has to be there; else it fails the test.
func giveUp(t testing.TB, err error) {
	t.Helper()
	var missing *MissingError
	if errors.As(err, &missing) && os.Getenv("DISTLOCK_REQUIRE_SERVERS") != "1" {
		t.Skip(err)
	}
	t.Fatal(err)
}

// Main is the body of TestMain for packages that use servers: it runs the tests,
// stops the shared servers, fails if a goroutine is left, and exits. opts are for
// goroutines that a package cannot end.
func Main(m *testing.M, opts ...goleak.Option) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stopped := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-signals:
			fmt.Fprintf(os.Stderr, "testbed: %v: stopping the servers\n", s)
			_ = closeShared() // what is left is the janitor's
			os.Exit(130)
		case <-stopped:
		}
	}()
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	signal.Stop(signals)
	close(stopped)
	<-ended
	if code == 0 {
		if err := goleak.Find(opts...); err != nil {
			fmt.Fprintln(os.Stderr, "testbed: goroutines are left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func closeShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.bed == nil {
		return nil
	}
	return shared.bed.Close()
}
