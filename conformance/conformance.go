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
// What can be seen from outside, through [distlock.Locker], and in area "driver"
// the bare rules of a [driver.Driver]. Contenders have Lockers of their own, made
// by [Harness.NewLocker], so that nothing but the backend keeps them apart. Where
// a crash matters the contender is another process (see [Spawner]), and is killed
// or stopped by a signal.
//
// # Abilities
//
// With the two methods of [Harness] alone much of the contract is not tested: no
// lock is ever lost and no request is ever late. What else the harness can do
// decides which cases are run:
//
//   - [DriverOpener]: area "driver": Release, Renew and Abandon look at the owner;
//     a request sent twice is one holding; a refusal leaves nothing. It takes no
//     faults, so no backend should be without it.
//   - [Expirer]: the holder is told when its lease ends early, stays without the
//     lock, and disturbs no successor; tokens grow over the end of a lease.
//   - [Partitioner]: a holder that is cut off is told in time, before a rival gets
//     the lock; requests that arrive late harm nobody; what is given up while the
//     backend is out of reach leaves nothing.
//   - [Delayer]: the deadline counts from before the request, not from its answer.
//   - [Restarter]: holders, waiters and tokens over a restart that keeps the data.
//   - [Spawner]: exclusion between processes, and what killed and stopped ones
//     leave behind.
//
// Without Expirer and Delayer nothing tests over the network that a backend looks
// at the owner, nor from when it counts a TTL; without DriverOpener as well, a
// backend whose Release deletes whoever's lock it is passes. [Run] logs at its
// end which cases were not run and what each was waiting for: see go test -v.
//
// # Capabilities
//
// A case that needs a capability is run only where the backend claims it; nothing
// is ever skipped half-way. A claim that doesn't hold fails the cases that need
// it. The cases of area "capabilities" fail a backend that does what it does not
// claim, as far as that can be probed: Fencing, FIFO, SharedFate and Push can.
// LockTTL, MinTTL and MaxTTL can not, since the core itself refuses what is not
// claimed, nor can Replicated, since the loss of servers is not seen through a
// Locker.
//
// # Time
//
// Most cases wait for events, with a patience far beyond what a slow machine
// needs, and assert the order of events rather than durations. Those that wait
// until a TTL has passed run concurrently with the others, whatever -parallel
// says, since they do nothing but wait. Where a case demands that a short TTL be
// kept up it watches how long its own process stood still, and starts again if
// that was too long to tell anything. A backend takes some 10 to 60 seconds, by
// its shortest TTL; go test's own -timeout of 10 minutes is enough for all of it.
//
// # Example
//
// The repository's conformance/thirdparty_test.go is an example for authors: a
// driver for a small lock server over TCP in a hundred lines, the server, and a
// harness with all abilities.
package conformance

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
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
	// DriverOpener returns a driver over a connection of its own, such as NewLocker
	// puts under a Locker. The driver is closed by the case, the connection at the
	// end of t by the Harness.
	DriverOpener interface {
		OpenDriver(t testing.TB) driver.Driver
	}

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
	Name string // area/what
	Rule string // printed when it is broken
	Run  func(t *testing.T, h Harness)

	clause clause
}

// Area returns the part of Name before the slash.
func (c Case) Area() string {
	area, _, _ := strings.Cut(c.Name, "/")
	return area
}

// Missing returns what c needs and h does not have: claims of the backend, such
// as "FIFO", and abilities of the harness, such as "Restarter". A case is run if
// both are empty.
func (c Case) Missing(h Harness) (claims, abilities []string) {
	return c.missing(subject{h, h.Capabilities()})
}

func (c Case) missing(s subject) (claims, abilities []string) {
	for _, n := range c.clause.needs {
		switch {
		case n.met(s):
		case n.ability:
			abilities = append(abilities, n.what)
		default:
			claims = append(claims, n.what)
		}
	}
	return claims, abilities
}

// Cases returns the contract, for tables and for tests that run one clause.
func Cases() []Case {
	var cases []Case
	for _, area := range [][]clause{
		exclusion(), waiting(), fairness(), loss(), fencing(), names(),
		ttl(), reentry(), errorsArea(), closing(), driverArea(), capabilities(),
	} {
		for _, c := range area {
			cases = append(cases, Case{Name: c.name, Rule: c.rule, clause: c, Run: func(t *testing.T, h Harness) {
				t.Helper()
				c.perform(t, subject{h, h.Capabilities()})
			}})
		}
	}
	return cases
}

// For returns the cases that are run on h.
func For(h Harness) []Case {
	cases, _ := split(subject{h, h.Capabilities()})
	return cases
}

// split parts the contract into what is run on s and what is not.
func split(s subject) (run, not []Case) {
	for _, c := range Cases() {
		if claims, abilities := c.missing(s); len(claims)+len(abilities) == 0 {
			run = append(run, c)
		} else {
			not = append(not, c)
		}
	}
	return run, not
}

// notRun tells which cases are not run on s, by what is missing.
func notRun(s subject) string {
	_, not := split(s)
	groups := map[string][]string{}
	for _, c := range not {
		claims, abilities := c.missing(s)
		for i, a := range abilities {
			abilities[i] = "a harness that is a " + a
		}
		for i, c := range claims {
			claims[i] = "a backend that claims " + c
		}
		why := strings.Join(append(abilities, claims...), " and ")
		groups[why] = append(groups[why], c.Name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d cases were not run", len(not), len(Cases()))
	whys := slices.SortedFunc(maps.Keys(groups), func(x, y string) int {
		return cmp.Or(cmp.Compare(len(groups[y]), len(groups[x])), cmp.Compare(x, y))
	})
	for _, why := range whys {
		fmt.Fprintf(&b, "\n%d need %s:\n\t%s", len(groups[why]), why, strings.Join(groups[why], "\n\t"))
	}
	return b.String()
}

// subject is what is tested: a Harness, and what it claims, asked once.
type subject struct {
	Harness
	caps driver.Capabilities
}

// Run runs every case that the backend's claims and the harness's abilities ask
// for as a subtest, each with a Harness of its own. newHarness is called once
// more to ask which those are. At the end the others are logged, with what they
// lack.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	s := subject{Harness: newHarness(t)}
	s.caps = s.Capabilities()
	cases, not := split(s)
	if len(not) > 0 {
		defer t.Log(notRun(s))
	}

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
					t.Run(c.Name, func(t *testing.T) { c.clause.perform(t, subject{newHarness(t), s.caps}) })
				}
			})
		}
	}
	var wg sync.WaitGroup
	start(true, waitingAtOnce, &wg)
	start(false, 2, &wg)
	wg.Wait()
}

// RunRestarts runs only the cases that restart the backend, as parallel subtests.
// It is for backends whose other cases share a server: newHarness gives a
// [Restarter] on a server of its own, and is called once for each case. claims is
// what the backend claims.
func RunRestarts(t *testing.T, claims driver.Capabilities, newHarness func(t *testing.T) Harness) {
	t.Helper()
	cases, _ := split(subject{struct {
		Harness
		Restarter
	}{}, claims})
	for _, c := range cases {
		if !slices.ContainsFunc(c.clause.needs, func(n need) bool { return n.what == restarts.what }) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.clause.perform(t, subject{newHarness(t), claims})
		})
	}
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
	needs      []need // all of them
	waits      bool   // spends its time waiting for a TTL
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

// A need is something that a case asks of the subject.
type need struct {
	what    string
	ability bool // of the harness; otherwise a claim of the backend
	met     func(subject) bool
}

var (
	fences     = need{what: "Fencing", met: func(s subject) bool { return s.caps.Fencing }}
	fifo       = need{what: "FIFO", met: func(s subject) bool { return s.caps.FIFO }}
	sharedFate = need{what: "SharedFate", met: func(s subject) bool { return s.caps.SharedFate }}
	lockTTL    = need{what: "LockTTL", met: func(s subject) bool { return s.caps.LockTTL }}
	pushes     = need{what: "Push", met: func(s subject) bool { return s.caps.Push }}
	minTTL     = need{what: "a MinTTL", met: func(s subject) bool { return s.caps.MinTTL > 1 }}
	maxTTL     = need{what: "a MaxTTL", met: func(s subject) bool { return s.caps.MaxTTL > 0 }}

	opens      = ability[DriverOpener]("DriverOpener")
	expires    = ability[Expirer]("Expirer")
	partitions = ability[Partitioner]("Partitioner")
	delays     = ability[Delayer]("Delayer")
	restarts   = ability[Restarter]("Restarter")
	spawns     = ability[Spawner]("Spawner")
	stops      = need{what: "Spawner of processes that signals can stop", ability: true, met: func(s subject) bool {
		return canStop && spawns.met(s)
	}}
)

func ability[T any](name string) need {
	return need{what: name, ability: true, met: func(s subject) bool { _, ok := s.Harness.(T); return ok }}
}

// not is the need that a claim is not made.
func not(claim need) need {
	return need{what: "no " + claim.what, met: func(s subject) bool { return !claim.met(s) }}
}

func all(needs ...need) []need { return needs }
