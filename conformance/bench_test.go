package conformance_test

import (
	"testing"

	"example.com/distlock/conformance"
	"example.com/distlock/membackend"
)

func BenchmarkMembackend(b *testing.B) {
	conformance.Bench(b, func(testing.TB) conformance.Harness { return newMemory(membackend.Options{}) })
}

func BenchmarkThirdParty(b *testing.B) {
	conformance.Bench(b, func(tb testing.TB) conformance.Harness { return newTownHall(tb) })
}

// TestBenchNotices checks that a benchmark fails on a backend that lets two in.
func TestBenchNotices(t *testing.T) {
	for name, plant := range map[string]func(*faults){
		"two holders":      func(f *faults) { f.acquire = grantAnyway },
		"tokens unordered": func(f *faults) { f.grant = sameNumber },
	} {
		var failed bool
		testing.Benchmark(func(b *testing.B) {
			failed = true // one that is ended by Fatal does not get to the last line
			conformance.Load{Clients: 4, Keys: 1}.Bench(b, broken(plant)())
			failed = false
		})
		if !failed {
			t.Errorf("%s: the benchmark passed", name)
		}
	}
}
