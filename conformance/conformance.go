// Package conformance tests that a backend keeps the contract of package
// distlock. The suite is a list of cases, each with the rule that it checks; a
// rule is printed when it is broken. It is for authors of backends: write a
// [Harness] and call [Run] from a test.
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t *testing.T) conformance.Harness {
//			return &harness{addr: startServer(t)}
//		})
//	}
//
// # What is tested
//
// Only what can be seen from outside, through [distlock.Locker]. Contenders
// have Lockers of their own, made by [Harness.NewLocker], so that nothing but
// the backend keeps them apart. Where a crash matters the contender is another
// process (see [Spawner]), and is killed or stopped by a signal.
//
// # Capabilities
//
// A case that needs a capability is registered only where the backend claims
// it, and one that needs an ability of the harness ([Expirer], [Partitioner],
// [Delayer], [Restarter], [Spawner]) only where the harness has it; nothing is ever
// skipped. A claim that doesn't hold fails the cases that need it. The cases of
// area "capabilities" fail a backend that does what it does not claim, as far as
// that can be probed: Fencing, FIFO, SharedFate and Push can. LockTTL, MinTTL and
// MaxTTL can not, since the core itself refuses what is not claimed, nor can
// Replicated, since the loss of servers is not seen through a Locker.
//
// # Time
//
// Most cases wait for events, with a patience far beyond what a slow machine
// needs, and assert the order of events rather than durations. Those that wait
// until a TTL has passed run concurrently with the others, whatever -parallel
// says, since they do nothing but wait. Where a case demands that a short TTL be
// kept up it watches how long its own process stood still, and starts again if
// that was too long to tell anything.
package conformance

import (
	"bytes"
	"context"
	"os/exec"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/driver"
)

// Harness reaches one backend. Each case gets a Harness of its own, and none
// sees the locks of another: give each a prefix, a namespace or a server of its
// own, since several run at the same time.
type Harness interface {
	// NewLocker returns a Locker over a connection of its own: Lockers of one
	// Harness share the backend's state and nothing else, as they would in
	// different processes. The Harness closes the connection at the end of t;
	// the Locker is closed by the case.
	NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker

	// Capabilities returns what the backend claims.
	Capabilities() driver.Capabilities
}

// A Harness may also implement these; cases that need one are run where it is
// there.
type (
	// Expirer makes the backend drop name's holder before it returns, as if its
	// lease had ended. With SharedFate the whole session of that holder ends.
	Expirer interface {
		Expire(t testing.TB, name string)
	}

	// Partitioner cuts l off from the backend, in both directions and without a
	// reset, until heal is called. Other Lockers are not affected. heal may be
	// called twice.
	Partitioner interface {
		Partition(t testing.TB, l distlock.Locker) (heal func())
	}

	// Delayer makes the backend's answers to l arrive d later until stop is
	// called; requests may be delayed too.
	Delayer interface {
		Delay(t testing.TB, l distlock.Locker, d time.Duration) (stop func())
	}

	// Restarter stops and starts the backend, keeping its data. It returns when
	// the backend serves again. Other cases run at the same time, so it takes a
	// server of this Harness's own.
	Restarter interface{ Restart(t testing.TB) }

	// Spawner returns a command, not yet started, whose process calls WorkerMain
	// on this Harness's backend. Its standard input, output and error belong to the
	// suite. The usual way is the test's own binary with an environment variable
	// that TestMain looks at.
	Spawner interface{ Worker(t testing.TB) *exec.Cmd }

	// TTLer says which TTL to use where a case has to wait for its end. Without
	// it that is 1 s or Capabilities.MinTTL, whichever is longer.
	TTLer interface{ TTL() time.Duration }
)

// Case is one clause of the contract.
type Case struct {
	Name  string             // area/what
	Rule  string             // printed when it is broken
	Needs func(Harness) bool // nil means always; a case that is not needed is not registered
	Run   func(t *testing.T, h Harness)

	clause clause
}

// Area returns the part of Name before the slash.
func (c Case) Area() string {
	area, _, _ := strings.Cut(c.Name, "/")
	return area
}

// Cases returns the contract, for tables and for tests that run one clause.
func Cases() []Case {
	var cases []Case
	for _, area := range [][]clause{
		exclusion(), waiting(), fairness(), loss(), fencing(), names(),
		ttl(), reentry(), errorsArea(), closing(), capabilities(),
	} {
		for _, c := range area {
			cs := Case{Name: c.name, Rule: c.rule, clause: c}
			if c.needs != nil {
				cs.Needs = func(h Harness) bool { return c.needs(subject{h, h.Capabilities()}) }
			}
			cs.Run = func(t *testing.T, h Harness) {
				t.Helper()
				c.perform(t, subject{h, h.Capabilities()})
			}
			cases = append(cases, cs)
		}
	}
	return cases
}

// For returns the cases that are registered for h.
func For(h Harness) []Case { return registered(subject{h, h.Capabilities()}) }

func registered(s subject) []Case {
	return slices.DeleteFunc(Cases(), func(c Case) bool { return c.clause.needs != nil && !c.clause.needs(s) })
}

// subject is what is tested: a Harness, and what it claims, asked once.
type subject struct {
	Harness
	caps driver.Capabilities
}

// Run runs every case that the backend's claims and the harness's abilities ask
// for as a subtest, each with a Harness of its own. newHarness is called once
// more to ask which those are.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	h := newHarness(t)
	caps := h.Capabilities()
	cases := registered(subject{h, caps})

	// Subtests started from several goroutines run at the same time, without the
	// limit that -parallel (by default the number of CPUs) puts on t.Parallel.
	const waitingAtOnce = 8
	start := func(waits bool, workers int, wg *sync.WaitGroup) {
		next := make(chan Case)
		wg.Go(func() {
			defer close(next)
			for _, c := range cases {
				if c.clause.waits == waits {
					next <- c
				}
			}
		})
		for range workers {
			wg.Go(func() {
				for c := range next {
					t.Run(c.Name, func(t *testing.T) { c.clause.perform(t, subject{newHarness(t), caps}) })
				}
			})
		}
	}
	var wg sync.WaitGroup
	start(true, waitingAtOnce, &wg)
	start(false, 2, &wg)
	wg.Wait()
}

// limit bounds one case; patience bounds each wait for something that the
// contract says must happen. Both are far beyond what a slow machine needs.
var (
	limit    = 120 * time.Second
	patience = 30 * time.Second
)

// clause is a Case as the areas write it.
type clause struct {
	name, rule string
	needs      func(subject) bool
	waits      bool // spends its time waiting for a TTL
	run        func(*env)
}

// perform runs the clause in a goroutine of its own so that one that hangs can
// be reported with all stacks.
func (c clause) perform(t *testing.T, s subject) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("broken rule of %s: %s", c.name, c.rule)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e := newEnv(ctx, t, s, c.name)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(e)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	}
	var stacks bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2) // to a buffer: cannot fail
	t.Errorf("no end after %v; all goroutines:\n%s", limit, stacks.Bytes())
	cancel()
	grace := time.NewTimer(5 * time.Second)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}

// What a clause can need.

func fences(s subject) bool     { return s.caps.Fencing }
func fifo(s subject) bool       { return s.caps.FIFO }
func sharedFate(s subject) bool { return s.caps.SharedFate }
func lockTTL(s subject) bool    { return s.caps.LockTTL }
func pushes(s subject) bool     { return s.caps.Push }

func expires(s subject) bool    { _, ok := s.Harness.(Expirer); return ok }
func partitions(s subject) bool { _, ok := s.Harness.(Partitioner); return ok }
func delays(s subject) bool     { _, ok := s.Harness.(Delayer); return ok }
func restarts(s subject) bool   { _, ok := s.Harness.(Restarter); return ok }
func spawns(s subject) bool     { _, ok := s.Harness.(Spawner); return ok }

func not(need func(subject) bool) func(subject) bool {
	return func(s subject) bool { return !need(s) }
}

func all(needs ...func(subject) bool) func(subject) bool {
	return func(s subject) bool {
		for _, need := range needs {
			if !need(s) {
				return false
			}
		}
		return true
	}
}
