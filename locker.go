package distlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/distlock/driver"
)

// Locker acquires named locks. Every backend provides one, and it is safe for
// concurrent use. A name is valid UTF-8 of 1 to 512 bytes, and any such name
// works on every backend.
type Locker interface {
	// Lock waits until it holds name or ctx is done. ctx bounds the wait only: the
	// lock is then held until Unlock, loss or Close. While it waits, Lock goes on
	// through errors of transport; errors that trying again cannot mend
	// (credentials, permission, an unsuitable server) it returns at once. A wait
	// that ctx ended matches ctx's error and, if the lock was taken, ErrHeld.
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)

	// TryLock makes one full attempt, bounded by ctx and WithTryTimeout. Its error
	// matches ErrHeld if somebody else holds the lock or is ahead in this process.
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)

	// Close releases the locks still held (their loss says Closed), ends waits
	// with ErrClosed, and returns when nothing of this Locker runs any more, at
	// latest after WithReleaseTimeout. It returns an error if something could not
	// be confirmed released by then; that is left to its TTL, or to its session,
	// which nothing keeps any more. Further calls return the same.
	Close() error
}

// Client is the Locker over a driver.Driver. Programs get one from a backend.
type Client struct {
	d     driver.Driver
	cfg   config
	epoch time.Time // a random point on which the grid of renewals stands

	running    context.Context // ends with ErrClosed when Close begins
	stop       context.CancelCauseFunc
	background context.Context // ends when Close ends
	cut        context.CancelFunc
	closed     chan struct{} // closed when Close has ended
	closeErr   error

	known    atomic.Pointer[knowledge]
	wallSkew atomic.Int64 // only tests set it: the wall clock's lead over the monotonic one

	mu           sync.Mutex
	closing      bool
	active       int           // calls and goroutines that Close waits for
	idle         chan struct{} // closed when Close waits for nothing any more
	gates        map[string]*gate
	holdings     map[*holding]struct{}
	keepers      map[driver.Keeper]*keeper
	roused       map[*keeper]struct{} // those with renewals due in this round
	undos        map[*undo]struct{}
	undosRunning int
	retirements  int // how many sessions have ended
	alarms       alarms
	wallAhead    time.Duration // the wall clock's lead since epoch, at the last alarm
	events       []emitted
}

var _ Locker = (*Client)(nil)

// New returns a Client over d. It sends nothing. It is for those who write
// backends; a backend's own New calls it.
func New(d driver.Driver, opts ...Option) (*Client, error) {
	if d == nil {
		return nil, invalid("Driver", "must not be nil")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	c := &Client{
		d: d, cfg: cfg, closed: make(chan struct{}),
		gates:    map[string]*gate{},
		holdings: map[*holding]struct{}{},
		keepers:  map[driver.Keeper]*keeper{},
		roused:   map[*keeper]struct{}{},
		undos:    map[*undo]struct{}{},
	}
	c.epoch = time.Now().Add(-randomPart(cfg.ttl))
	c.running, c.stop = context.WithCancelCause(context.Background())
	c.background, c.cut = context.WithCancel(context.Background())
	c.alarms.fire = func() {
		c.mu.Lock()
		c.active++ // Close waits for observers to be told
		c.noticeJump()
		c.alarms.ring()
		c.flushDue()
		c.unlock()
		c.end()
	}
	caps, _ := d.Capabilities(canceled) // sends nothing, and tells what needs no server
	c.known.Store(&knowledge{Capabilities: caps})
	if caps.Backend != "" {
		if _, err := c.cfg.leaseFor(cfg.lockConfig, caps); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// knowledge is what is known of the backend, at first without a server.
type knowledge struct {
	driver.Capabilities
	checked bool // the server was asked
}

func (c *Client) caps() *knowledge { return c.known.Load() }

var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Lock implements [Locker].
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.acquire(ctx, "lock", name, opts)
}

// TryLock implements [Locker].
func (c *Client) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.acquire(ctx, "trylock", name, opts)
}

// Close implements [Locker].
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		<-c.closed
		return c.closeErr
	}
	end := time.Now().Add(c.cfg.releaseTimeout)
	c.closing = true
	idle := make(chan struct{})
	c.idle = idle
	c.stop(ErrClosed)
	for h := range c.holdings {
		h.lose(Closed, nil)
	}
	c.quiet()
	c.unlock()

	// A part of the time is kept for the driver.
	wait := time.NewTimer(c.cfg.releaseTimeout - c.cfg.releaseTimeout/5)
	defer wait.Stop()
	select {
	case <-idle:
	case <-wait.C:
	}
	c.mu.Lock()
	unconfirmed := c.unconfirmed()
	c.mu.Unlock()

	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	_, err := guarded(ctx, c, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.d.Close(ctx)
	}, nil)
	c.cut()
	c.mu.Lock()
	c.alarms.stop()
	if err = errors.Join(unconfirmed, err); err != nil {
		c.closeErr = &Error{Op: "close", Backend: c.caps().Backend, Err: err}
	}
	c.mu.Unlock()
	close(c.closed)
	return c.closeErr
}

// unconfirmed is an error that names what may still be at the server, or nil.
func (c *Client) unconfirmed() error {
	var names []string
	err := errReleasing // the first try hangs
	for u := range c.undos {
		names = append(names, u.name)
		if u.err != nil {
			err = u.err
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	names = slices.Compact(names)
	const some = 5
	if n := len(names); n > some {
		return fmt.Errorf("%d locks are not confirmed released, among them %q: %w", n, names[:some], err)
	}
	return fmt.Errorf("not confirmed released: %q: %w", names, err)
}

// Do runs fn while it holds name. fn's context has ctx's values and ends with
// ctx or with the lock; context.Cause says why. When fn returns, Do releases the
// lock. It returns fn's error joined with that of the lock: a loss matches ErrLost,
// even if fn returned nil. If fn panics, the lock is released and the panic goes
// on.
func Do(ctx context.Context, l Locker, name string, fn func(ctx context.Context, lk *Lock) error, opts ...LockOption) (err error) {
	if fn == nil {
		return &Error{Op: "lock", Name: name, Err: invalid("fn", "must not be nil")}
	}
	lk, err := l.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	held, cancel := context.WithCancelCause(lk.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	defer func() { err = errors.Join(err, lk.Unlock(ctx)) }()
	return fn(held, lk)
}

// begin counts a call that Close waits for, end ends it.
func (c *Client) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return ErrClosed
	}
	c.active++
	return nil
}

func (c *Client) end() {
	c.mu.Lock()
	defer c.unlock()
	c.active--
	c.quiet()
}

// spawn runs f in a goroutine that Close waits for, with the mutex held.
func (c *Client) spawn(f func()) {
	c.active++
	go func() {
		defer c.end()
		f()
	}()
}

// quiet tells Close if there is nothing to wait for.
func (c *Client) quiet() {
	if c.closing && c.active == 0 && len(c.undos) == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// guarded runs f, a call of the driver that may ignore its ctx, and returns
// shortly after ctx is done in any case, then with an error that is a *givenUp.
// What f returns after that goes to late.
func guarded[T any](ctx context.Context, c *Client, f func(context.Context) (T, error), late func(T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	results, left := make(chan result), make(chan struct{})
	c.mu.Lock()
	c.spawn(func() {
		v, err := f(ctx)
		select {
		case results <- result{v, err}:
		case <-left:
			if late != nil {
				late(v, err)
			}
		}
	})
	c.mu.Unlock()
	select {
	case r := <-results:
		return r.v, r.err
	case <-ctx.Done():
	}
	// Drivers that honour ctx answer now, and know better what happened.
	grace := time.NewTimer(20 * time.Millisecond)
	defer grace.Stop()
	select {
	case r := <-results:
		return r.v, r.err
	case <-grace.C:
		close(left)
		var none T
		return none, &givenUp{ctx.Err()}
	}
}

// givenUp is the end of a call that the driver has not returned from.
type givenUp struct{ err error }

func (e *givenUp) Error() string { return "no answer: " + e.err.Error() }
func (e *givenUp) Unwrap() error { return e.err }
