package redisbackend

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
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
	conformance.Run(t, func(t *testing.T) conformance.Harness { return newHarness(t, testbed.Redis(t)) })
}

// TestConformanceAcrossRestarts runs the cases that restart the server. Each has
// a server of its own.
func TestConformanceAcrossRestarts(t *testing.T) {
	conformance.RunRestarts(t, capabilities, func(t *testing.T) conformance.Harness {
		srv := testbed.Redis(t, testbed.Own())
		return &restartHarness{newHarness(t, srv), srv}
	})
}

// harness is one prefix on a Redis server.
type harness struct {
	srv    *testbed.Server
	prefix string
	admin  *redis.Client

	mu      sync.Mutex
	proxies map[distlock.Locker]*faultproxy.Proxy
}

var (
	_ conformance.DriverOpener = (*harness)(nil)
	_ conformance.Expirer      = (*harness)(nil)
	_ conformance.Partitioner  = (*harness)(nil)
	_ conformance.Delayer      = (*harness)(nil)
	_ conformance.Spawner      = (*harness)(nil)
	_ conformance.Restarter    = (*restartHarness)(nil)
)

func newHarness(t testing.TB, srv *testbed.Server) *harness {
	h := &harness{
		srv:     srv,
		prefix:  "c-" + rand.Text(),
		admin:   redis.NewClient(&redis.Options{Addr: srv.Addr()}),
		proxies: make(map[distlock.Locker]*faultproxy.Proxy),
	}
	t.Cleanup(func() { _ = h.admin.Close() })
	return h
}

// NewLocker puts a proxy in front of each Locker, which Partition cuts. The
// client gives silent requests up soon, so that closing does not wait for them.
func (h *harness) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	proxy := h.srv.Proxy(t)
	c := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: time.Second, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	l, err := New(c, &Options{Prefix: h.prefix}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.proxies[l] = proxy
	return l
}

func (h *harness) OpenDriver(t testing.TB) driver.Driver {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: h.srv.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	d, err := newDriver(c, &Options{Prefix: h.prefix})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (h *harness) Capabilities() driver.Capabilities { return capabilities }

func (h *harness) Expire(t testing.TB, name string) {
	t.Helper()
	if n, err := h.admin.Del(t.Context(), redisnode.Layout{Prefix: h.prefix}.Lock(name)).Result(); err != nil || n != 1 {
		t.Fatalf("removing the lock %q: %d keys, %v", name, n, err)
	}
}

func (h *harness) Partition(t testing.TB, l distlock.Locker) (heal func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.proxies[l]
	p.Cut()
	return p.Heal
}

// Delay slows both directions down.
func (h *harness) Delay(t testing.TB, l distlock.Locker, d time.Duration) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.proxies[l]
	p.Delay(d)
	return p.Heal
}

func (h *harness) Worker(t testing.TB) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", workerEnv, h.srv.Addr(), h.prefix))
	return cmd
}

type restartHarness struct {
	*harness
	srv *testbed.Server
}

func (h *restartHarness) Restart(t testing.TB) { h.srv.Restart(t, true) }
