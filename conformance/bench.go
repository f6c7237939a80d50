package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/distlock"
)

// Load is a benchmark: Clients contenders lock and unlock, again and again, one
// of Keys names each.
type Load struct {
	Clients int
	Keys    int
	Local   bool // the clients are goroutines of one Locker, not Lockers of their own
}

// String returns the load as it stands in a benchmark's name.
func (l Load) String() string {
	s := fmt.Sprintf("clients=%d/keys=%d", l.Clients, l.Keys)
	if l.Local {
		s += "/lockers=1"
	}
	return s
}

// Loads returns what Bench measures: one client alone, many names, one hot name
// across Lockers, and one hot name within a Locker.
func Loads() []Load {
	return []Load{
		{Clients: 1, Keys: 1},
		{Clients: 8, Keys: 8},
		{Clients: 8, Keys: 1},
		{Clients: 8, Keys: 1, Local: true},
	}
}

// Bench measures a backend under all Loads. Rows are named
// backend=NAME/clients=N/keys=N, as benchstat wants them, with /lockers=1 behind
// that where the clients share one Locker. Besides ns/op, the time
// of the whole benchmark divided by the cycles of all clients, it reports
// cycles/s, and p50-ns and p99-ns of the time that one client's Lock and Unlock
// take together. Two holders at a time, or a token out of order where Fencing is
// claimed, fail the benchmark.
func Bench(b *testing.B, newHarness func(testing.TB) Harness) {
	b.Helper()
	for _, l := range Loads() {
		b.Run("backend="+newHarness(b).Capabilities().Backend+"/"+l.String(), func(b *testing.B) {
			l.Bench(b, newHarness(b))
		})
	}
}

// Bench measures h under l, in b itself.
func (l Load) Bench(b *testing.B, h Harness) {
	b.Helper()
	lockers := make([]distlock.Locker, l.Clients)
	for i := range lockers {
		if i > 0 && l.Local {
			lockers[i] = lockers[0]
			continue
		}
		lk := h.NewLocker(b)
		lockers[i] = lk
		b.Cleanup(func() { _ = lk.Close() }) // nothing is held any more
	}
	names := make([]string, l.Keys)
	for i := range names {
		names[i] = "bench/" + l.String() + "/" + strconv.Itoa(i)
	}
	// Connections, sessions and scripts are made before the clock runs.
	if _, err := cycles(b.Context(), lockers, names, 2*l.Clients, h.Capabilities().Fencing); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	times, err := cycles(b.Context(), lockers, names, b.N, h.Capabilities().Fencing)
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(times)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
}

// cycles has lockers lock and unlock n times in all, and returns how long each
// time took.
func cycles(ctx context.Context, lockers []distlock.Locker, names []string, n int, fencing bool) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watches := make([]watch, len(names))
	times := make([][]time.Duration, len(lockers))
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for i, l := range lockers {
		name, w := names[i%len(names)], &watches[i%len(names)]
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				start := time.Now()
				lk, err := l.Lock(ctx, name)
				if err == nil {
					err = w.enter(lk.Token(), fencing)
					w.leave()
					err = errors.Join(err, lk.Unlock(ctx))
				}
				if err != nil {
					cancel(err) // the first stays
					return
				}
				times[i] = append(times[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	return slices.Concat(times...), context.Cause(ctx)
}

// watch notices two holders of one name, and tokens out of order.
type watch struct {
	inside atomic.Int64
	last   atomic.Uint64
}

func (w *watch) enter(tok distlock.Token, fencing bool) error {
	if n := w.inside.Add(1); n != 1 {
		return fmt.Errorf("%d holders of one name at the same time", n)
	}
	if last := w.last.Swap(uint64(tok)); fencing && uint64(tok) <= last {
		return fmt.Errorf("token %d of a later holder is not above %d of an earlier one", tok, last)
	}
	return nil
}

func (w *watch) leave() { w.inside.Add(-1) }
