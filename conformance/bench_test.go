package conformance_test

import (
	"errors"
	"sync"
	"testing"

	"example.com/distlock/conformance"
	"example.com/distlock/driver"
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
		"two holders":      grantTogether(),
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

// grantTogether grants what is held, and sees to it that somebody asks for that:
// the first grant is withheld until another client has asked too.
func grantTogether() func(*faults) {
	asked := make(chan struct{})
	ask := sync.OnceFunc(func() { close(asked) })
	acquire := func(req driver.Request, g driver.Grant, err error) (driver.Grant, error) {
		if errors.Is(err, driver.ErrHeld) {
			ask()
		}
		<-asked
		return grantAnyway(req, g, err)
	}
	return func(f *faults) { f.acquire = acquire }
}
