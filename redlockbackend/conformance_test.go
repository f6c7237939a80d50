package redlockbackend

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
	"example.com/distlock/internal/faultproxy"
	"example.com/distlock/internal/redisnode"
	"example.com/distlock/internal/testbed"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness { return newHarness(t, testbed.RedisNodes(t, 5)) })
}

// TestConformanceAcrossRestarts runs the cases that restart the servers. Each has
// servers of its own.
func TestConformanceAcrossRestarts(t *testing.T) {
	conformance.RunRestarts(t, capabilities, func(t *testing.T) conformance.Harness {
		return &restartHarness{newHarness(t, testbed.RedisNodes(t, 5, testbed.Own()))}
	})
}

// TestConformanceWithDeadNodes runs some cases with two of five servers that do
// not answer: one refuses, one is silent.
func TestConformanceWithDeadNodes(t *testing.T) {
	for _, c := range conformance.Cases() {
		switch c.Name {
		case "exclusion/counter", "exclusion/stale-unlock-is-harmless", "fencing/grows-over-end-of-lease", "fencing/tokens-grow-under-contention":
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				h := newHarness(t, testbed.RedisNodes(t, 5))
				h.maim = func(ps []*faultproxy.Proxy) {
					ps[1].Refuse()
					ps[3].Cut()
				}
				c.Run(t, h)
			})
		}
	}
}

// harness is one prefix on several Redis servers.
type harness struct {
	servers []*testbed.Server
	prefix  string
	admin   []redis.UniversalClient
	maim    func([]*faultproxy.Proxy) // what is wrong with a Locker's connections from the start

	mu      sync.Mutex
	proxies map[distlock.Locker][]*faultproxy.Proxy
}

var (
	_ conformance.DriverOpener = (*harness)(nil)
	_ conformance.Expirer      = (*harness)(nil)
	_ conformance.Partitioner  = (*harness)(nil)
	_ conformance.Delayer      = (*harness)(nil)
	_ conformance.Spawner      = (*harness)(nil)
	_ conformance.TTLer        = (*harness)(nil)
	_ conformance.Restarter    = (*restartHarness)(nil)
)

func newHarness(t testing.TB, servers []*testbed.Server) *harness {
	h := &harness{
		servers: servers,
		prefix:  "c-" + rand.Text(),
		admin:   dial(addrs(servers)),
		proxies: make(map[distlock.Locker][]*faultproxy.Proxy),
	}
	t.Cleanup(func() { hangUp(h.admin) })
	return h
}

func (h *harness) options() *Options {
	return &Options{Prefix: h.prefix, NodeTimeout: patientTimeout}
}

// NewLocker puts a proxy in front of each node for each Locker, which Partition
// cuts. The clients give silent requests up soon, so that closing does not wait
// for them.
func (h *harness) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	var ps []*faultproxy.Proxy
	var through []string
	for _, s := range h.servers {
		p := s.Proxy(t)
		ps, through = append(ps, p), append(through, p.Addr())
	}
	if h.maim != nil {
		h.maim(ps)
	}
	clients := dial(through, func(o *redis.Options) { o.ReadTimeout, o.ContextTimeoutEnabled = time.Second, true })
	t.Cleanup(func() { hangUp(clients) })
	l, err := New(clients, h.options(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.proxies[l] = ps
	return l
}

func (h *harness) OpenDriver(t testing.TB) driver.Driver {
	t.Helper()
	clients := dial(addrs(h.servers))
	t.Cleanup(func() { hangUp(clients) })
	d, err := newDriver(clients, h.options())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TTL is long enough for a quarter of it, which is what a node has to answer in,
// to be no matter of luck on a loaded machine.
func (h *harness) TTL() time.Duration { return 3 * time.Second }

func (h *harness) Capabilities() driver.Capabilities {
	d, err := newDriver(h.admin, h.options())
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	caps, err := d.Capabilities(ctx)
	if err != nil {
		panic(err)
	}
	if err := d.Close(ctx); err != nil {
		panic(err)
	}
	return caps
}

func (h *harness) Expire(t testing.TB, name string) {
	t.Helper()
	removed := int64(0)
	for _, c := range h.admin {
		n, err := c.Del(t.Context(), redisnode.Layout{Prefix: h.prefix}.Lock(name)).Result()
		if err != nil {
			t.Fatal(err)
		}
		removed += n
	}
	if removed == 0 {
		t.Fatalf("removing the lock %q: no node had it", name)
	}
}

func (h *harness) Partition(t testing.TB, l distlock.Locker) (heal func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ps := h.proxies[l]
	for _, p := range ps {
		p.Cut()
	}
	return func() {
		for _, p := range ps {
			p.Heal()
		}
	}
}

// Delay slows both directions down.
func (h *harness) Delay(t testing.TB, l distlock.Locker, d time.Duration) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ps := h.proxies[l]
	for _, p := range ps {
		p.Delay(d)
	}
	return func() {
		for _, p := range ps {
			p.Heal()
		}
	}
}

func (h *harness) Worker(t testing.TB) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", workerEnv, strings.Join(addrs(h.servers), ","), h.prefix))
	return cmd
}

type restartHarness struct{ *harness }

func (h *restartHarness) Restart(t testing.TB) {
	var wg sync.WaitGroup
	for _, s := range h.servers {
		wg.Go(func() {
			if err := s.Fault().Restart(t.Context(), true); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
