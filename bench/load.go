package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"example.com/distlock"
)

// A load is a closed loop: each contender locks, unlocks and starts over, and
// never has more than one request of its own under way. A stall of the server
// therefore delays the next request instead of counting against it; percentiles
// of a closed loop are what one caller sees, not what an open system would.
type load struct {
	contenders int
	lockers    []distlock.Locker // contender i uses lockers[i%len]
	names      []string          // contender i uses names[i%len]
	warmup     time.Duration     // runs but is not counted
	duration   time.Duration     // of the part that counts
	opTimeout  time.Duration     // bounds each Lock and each Unlock
	requests   func(context.Context) (int64, error)
	inside     func() // called by each holder; nil: let others run for a moment
}

// Load is what a closed loop did in the time that counts.
type Load struct {
	Contenders      int     `json:"contenders"`
	Lockers         int     `json:"lockers"`
	Names           int     `json:"names"`
	Seconds         float64 `json:"seconds"`
	Cycles          int64   `json:"cycles"`
	CyclesPerSecond float64 `json:"cycles_per_second"`

	// Requests to the servers per cycle, renewals and heartbeats included; 0 if
	// they cannot be counted.
	RequestsPerCycle float64 `json:"requests_per_cycle,omitempty"`

	Acquire Quantiles `json:"acquire"` // of Lock; a wait cut off by the end counts with what it had waited
	Release Quantiles `json:"release"` // of Unlock
	Handoff Quantiles `json:"handoff"` // from the call of Unlock to the next holder's return from Lock

	Shares    []int64 `json:"shares,omitempty"` // cycles by contender
	Jain      float64 `json:"jain,omitempty"`
	Overtaken float64 `json:"overtaken"`      // share of waits during which some other contender was served twice
	Lost      int64   `json:"lost"`           // locks lost while held
	Repeated  int64   `json:"repeated"`       // calls of Unlock that had to be repeated, their outcome being open
	Open      string  `json:"open,omitempty"` // what one of those calls said

	Violations []string `json:"violations,omitempty"`
}

// errHung is the error of a run whose calls ignored their contexts.
var errHung = errors.New("calls did not return in time")

// run measures. An error means that the figures must not be used: a call
// failed, or did not end in time; violations found until then are in Load.
func (l load) run(ctx context.Context) (Load, error) {
	res := Load{Contenders: l.contenders, Lockers: len(l.lockers), Names: len(l.names)}

	witnesses := make([]*witness, len(l.names))
	for i := range witnesses {
		witnesses[i] = newWitness(l.contenders)
	}

	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	over := errors.New("time is over")

	inside := l.inside
	if inside == nil {
		inside = runtime.Gosched // a holding of no length would hide an overlap
	}
	clock := &window{}
	contenders := make([]*contender, l.contenders)
	failures := make(chan error, l.contenders)
	var wg sync.WaitGroup
	for i := range contenders {
		c := &contender{
			id: i, locker: l.lockers[i%len(l.lockers)],
			name: l.names[i%len(l.names)], witness: witnesses[i%len(l.names)],
			timeout: l.opTimeout, clock: clock, inside: inside,
			acquire: newRecorder(), release: newRecorder(), handoff: newRecorder(),
		}
		contenders[i] = c
		wg.Go(func() {
			if err := c.loop(runCtx); err != nil {
				err = fmt.Errorf("contender %d: %w", c.id, err)
				failures <- err
				stop(err)
			}
		})
	}

	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	err := func() error {
		if err := l.warmUp(runCtx, contenders); err != nil {
			return err
		}
		before, countErr := l.count(runCtx)
		start := clock.open()
		if err := sleep(runCtx, l.duration); err != nil {
			return err
		}
		res.Seconds = clock.close().Sub(start).Seconds()
		after, err := l.count(runCtx)
		if countErr == nil && err == nil {
			res.RequestsPerCycle = float64(after - before) // divided below
		}
		return nil
	}()
	stop(over)

	select {
	case <-done:
	case <-time.After(2*l.opTimeout + time.Second):
		// The contenders' records are still being written: leave them alone.
		return Load{Contenders: res.Contenders}, errHung
	}
	for i, w := range witnesses {
		res.Violations = append(res.Violations, w.violations(l.names[i])...)
	}
	if err == nil && len(failures) > 0 { // the first, also when the time was over
		err = <-failures
	}
	if err == nil {
		if cause := context.Cause(runCtx); !errors.Is(cause, over) {
			err = cause
		}
	}
	if err != nil {
		return Load{Contenders: res.Contenders, Violations: res.Violations}, err
	}

	acquire, release, handoff := newRecorder(), newRecorder(), newRecorder()
	var waits, overtaken int64
	for _, c := range contenders {
		acquire.merge(c.acquire)
		release.merge(c.release)
		handoff.merge(c.handoff)
		res.Cycles += c.cycles
		res.Lost += c.lost
		res.Repeated += c.repeated
		if c.open != nil && res.Open == "" {
			res.Open = c.open.Error()
		}
		res.Shares = append(res.Shares, c.cycles)
		waits += c.waits
		overtaken += c.overtaken
	}
	if res.Cycles == 0 {
		return res, fmt.Errorf("no cycle was completed in %v", l.duration)
	}
	res.CyclesPerSecond = float64(res.Cycles) / res.Seconds
	res.RequestsPerCycle /= float64(res.Cycles)
	res.Acquire, res.Release = acquire.quantiles(), release.quantiles()
	res.Jain = jain(res.Shares)
	if waits > 0 {
		res.Overtaken = float64(overtaken) / float64(waits)
	}
	if l.contenders > len(l.names) { // with a name each, nothing is handed on
		res.Handoff = handoff.quantiles()
	}
	return res, nil
}

// warmUp waits for the time that does not count, and until every contender has
// been served once: first uses connect, and create what stays.
func (l load) warmUp(ctx context.Context, contenders []*contender) error {
	if err := sleep(ctx, l.warmup); err != nil {
		return err
	}
	deadline := time.Now().Add(l.opTimeout)
	for _, c := range contenders {
		for !c.served.Load() && time.Now().Before(deadline) {
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

var errNoCount = errors.New("requests of this backend are not counted")

func (l load) count(ctx context.Context) (int64, error) {
	if l.requests == nil {
		return 0, errNoCount
	}
	return l.requests(ctx)
}

// A window says which moments count.
type window struct{ start, end atomic.Pointer[time.Time] }

func (w *window) open() time.Time  { now := time.Now(); w.start.Store(&now); return now }
func (w *window) close() time.Time { now := time.Now(); w.end.Store(&now); return now }

func (w *window) has(t time.Time) bool {
	start, end := w.start.Load(), w.end.Load()
	return start != nil && !t.Before(*start) && (end == nil || t.Before(*end))
}

type contender struct {
	id      int
	locker  distlock.Locker
	name    string
	witness *witness
	timeout time.Duration
	clock   *window
	inside  func()

	served atomic.Bool // once at least

	acquire, release, handoff *recorder
	cycles, waits, overtaken  int64
	lost, repeated            int64
	open                      error // of the first Unlock that had to be repeated
}

// loop runs cycles until ctx ends, or returns the first failure.
func (c *contender) loop(ctx context.Context) error {
	for ctx.Err() == nil {
		place := c.witness.arrive()
		asked := time.Now()
		lk, err := c.lock(ctx)
		granted := time.Now()
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			if c.clock.has(asked) {
				c.acquire.add(granted.Sub(asked))
			}
			return nil
		}
		c.served.Store(true)
		seen := c.witness.enter(c.id, place, lk, granted)

		c.inside()

		leaving := time.Now()
		c.witness.leave(lk, leaving)
		err = c.unlock(ctx, lk)
		released := time.Now()

		switch {
		case errors.Is(err, distlock.ErrLost):
			c.lost++
		case err != nil:
			return err
		}
		if c.clock.has(asked) {
			c.acquire.add(granted.Sub(asked))
			c.release.add(released.Sub(leaving))
			c.waits++
			if seen.overtaken {
				c.overtaken++
			}
			if seen.handoff > 0 {
				c.handoff.add(seen.handoff)
			}
		}
		if c.clock.has(released) {
			c.cycles++
		}
	}
	return nil
}

func (c *contender) lock(ctx context.Context) (*distlock.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.locker.Lock(ctx, c.name)
}

// unlock outlives ctx: a run that is over must not leave its locks behind. Its
// duration is until the release is confirmed.
func (c *contender) unlock(ctx context.Context, lk *distlock.Lock) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	for {
		err := lk.Unlock(ctx)
		if err == nil || errors.Is(err, distlock.ErrLost) || errors.Is(err, distlock.ErrNotHeld) {
			return err
		}
		// The outcome is open; Unlock may be called again until it is known.
		if sleep(ctx, 10*time.Millisecond) != nil {
			return err
		}
		if c.repeated++; c.open == nil {
			c.open = err
		}
	}
}

// sleep waits for d, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// numbered returns n names that start with prefix.
func numbered(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + "-" + strconv.Itoa(i)
	}
	return names
}
