package conformance_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
	"example.com/distlock/membackend"
)

// TestMembackend runs the suite on every kind of backend that membackend can be,
// and watches that the core keeps the contract with drivers meanwhile.
func TestMembackend(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]membackend.Options{
		"queueing":            {},
		"polling":             {Polling: true},
		"quiet":               {Polling: true, Quiet: true},
		"shared":              {SharedFate: true},
		"shared-single-ttl":   {SharedFate: true, SingleTTL: true},
		"shared-polling":      {SharedFate: true, Polling: true},
		"bounded-coarse-ttls": {MinTTL: 200 * time.Millisecond, MaxTTL: time.Hour, TTLQuantum: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) conformance.Harness {
				return newMemory(o, membackend.Strict(func(violation string) {
					t.Errorf("driver contract: %s", violation)
				}))
			})
		})
	}
}

// TestUnfenced runs the suite on a backend without fencing tokens.
func TestUnfenced(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(*testing.T) conformance.Harness { return unfenced() })
}

// memory is the Harness of membackend.
type memory struct {
	opts  membackend.Options
	store *membackend.Store
	wrap  func(driver.Driver) driver.Driver

	together bool // Expire ends all that the holder's Locker has

	mu      sync.Mutex
	lockers int
	names   map[distlock.Locker]string
}

func newMemory(o membackend.Options, opts ...membackend.StoreOption) *memory {
	return &memory{
		opts: o, store: membackend.NewStore(opts...), names: map[distlock.Locker]string{},
		wrap: func(d driver.Driver) driver.Driver { return d },
	}
}

func (m *memory) driver(t testing.TB) (d driver.Driver, name string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.opts
	m.lockers++
	o.Name = fmt.Sprintf("locker%d", m.lockers)
	d, err := membackend.NewDriver(m.store, &o)
	if err != nil {
		t.Fatal(err)
	}
	return m.wrap(d), o.Name
}

func (m *memory) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	d, name := m.driver(t)
	l, err := distlock.New(d, opts...)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names[l] = name
	return l
}

func (m *memory) OpenDriver(t testing.TB) driver.Driver {
	t.Helper()
	d, _ := m.driver(t)
	return d
}

func (m *memory) Capabilities() driver.Capabilities {
	d, err := membackend.NewDriver(membackend.NewStore(), &m.opts)
	if err != nil {
		panic(err) // the options are this file's
	}
	caps, err := m.wrap(d).Capabilities(context.Background())
	if err != nil {
		panic(err)
	}
	return caps
}

func (m *memory) Expire(t testing.TB, name string) {
	t.Helper()
	if !m.opts.SharedFate && !m.together {
		if !m.store.Expire(name) {
			t.Fatalf("nobody holds %q", name)
		}
		return
	}
	before := fmt.Sprintf("lock %q held by ", name)
	for _, line := range m.store.Leftovers() {
		if rest, ok := strings.CutPrefix(line, before); ok {
			holder, _, _ := strings.Cut(rest, " ")
			m.store.ExpireAll(holder)
			return
		}
	}
	t.Fatalf("nobody holds %q", name)
}

func (m *memory) Delay(t testing.TB, l distlock.Locker, d time.Duration) (stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.store.Inject(membackend.Fault{Locker: m.names[l], Kind: membackend.SlowReply, Delay: d, Times: -1}).Remove
}

func (m *memory) Partition(t testing.TB, l distlock.Locker) (heal func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.store.Partition(m.names[l])
}
