package zkbackend

import (
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
	"example.com/distlock/internal/faultproxy"
	"example.com/distlock/internal/testbed"
)

// workerAddr and workerRoot tell the test binary, started again as another
// process, where to work for the conformance suite.
const (
	workerAddr = "DISTLOCK_ZK_WORKER_ADDR"
	workerRoot = "DISTLOCK_ZK_WORKER_ROOT"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(workerAddr); addr != "" {
		conformance.WorkerMain(func(opts ...distlock.Option) (distlock.Locker, error) {
			return New([]string{addr}, &Options{Root: os.Getenv(workerRoot)}, opts...)
		})
		return
	}
	testbed.Main(m)
}

// harness gives each case a root of its own on a server. Lockers
// connect through a proxy each.
type harness struct {
	server *testbed.Server
	root   string

	mu      sync.Mutex
	lockers map[distlock.Locker]locker
}

type locker struct {
	d     *backend
	proxy *faultproxy.Proxy
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

func newHarness(t testing.TB, c *testbed.Cluster) *harness {
	return &harness{
		server: c.Servers()[0], root: testRoot(t),
		lockers: make(map[distlock.Locker]locker),
	}
}

func (h *harness) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	p := h.server.Proxy(t)
	d, err := newBackend([]string{p.Addr()}, &Options{Root: h.root})
	if err != nil {
		t.Fatal(err)
	}
	l, err := distlock.New(d, opts...)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lockers[l] = locker{d, p}
	return l
}

func (h *harness) OpenDriver(t testing.TB) driver.Driver {
	t.Helper()
	d, err := newBackend([]string{h.server.Addr()}, &Options{Root: h.root})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (h *harness) Capabilities() driver.Capabilities { return capabilities }

// TTL is long enough for a busy machine on which the ensemble has to fsync.
func (h *harness) TTL() time.Duration { return 4 * time.Second }

// Expire closes the holder's session, which takes its password: whoever knows it
// may take the session over.
func (h *harness) Expire(t testing.TB, name string) {
	t.Helper()
	c := admin(t, h.server.Addr())
	dir := layout{h.root}.lock(name)
	children, _, err := c.Children(dir)
	if err != nil {
		t.Fatal(err)
	}
	es := parseEntries(children)
	var first entry
	for i, e := range es {
		if i == 0 || e.before(first) {
			first = e
		}
	}
	_, st, err := c.Get(dir + "/" + first.node)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lockers {
		if s := l.d.testSession(); s != nil && s.id == st.EphemeralOwner {
			expire(t, s, h.server.Addr())
			return
		}
	}
	t.Fatalf("no Locker has session %x", uint64(st.EphemeralOwner))
}

func (h *harness) Partition(t testing.TB, l distlock.Locker) func() {
	t.Helper()
	h.mu.Lock()
	p := h.lockers[l].proxy
	h.mu.Unlock()
	p.Cut()
	return p.Heal
}

// Delay slows both directions down.
func (h *harness) Delay(t testing.TB, l distlock.Locker, d time.Duration) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.lockers[l].proxy
	p.Delay(d)
	return p.Heal
}

func (h *harness) Worker(t testing.TB) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), workerAddr+"="+h.server.Addr(), workerRoot+"="+h.root)
	return cmd
}

type restartHarness struct{ *harness }

func (h *restartHarness) Restart(t testing.TB) { h.server.Restart(t, true) }

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness { return newHarness(t, testbed.ZooKeeper(t, 1)) })
}

// TestConformanceAcrossRestarts runs the cases that restart the server. Each has
// a server of its own.
func TestConformanceAcrossRestarts(t *testing.T) {
	conformance.RunRestarts(t, capabilities, func(t *testing.T) conformance.Harness {
		return &restartHarness{newHarness(t, testbed.ZooKeeper(t, 1, testbed.Own()))}
	})
}
