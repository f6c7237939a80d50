package bench

import (
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
	"example.com/distlock/membackend"
)

// BenchmarkLock locks and unlocks on every backend, on servers that it starts
// itself, in the same set-up as Run.
//
//	go test -run '^$' -bench . ./bench
//	go test -run '^$' -bench '/backend=(redis|etcd)$' -count 10 ./bench | benchstat -col /backend -
//
// What an op and the metrics are, see conformance.Bench; to its loads comes one
// with as many names as Run uses.
func BenchmarkLock(b *testing.B) {
	loads := append(conformance.Loads(), conformance.Load{Clients: manyContenders, Keys: manyContenders, Local: true})
	for _, backend := range Backends {
		b.Run("backend="+backend, func(b *testing.B) {
			s := &target{backend: backend, store: membackend.NewStore()}
			if backend != "memory" {
				s = serve(b, backend)
			}
			for _, l := range loads {
				b.Run(l.String(), func(b *testing.B) { l.Bench(b, harness{s}) })
			}
		})
	}
}

// harness lets conformance make Lockers on a target.
type harness struct{ s *target }

func (h harness) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	c, err := h.s.dial(append([]distlock.Option{distlock.WithTTL(10 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // nothing is held any more
	return c
}

func (h harness) Capabilities() driver.Capabilities {
	return driver.Capabilities{Backend: h.s.backend, Fencing: true}
}
