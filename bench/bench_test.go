package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/internal/testbed"
	"example.com/distlock/membackend"
)

// BenchmarkCycle locks and unlocks. An op is one cycle; clients is how many
// Lockers there are, each with connections of its own, callers how many
// goroutines share them, keys how many names. Servers are started by the
// benchmark, as in Run.
//
//	go test -run '^$' -bench . ./bench
//	go test -run '^$' -bench /backend=redis/ -count 10 ./bench | benchstat -col /callers -
func BenchmarkCycle(b *testing.B) {
	for _, backend := range Backends {
		b.Run("backend="+backend, func(b *testing.B) {
			s := &target{backend: backend, store: membackend.NewStore()}
			if backend != "memory" {
				s = serve(b, backend)
			}
			for _, c := range []struct{ clients, callers, keys int }{
				{1, 1, 1}, // nobody in the way
				{1, manyContenders, manyContenders},
				{hotContenders, hotContenders, 1}, // one name, across Lockers
				{1, hotContenders, 1},             // one name, within a Locker
			} {
				b.Run(fmt.Sprintf("clients=%d/callers=%d/keys=%d", c.clients, c.callers, c.keys), func(b *testing.B) {
					cycle(b, s, c.clients, c.callers, c.keys)
				})
			}
		})
	}
}

func cycle(b *testing.B, s *target, clients, callers, keys int) {
	conns, closeAll, err := s.dialAll(clients, distlock.WithTTL(10*time.Second))
	if err != nil {
		b.Fatal(err)
	}
	defer closeAll()
	l := load{
		contenders: callers, names: numbered(testbed.Name(b), keys),
		cycles: int64(callers), opTimeout: 30 * time.Second,
	}
	for _, c := range conns {
		l.lockers = append(l.lockers, c)
	}
	run := func() Load {
		got, err := l.run(b.Context())
		if len(got.Violations) > 0 {
			b.Fatal(strings.Join(got.Violations, "\n"))
		}
		if err != nil {
			b.Fatal(err)
		}
		return got
	}
	run() // connects, and creates what stays
	l.cycles = int64(b.N)
	b.ResetTimer()
	got := run()
	b.StopTimer()
	b.ReportMetric(got.CyclesPerSecond, "cycles/s")
	b.ReportMetric(float64(got.Acquire.P50), "p50-ns")
	b.ReportMetric(float64(got.Acquire.P99), "p99-ns")
}
