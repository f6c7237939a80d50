package etcdbackend

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

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
	"example.com/distlock/internal/faultproxy"
	"example.com/distlock/internal/testbed"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness { return newHarness(t, testbed.Etcd(t, 1)) })
}

// TestConformanceOnCluster runs some cases on three members, of which each
// Locker knows all.
func TestConformanceOnCluster(t *testing.T) {
	for _, c := range conformance.Cases() {
		switch c.Area() {
		case "exclusion", "fairness", "fencing", "loss":
			h := newHarness(t, testbed.Etcd(t, 3))
			if claims, abilities := c.Missing(h); len(claims)+len(abilities) > 0 {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				c.Run(t, h)
			})
		}
	}
}

// TestConformanceAcrossRestarts runs the cases that restart the server. Each has
// a server of its own.
func TestConformanceAcrossRestarts(t *testing.T) {
	conformance.RunRestarts(t, capabilities, func(t *testing.T) conformance.Harness {
		return &restartHarness{newHarness(t, testbed.Etcd(t, 1, testbed.Own()))}
	})
}

// harness is one prefix on an etcd cluster.
type harness struct {
	cluster *testbed.Cluster
	layout  layout
	admin   *clientv3.Client

	mu      sync.Mutex
	proxies map[distlock.Locker][]*faultproxy.Proxy
}

var (
	_ conformance.DriverOpener = (*harness)(nil)
	_ conformance.Expirer      = (*harness)(nil)
	_ conformance.Partitioner  = (*harness)(nil)
	_ conformance.Delayer      = (*harness)(nil)
	_ conformance.Spawner      = (*harness)(nil)
	_ conformance.Restarter    = (*restartHarness)(nil)
)

func newHarness(t testing.TB, c *testbed.Cluster) *harness {
	return &harness{
		cluster: c,
		layout:  layout{"c-" + rand.Text() + "/"},
		admin:   connect(t, c.Addrs(), nil),
		proxies: map[distlock.Locker][]*faultproxy.Proxy{},
	}
}

// NewLocker puts a proxy in front of each member for each Locker, which
// Partition cuts.
func (h *harness) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	var ps []*faultproxy.Proxy
	var through []string
	for _, s := range h.cluster.Servers() {
		p := s.Proxy(t)
		ps, through = append(ps, p), append(through, p.Addr())
	}
	l, err := New(connect(t, through, nil), &Options{Prefix: h.layout.prefix}, opts...)
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
	b, err := newBackend(connect(t, h.cluster.Addrs(), nil), &Options{Prefix: h.layout.prefix})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *harness) Capabilities() driver.Capabilities {
	b, err := newBackend(h.admin, &Options{Prefix: h.layout.prefix})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	caps, err := b.Capabilities(ctx)
	if err != nil {
		panic(err)
	}
	if err := b.Close(ctx); err != nil {
		panic(err)
	}
	return caps
}

// Expire revokes the holder's lease.
func (h *harness) Expire(t testing.TB, name string) {
	t.Helper()
	r, err := h.admin.Get(t.Context(), h.layout.dir(name), clientv3.WithFirstCreate()...)
	if err != nil || len(r.Kvs) != 1 {
		t.Fatalf("the holder of %q: %v, %v", name, r, err)
	}
	if _, err := h.admin.Revoke(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
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

const workerEnv = "DISTLOCK_ETCD_WORKER"

func (h *harness) Worker(t testing.TB) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", workerEnv, strings.Join(h.cluster.Addrs(), ","), h.layout.prefix))
	return cmd
}

// worker is the main of the process that Worker starts.
func worker(env string) {
	addrs, prefix, _ := strings.Cut(env, " ")
	conformance.WorkerMain(func(opts ...distlock.Option) (distlock.Locker, error) {
		cli, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(addrs, ","), Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		return New(cli, &Options{Prefix: prefix}, opts...)
	})
}

type restartHarness struct{ *harness }

func (h *restartHarness) Restart(t testing.TB) {
	for _, s := range h.cluster.Servers() {
		s.Restart(t, true)
	}
}
