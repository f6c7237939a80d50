package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/driver"
)

// env is what a clause works with: the test, the harness and the steps that
// most clauses are made of. Steps end the test when they fail.
type env struct {
	*testing.T
	h    Harness
	ctx  context.Context // ends when the case is given up
	caps driver.Capabilities
	ttl  time.Duration // short: for what has to expire
	long time.Duration // for what must not expire during the case
	base string        // prefix of this case's names

	mu   sync.Mutex
	told map[distlock.Locker]*news
}

func newEnv(ctx context.Context, t *testing.T, s subject, name string) *env {
	h, caps := s.Harness, s.caps
	e := &env{T: t, h: h, ctx: ctx, caps: caps, told: map[distlock.Locker]*news{}}
	e.ttl = max(time.Second, caps.MinTTL)
	if own, ok := h.(TTLer); ok {
		e.ttl = own.TTL()
	}
	e.long = max(30*time.Second, 4*e.ttl)
	if caps.MaxTTL > 0 {
		e.ttl, e.long = min(e.ttl, caps.MaxTTL), min(e.long, caps.MaxTTL)
	}
	e.base = name + "/" + rand.Text()[:8]
	return e
}

// name returns a lock name that no other case and no earlier run has used.
func (e *env) name(s string) string { return e.base + "/" + s }

// news counts what a Locker tells about locks, by name.
type news struct {
	mu     sync.Mutex
	counts map[newsKey]int
}

type newsKey struct {
	name string
	kind distlock.EventKind
}

// Observe counts blocked Locks and renewals that failed.
func (n *news) Observe(_ context.Context, ev distlock.Event) {
	if ev.Kind == distlock.EventWaiting || ev.Kind == distlock.EventRenewed && ev.Err != nil {
		n.mu.Lock()
		n.counts[newsKey{ev.Name, ev.Kind}]++
		n.mu.Unlock()
	}
}

func (n *news) count(name string, kind distlock.EventKind) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts[newsKey{name, kind}]
}

// newsOf returns what l has told.
func (e *env) newsOf(l distlock.Locker) *news {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.told[l]
}

// locker returns a Locker whose locks don't expire by themselves during a case.
func (e *env) locker(opts ...distlock.Option) distlock.Locker {
	e.Helper()
	return e.open(e.long, opts)
}

// brief returns a Locker with a TTL that a case can wait for.
func (e *env) brief(opts ...distlock.Option) distlock.Locker {
	e.Helper()
	return e.open(e.ttl, opts)
}

func (e *env) open(ttl time.Duration, opts []distlock.Option) distlock.Locker {
	e.Helper()
	n := &news{counts: map[newsKey]int{}}
	opts = append([]distlock.Option{distlock.WithTTL(ttl), distlock.WithObserver(n)}, opts...)
	l := e.h.NewLocker(e.T, opts...)
	e.mu.Lock()
	e.told[l] = n
	e.mu.Unlock()
	e.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = l.Close() // how it answers is the subject of area close
		}()
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-closed:
		case <-timer.C:
			e.Errorf("a Locker has not closed in %v", patience)
		}
	})
	return l
}

// lockers returns n of them.
func (e *env) lockers(n int) []distlock.Locker {
	e.Helper()
	ls := make([]distlock.Locker, n)
	for i := range ls {
		ls[i] = e.locker()
	}
	return ls
}

// soon returns a context that ends when patience does.
func (e *env) soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.ctx, patience)
}

// lock waits for name.
func (e *env) lock(l distlock.Locker, name string, opts ...distlock.LockOption) *distlock.Lock {
	e.Helper()
	ctx, cancel := e.soon()
	defer cancel()
	lk, err := l.Lock(ctx, name, opts...)
	if err != nil {
		e.Fatalf("Lock(%q) failed: %v", name, err)
	}
	return lk
}

// try is TryLock, tried again after an error of communication: those are
// answers of the network and no statement about the lock.
func (e *env) try(ctx context.Context, l distlock.Locker, name string, opts ...distlock.LockOption) (*distlock.Lock, error) {
	for n := 1; ; n++ {
		lk, err := l.TryLock(ctx, name, opts...)
		if err == nil || n == 5 || stated(err) || ctx.Err() != nil {
			return lk, err
		}
	}
}

// stated reports whether err is one that the contract defines.
func stated(err error) bool {
	for _, known := range []error{
		distlock.ErrHeld, distlock.ErrNotHeld, distlock.ErrLost, distlock.ErrReleased, distlock.ErrClosed,
		distlock.ErrDeadlock, distlock.ErrInvalid, distlock.ErrUnsupported,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// take takes name, which must be free, without waiting. Only after an error of
// communication, which may have left something to be undone, is it given time.
func (e *env) take(l distlock.Locker, name string, opts ...distlock.LockOption) *distlock.Lock {
	e.Helper()
	var lk *distlock.Lock
	certain := true
	e.eventually("TryLock gets the free name "+name, func() bool {
		var err error
		lk, err = l.TryLock(e.ctx, name, opts...)
		if err != nil && certain {
			if stated(err) {
				e.Fatalf("TryLock(%q) of a free name failed: %v", name, err)
			}
			certain = false
		}
		return err == nil
	})
	return lk
}

// refused checks that l cannot have name now.
func (e *env) refused(l distlock.Locker, name string) {
	e.Helper()
	lk, err := e.try(e.ctx, l, name)
	if err == nil {
		e.Fatalf("TryLock(%q) got a lock (token %d) that is held by another Locker", name, lk.Token())
	}
	if !errors.Is(err, distlock.ErrHeld) {
		e.Fatalf("TryLock(%q) of a held name: %v, want an error that matches ErrHeld", name, err)
	}
}

// unlock releases lk, which must be held.
func (e *env) unlock(lk *distlock.Lock) {
	e.Helper()
	if err := e.release(lk); err != nil {
		e.Fatalf("Unlock(%q) of a held lock: %v", lk.Name(), err)
	}
}

// release is Unlock, called again after errors of communication until that same
// release is confirmed.
func (e *env) release(lk *distlock.Lock) error {
	ctx, cancel := e.soon()
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := lk.Unlock(ctx)
		if err == nil || stated(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// held checks that lk says that it is held.
func (e *env) held(lk *distlock.Lock) {
	e.Helper()
	if err := lk.Err(); err != nil {
		e.Fatalf("lock %q: Err() = %v, want nil: it is held", lk.Name(), err)
	}
	if isClosed(lk.Lost()) {
		e.Fatalf("lock %q: Lost() is closed while Err() is nil", lk.Name())
	}
	if err := lk.Context().Err(); err != nil {
		e.Fatalf("lock %q: Context() has ended (%v) while Err() is nil", lk.Name(), context.Cause(lk.Context()))
	}
}

// lost waits until lk says that it was lost.
func (e *env) lost(lk *distlock.Lock) {
	e.Helper()
	_ = e.lossOf(lk)
}

// lossOf is lost, and returns how.
func (e *env) lossOf(lk *distlock.Lock) *distlock.LostError {
	e.Helper()
	e.await(lk.Lost(), "Lost() of %q to close", lk.Name())
	return e.lossNow(lk)
}

// lossNow returns how lk was lost, which it must say at once.
func (e *env) lossNow(lk *distlock.Lock) *distlock.LostError {
	e.Helper()
	err := lk.Err()
	if !errors.Is(err, distlock.ErrLost) {
		e.Fatalf("lock %q: Err() = %v, want an error that matches ErrLost", lk.Name(), err)
	}
	le, ok := errors.AsType[*distlock.LostError](err)
	if !ok {
		e.Fatalf("lock %q: Err() = %v (%T), want a *LostError in it", lk.Name(), err, err)
	}
	return le
}

// wantErr checks that err matches all of targets.
func (e *env) wantErr(what string, err error, targets ...error) {
	e.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			e.Fatalf("%s: got %v, want an error that matches %q", what, err, target)
		}
	}
}

// await waits until ch is closed or has something.
func (e *env) await(ch <-chan struct{}, format string, args ...any) {
	e.Helper()
	ctx, cancel := e.soon()
	defer cancel()
	select {
	case <-ch:
	case <-ctx.Done():
		e.Fatalf("waited %v in vain for "+format, append([]any{patience}, args...)...)
	}
}

// eventually polls until cond is true.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	ctx, cancel := e.soon()
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			e.Fatalf("waited %v in vain until %s", patience, what)
		}
	}
}

// pass lets d pass. It is for the cases whose subject is the passing of time:
// why says what must or must not happen meanwhile.
func (e *env) pass(d time.Duration, why string) {
	e.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.ctx.Done():
		e.Fatalf("given up while time passed (%s)", why)
	}
}

// pending is a Lock call in a goroutine of its own.
type pending struct {
	e      *env
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	lk     *distlock.Lock
	err    error
	at     time.Time // when Lock returned
}

// start calls Lock in a goroutine.
func (e *env) start(ctx context.Context, l distlock.Locker, name string) *pending {
	ctx, cancel := context.WithCancel(ctx)
	p := &pending{e: e, name: name, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.lk, p.err = l.Lock(ctx, name)
		p.at = time.Now()
	}()
	e.Cleanup(cancel)
	return p
}

// wait calls Lock on a taken name in a goroutine and returns when it waits.
func (e *env) wait(ctx context.Context, l distlock.Locker, name string) *pending {
	e.Helper()
	n := e.newsOf(l)
	before := n.count(name, distlock.EventWaiting)
	p := e.start(ctx, l, name)
	e.eventually("Lock waits for "+name+" (EventWaiting)", func() bool {
		return n.count(name, distlock.EventWaiting) > before || isClosed(p.done)
	})
	if isClosed(p.done) && p.err == nil {
		e.Fatalf("Lock(%q) got a lock that is held by another", name)
	}
	return p
}

// got returns the lock that the call must get.
func (p *pending) got() *distlock.Lock {
	p.e.Helper()
	p.e.await(p.done, "Lock(%q) to get the lock", p.name)
	if p.err != nil {
		p.e.Fatalf("Lock(%q) failed: %v", p.name, p.err)
	}
	return p.lk
}

// failed returns the error with which the call must end.
func (p *pending) failed() error {
	p.e.Helper()
	p.e.await(p.done, "Lock(%q) to end", p.name)
	if p.err == nil {
		p.e.Fatalf("Lock(%q) got the lock (token %d), want an error", p.name, p.lk.Token())
	}
	return p.err
}

// mustWait checks that the call has not returned.
func (p *pending) mustWait(why string) {
	p.e.Helper()
	if isClosed(p.done) {
		p.e.Fatalf("Lock(%q) returned (%v), want it to wait: %s", p.name, p.err, why)
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// expire makes the backend drop the holder of name.
func (e *env) expire(name string) {
	e.Helper()
	e.h.(Expirer).Expire(e.T, name)
}

// partition cuts l off until the returned function is called or the case ends.
func (e *env) partition(l distlock.Locker) (heal func()) {
	e.Helper()
	heal = sync.OnceFunc(e.h.(Partitioner).Partition(e.T, l))
	e.Cleanup(heal)
	return heal
}

// steady runs fn until it has nothing to say. What fn says counts only if this
// process never stood still for longer than tolerance meanwhile: a program that
// gets no CPU cannot keep a lock up, and that is nobody's fault. Each attempt
// must use a name of its own.
func (e *env) steady(tolerance time.Duration, fn func(attempt string) error) {
	e.Helper()
	const attempts = 5
	for n := range attempts {
		meter := startStallMeter()
		err := fn("attempt" + string(rune('1'+n)))
		stalled := meter.stop()
		switch {
		case err == nil:
			return
		case stalled <= tolerance || n == attempts-1:
			e.Fatalf("%v (longest standstill of this process: %v)", err, stalled)
		}
		e.Logf("this process stood still for %v, more than %v: trying again after: %v", stalled, tolerance, err)
	}
}

// stallMeter measures for how long timers of this process were late.
type stallMeter struct {
	quit chan struct{}
	done chan time.Duration
}

func startStallMeter() *stallMeter {
	m := &stallMeter{quit: make(chan struct{}), done: make(chan time.Duration, 1)}
	go func() {
		const step = 2 * time.Millisecond
		tick := time.NewTicker(step)
		defer tick.Stop()
		var worst time.Duration
		last := time.Now()
		for {
			select {
			case <-tick.C:
			case <-m.quit:
				m.done <- max(worst, time.Since(last)-step)
				return
			}
			now := time.Now()
			worst = max(worst, now.Sub(last)-step)
			last = now
		}
	}()
	return m
}

func (m *stallMeter) stop() time.Duration {
	close(m.quit)
	return <-m.done
}
