package bench

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/membackend"
)

func memory(t *testing.T, store *membackend.Store, n int) []distlock.Locker {
	t.Helper()
	lockers := make([]distlock.Locker, n)
	for i := range lockers {
		l, err := membackend.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		lockers[i] = l
	}
	return lockers
}

func TestLoad(t *testing.T) {
	for _, c := range []struct{ contenders, lockers, names int }{{1, 1, 1}, {8, 8, 1}, {8, 1, 1}, {8, 1, 8}} {
		l := load{
			contenders: c.contenders, lockers: memory(t, membackend.NewStore(), c.lockers), names: numbered("n", c.names),
			warmup: 20 * time.Millisecond, duration: 300 * time.Millisecond, opTimeout: 10 * time.Second,
		}
		got, err := l.run(t.Context())
		if err != nil || len(got.Violations) > 0 {
			t.Fatalf("%+v: %v, %v", c, err, got.Violations)
		}
		var shares int64
		for _, s := range got.Shares {
			shares += s
		}
		switch {
		case got.Cycles == 0 || shares != got.Cycles || len(got.Shares) != c.contenders,
			got.Acquire.Count == 0 || got.Release.Count == 0,
			got.Acquire.P50 > got.Acquire.P99 || got.Acquire.P99 > got.Acquire.Max,
			got.Seconds < 0.3, got.Lost != 0,
			(got.Handoff.Count > 0) != (c.contenders > c.names):
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// anarchy is a driver that gives every lock to everybody.
type anarchy struct {
	number atomic.Uint64
	step   uint64 // from number to number
}

type freeLease struct{ keeper *freeKeeper }

func (l freeLease) Keeper() driver.Keeper         { return l.keeper }
func (l freeLease) Release(context.Context) error { return nil }

type freeKeeper struct{ ttl time.Duration }

func (k *freeKeeper) Renew(_ context.Context, ks []driver.Kept) []driver.Confirm {
	confirms := make([]driver.Confirm, len(ks))
	for i := range confirms {
		confirms[i] = driver.Confirm{From: time.Now(), TTL: k.ttl}
	}
	return confirms
}
func (k *freeKeeper) Every() time.Duration         { return 0 }
func (k *freeKeeper) MaxBatch() int                { return 100 }
func (k *freeKeeper) Retire(context.Context) error { return nil }

func (a *anarchy) Capabilities(context.Context) (driver.Capabilities, error) {
	return driver.Capabilities{Backend: "anarchy", Fencing: true, LockTTL: true, MinTTL: time.Millisecond, TTLQuantum: time.Millisecond}, nil
}

func (a *anarchy) Acquire(_ context.Context, req driver.Request) (driver.Grant, error) {
	return driver.Grant{Lease: freeLease{&freeKeeper{req.TTL}}, Number: a.number.Add(a.step), From: time.Now(), TTL: req.TTL}, nil
}
func (a *anarchy) Abandon(context.Context, driver.Request) error { return nil }
func (a *anarchy) Close(context.Context) error                   { return nil }

// A lock without exclusion is the fastest of all. It must come out as a
// violation, not as a figure.
func TestLockWithoutExclusion(t *testing.T) {
	d := &anarchy{step: 1}
	// The first holder stays until there is a second one.
	var holders atomic.Int32
	second := make(chan struct{})
	inside := func() {
		if holders.Add(1) == 2 {
			close(second)
		}
		<-second
	}
	l := load{contenders: 8, names: numbered("n", 1), duration: 200 * time.Millisecond, opTimeout: 5 * time.Second, inside: inside}
	for range l.contenders {
		c, err := distlock.New(d)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l.lockers = append(l.lockers, c)
	}
	res := &Result{Backend: "redis"}
	res.Hot.set(l.run(t.Context()))
	if len(res.Hot.Value.Violations) != 1 || !regexp.MustCompile(`: [1-9]\d* overlapping holders`).MatchString(res.Hot.Value.Violations[0]) {
		t.Fatalf("violations: %q, failure: %s", res.Hot.Value.Violations, res.Hot.Failure)
	}

	report := &Report{Results: []*Result{res}}
	report.finish(time.Now())
	for _, dimension := range []string{"hot name", "fairness", "hand-off", "fencing token"} {
		if c := cellOf(t, report.Table, dimension, "redis"); c.Verdict != Violated || strings.Contains(c.Figure, "/s") {
			t.Errorf("%s: %+v", dimension, c)
		}
	}
	if !errors.Is(report.Err(), ErrViolation) {
		t.Errorf("the report says %v", report.Err())
	}
	for name, write := range writers(report) {
		if out := render(t, write); !strings.Contains(out, "VIOLATION") || !strings.Contains(out, "overlapping holders") {
			t.Errorf("%s does not show the violation:\n%s", name, out)
		}
	}
}

func TestTokensThatDoNotGrow(t *testing.T) {
	d := &anarchy{step: 0}
	d.number.Store(7)
	c, err := distlock.New(d)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l := load{contenders: 1, lockers: []distlock.Locker{c}, names: numbered("n", 1), duration: 300 * time.Millisecond, opTimeout: 5 * time.Second}
	got, err := l.run(t.Context())
	if err != nil || len(got.Violations) != 1 || !regexp.MustCompile(`: 0 overlapping holders, [1-9]\d* tokens out of order`).MatchString(got.Violations[0]) {
		t.Errorf("%q, %v", got.Violations, err)
	}
}

// A holder that was told of its loss is not inside any more.
func TestLostHolderIsNoViolation(t *testing.T) {
	store := membackend.NewStore()
	lockers := memory(t, store, 2)
	w := newWitness(2)
	first, err := lockers[0].Lock(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	w.enter(0, w.arrive(), first, time.Now())
	store.Expire("n")
	<-first.Lost()
	second, err := lockers[1].Lock(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	w.enter(1, w.arrive(), second, time.Now())
	if v := w.violations("n"); v != nil {
		t.Error(v)
	}
	if err := second.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOvertaking(t *testing.T) {
	l := memory(t, membackend.NewStore(), 1)[0]
	w := newWitness(3)
	serve := func(contender, place int) bool {
		lk, err := l.Lock(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		defer lk.Unlock(t.Context())
		defer w.leave(lk, time.Now())
		return w.enter(contender, place, lk, time.Now()).overtaken
	}
	waiting := w.arrive() // contender 0 waits from here on
	if serve(1, w.arrive()) || serve(2, w.arrive()) || serve(2, w.arrive()) {
		t.Error("nobody waited before them")
	}
	if !serve(0, waiting) {
		t.Error("contender 2 was served twice while 0 waited")
	}
	waiting = w.arrive()
	serve(1, w.arrive())
	serve(2, w.arrive())
	if serve(0, waiting) {
		t.Error("once each is first come, first served")
	}
}

// Servers that stop answering while the load runs must end in an error within
// the limits, whether calls fail or hang, and no figure may be left.
func TestServersThatDie(t *testing.T) {
	for name, kind := range map[string]membackend.Kind{"fail": membackend.FailBefore, "hang": membackend.HangRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := membackend.NewStore()
			l := load{
				contenders: 4, lockers: memory(t, store, 4), names: numbered("n", 1),
				warmup: 10 * time.Millisecond, duration: 20 * time.Second, opTimeout: 500 * time.Millisecond,
			}
			time.AfterFunc(100*time.Millisecond, func() {
				injected := store.Inject(membackend.Fault{Kind: kind, Times: -1})
				t.Cleanup(func() { injected.Remove(); injected.Resume() })
			})
			start := time.Now()
			res := &Result{Backend: "redis"}
			res.Hot.set(l.run(t.Context()))
			if res.Hot.Failure == "" || res.Hot.Ran {
				t.Errorf("no failure: %+v", res.Hot.Value)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("noticed after %v", took)
			}
			if c := cellOf(t, compare([]*Result{res}), "hot name", "redis"); c.Verdict != NotMeasured || c.Figure != "" || c.Reason == "" {
				t.Errorf("%+v", c)
			}
		})
	}
}

// What fails when the time is over already voids the run too.
func TestUnlockThatFailsInTheEnd(t *testing.T) {
	store := membackend.NewStore()
	l := load{
		contenders: 1, lockers: memory(t, store, 1), names: numbered("n", 1),
		duration: 300 * time.Millisecond, opTimeout: time.Second,
	}
	start := time.Now()
	l.inside = func() {
		if time.Since(start) > 200*time.Millisecond { // until after the end
			time.Sleep(200 * time.Millisecond)
			injected := store.Inject(membackend.Fault{Kind: membackend.FailBefore, Times: -1})
			t.Cleanup(injected.Remove)
		}
	}
	if got, err := l.run(t.Context()); err == nil {
		t.Errorf("no error: %+v", got)
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("enough")) })
	l := load{
		contenders: 4, lockers: memory(t, membackend.NewStore(), 4), names: numbered("n", 1),
		duration: 20 * time.Second, opTimeout: 5 * time.Second,
	}
	if got, err := l.run(ctx); err == nil || got.Cycles != 0 || !strings.Contains(err.Error(), "enough") {
		t.Errorf("%+v, %v", got, err)
	}
}
