package distlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// These tests run in virtual time on the in-memory backend: what takes a TTL
// takes no time, and what is due at a moment happens at that moment. The Store
// is strict throughout: an Owner that is used after its end fails the test.

const ttl = 3 * time.Second

// margin is what the default takes off the TTL.
const margin = ttl/100 + 2*time.Millisecond

// soon is more than any virtual delay of a prompt answer.
const soon = 50 * time.Millisecond

var bg = context.Background()

// modes are the kinds of backends that the core must serve alike.
var modes = map[string]membackend.Options{
	"queue":             {},
	"poll":              {Polling: true},
	"poll without news": {Polling: true, Quiet: true},
	"shared":            {SharedFate: true},
	"shared poll":       {SharedFate: true, Polling: true},
	"single session":    {SharedFate: true, SingleTTL: true, Quiet: true, RenewWithin: ttl / 6},
}

// env is a Store and the Lockers on it.
type env struct {
	*testing.T
	s *membackend.Store
	o membackend.Options
}

// each runs f in a bubble of virtual time for every mode.
func each(t *testing.T, f func(e *env)) {
	t.Helper()
	for name, o := range modes {
		t.Run(name, func(t *testing.T) { bubble(t, o, f) })
	}
}

// where runs f for the modes that ok chooses.
func where(t *testing.T, ok func(membackend.Options) bool, f func(e *env)) {
	t.Helper()
	for name, o := range modes {
		if ok(o) {
			t.Run(name, func(t *testing.T) { bubble(t, o, f) })
		}
	}
}

func ownTTL(o membackend.Options) bool { return !o.SharedFate }
func shared(o membackend.Options) bool { return o.SharedFate }

func bubble(t *testing.T, o membackend.Options, f func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(&env{t, membackend.NewStore(membackend.Strict(func(v string) { t.Error("driver contract:", v) })), o})
	})
}

// locker returns a Locker with a driver of its own, closed when the test ends.
func (e *env) locker(name string, opts ...distlock.Option) *distlock.Client {
	e.Helper()
	o := e.o
	o.Name = name
	l, err := membackend.New(e.s, &o, append([]distlock.Option{distlock.WithTTL(ttl)}, opts...)...)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = l.Close() })
	return l
}

// inject puts a fault in place until the test ends.
func (e *env) inject(f membackend.Fault) *membackend.Injected {
	i := e.s.Inject(f)
	e.Cleanup(func() { i.Remove(); i.Resume() })
	return i
}

func (e *env) lock(l distlock.Locker, name string, opts ...distlock.LockOption) *distlock.Lock {
	e.Helper()
	ctx, cancel := context.WithTimeout(bg, 20*ttl)
	defer cancel()
	lk, err := l.Lock(ctx, name, opts...)
	if err != nil {
		e.Fatalf("Lock(%q): %v", name, err)
	}
	return lk
}

func (e *env) unlock(lk *distlock.Lock) {
	e.Helper()
	e.is(lk.Unlock(bg), nil)
}

// is checks that err matches all of want; nil means no error.
func (e *env) is(err error, want ...error) {
	e.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			e.Errorf("error %v does not match %v", err, w)
		}
	}
}

func (e *env) isNot(err error, unwanted ...error) {
	e.Helper()
	for _, w := range unwanted {
		if errors.Is(err, w) {
			e.Errorf("error %v matches %v", err, w)
		}
	}
}

// held checks that lk is held and has a deadline ahead.
func (e *env) held(lk *distlock.Lock) {
	e.Helper()
	if err := lk.Err(); err != nil {
		e.Fatalf("not held: %v", err)
	}
	if lk.Token() == 0 || lk.Context().Err() != nil || !lk.ValidUntil().After(time.Now()) {
		e.Errorf("held with token %v, context %v, valid for %v", lk.Token(), lk.Context().Err(), time.Until(lk.ValidUntil()))
	}
	select {
	case <-lk.Lost():
		e.Error("Lost is closed while held")
	default:
	}
}

// lost waits for the loss of lk, which must come within d and for this reason.
func (e *env) lost(lk *distlock.Lock, d time.Duration, reason distlock.Reason) *distlock.LostError {
	e.Helper()
	select {
	case <-lk.Lost():
	case <-time.After(d + 1): // what is due at a moment may come after this
		e.Fatalf("no loss within %v", d)
	}
	// The order of things: who sees Lost closed sees everything else.
	var le *distlock.LostError
	if cause := context.Cause(lk.Context()); !errors.As(cause, &le) {
		e.Fatalf("cause of a lost lock's context: %v", cause)
	}
	if le.Reason != reason || le.Name != lk.Name() || le.Token == 0 || !le.At.Equal(time.Now()) {
		e.Errorf("lost: %+v at %v, want reason %v", le, time.Now(), reason)
	}
	e.is(lk.Err(), distlock.ErrLost, distlock.ErrNotHeld, le)
	if lk.Token() != 0 || !lk.ValidUntil().IsZero() {
		e.Errorf("a lost lock has token %v, deadline %v", lk.Token(), lk.ValidUntil())
	}
	return le
}

// never checks that lk is not reported lost within d.
func (e *env) neverLost(lk *distlock.Lock, d time.Duration) {
	e.Helper()
	select {
	case <-lk.Lost():
		e.Fatalf("lost: %v", lk.Err())
	case <-time.After(d):
	}
}

// free checks that nothing of any lock is at the Store; a session may live on.
func (e *env) free() {
	e.Helper()
	for _, left := range e.s.Leftovers() {
		if !strings.HasPrefix(left, "session") {
			e.Errorf("left at the Store: %s", left)
		}
	}
}

// took checks how much virtual time passed since start.
func (e *env) took(start time.Time, from, to time.Duration) {
	e.Helper()
	if d := time.Since(start); d < from || d > to {
		e.Errorf("took %v, want %v to %v", d, from, to)
	}
}

// waitsFor has l wait for name in the background, and returns once it does.
func (e *env) waitsFor(ctx context.Context, l distlock.Locker, name string, opts ...distlock.LockOption) <-chan result {
	results := make(chan result, 1)
	go func() {
		lk, err := l.Lock(ctx, name, opts...)
		results <- result{lk, err}
	}()
	synctest.Wait()
	return results
}

type result struct {
	lk  *distlock.Lock
	err error
}

// events collects what a Locker's Observer was told.
type events struct {
	mu  sync.Mutex
	all []distlock.Event
}

func (ev *events) Observe(_ context.Context, e distlock.Event) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.all = append(ev.all, e)
}

func (ev *events) of(kind distlock.EventKind) (found []distlock.Event) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	for _, e := range ev.all {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}
