package distlock

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	randv2 "math/rand/v2"
	"time"

	"example.com/distlock/driver"
)

const (
	// hintFloor is the longest pause between polls where hints come: a hint may
	// be lost.
	hintFloor = time.Second
	// waitsAfter is how long a place in a queue goes without a grant before that
	// counts as waiting, for observers.
	waitsAfter = time.Millisecond
)

// contender is one call of Lock or TryLock on its way to a holding.
type contender struct {
	c       *Client
	ctx     context.Context // the caller's
	op      string
	name    string
	try     bool
	cfg     lockConfig
	ttl     time.Duration // asked of the server
	limit   time.Duration // for one attempt
	started time.Time

	gate     *gate
	attempts int
	held     bool    // the lock was taken when that was last known
	last     error   // the last error of transport since then
	told     [2]bool // EventWaiting was told: for a holder, for a server
}

// attempt is one Owner's way to the server. An Owner is never used again after
// its first Abandon, Release or Leave, or after ErrHeld.
type attempt struct {
	c       *Client
	req     driver.Request
	unclear bool // something may be at the server

	// Guarded by the Client's mutex.
	gone    bool // the server said that it has ended
	goneErr error
	g       *grant
}

func (c *Client) acquire(ctx context.Context, op, name string, opts []LockOption) (*Lock, error) {
	n := &contender{c: c, ctx: ctx, op: op, name: name, try: op == "trylock", started: time.Now()}
	lk, err := n.run(opts)
	if err == nil {
		return lk, nil
	}
	err = &Error{Op: op, Backend: c.caps().Backend, Name: name, Err: err}
	c.mu.Lock()
	c.emit(ctx, Event{Kind: EventFailed, Name: name, Waited: time.Since(n.started), Attempts: n.attempts, Err: err})
	c.unlock()
	return nil, err
}

func (n *contender) run(opts []LockOption) (*Lock, error) {
	c := n.c
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.end()
	if err := checkName("Name", n.name); err != nil {
		return nil, err
	}
	var err error
	if n.cfg, err = c.cfg.forCall(opts); err != nil {
		return nil, err
	}
	if err := n.fitTTL(); err != nil {
		return nil, err
	}
	if n.ctx.Err() != nil {
		return nil, contextError(n.ctx)
	}
	if lk, err := c.reenter(n.ctx, n.name, n.cfg.reentrant); lk != nil || err != nil {
		return lk, err
	}
	wait, stop := n.waitContext()
	defer stop()
	lk, err := n.waitFor(wait)
	if err != nil && c.running.Err() != nil {
		err = ErrClosed // whatever Close has made of the wait
	}
	return lk, err
}

// waitContext returns the context of the wait: it ends with the caller's, with
// Close, and for TryLock after its own time. The caller's cause is not in it: a
// driver that returns it would seem to speak for the server, if the cause is some
// other lock's ErrHeld or ErrLost.
func (n *contender) waitContext() (context.Context, func()) {
	wait, cancel := context.WithCancel(context.WithoutCancel(n.ctx))
	stops := []func(){cancel}
	if n.try {
		wait, cancel = context.WithTimeout(wait, n.limit)
		stops = append(stops, cancel)
	}
	for _, ctx := range []context.Context{n.ctx, n.c.running} {
		stop := context.AfterFunc(ctx, stops[0])
		stops = append(stops, func() { stop() })
	}
	return wait, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// waitFor is the way from the local queue to the holding.
func (n *contender) waitFor(ctx context.Context) (*Lock, error) {
	if err := n.checkServer(ctx); err != nil {
		return nil, err
	}
	var err error
	if n.gate, err = n.enter(ctx); err != nil {
		return nil, err
	}
	lk, err := n.contend(ctx)
	if err != nil {
		n.c.mu.Lock()
		n.gate.pass()
		n.c.mu.Unlock()
	}
	return lk, err
}

// fitTTL checks the TTL against what is known of the backend.
func (n *contender) fitTTL() (err error) {
	cfg, caps := &n.c.cfg, n.c.caps()
	n.ttl = n.cfg.ttl
	if caps.Backend != "" {
		if n.ttl, err = cfg.leaseFor(n.cfg, caps.Capabilities); err != nil {
			return err
		}
	}
	n.limit = cfg.tryTimeoutFor(n.ttl)
	return nil
}

// checkServer lets the driver look at its server, once per Client.
func (n *contender) checkServer(ctx context.Context) error {
	c := n.c
	for fails := 0; ; fails++ {
		if c.caps().checked {
			return n.fitTTL()
		}
		actx, cancel := context.WithTimeout(ctx, maxTryTimeout)
		caps, err := guarded(actx, c, c.d.Capabilities, nil)
		cancel()
		switch {
		case err == nil:
			c.known.Store(&knowledge{caps, true})
		case isPermanent(err) || n.try:
			return n.failed(ctx, err)
		default:
			n.failing(ctx, err)
			if !n.pause(ctx, c.pauseFor(fails), nil) {
				return n.gaveUp(ctx)
			}
		}
	}
}

// contend goes to the server until a grant becomes a holding.
func (n *contender) contend(ctx context.Context) (*Lock, error) {
	for again := 0; ; again++ {
		var dg driver.Grant
		var a *attempt
		var err error
		if q, ok := n.c.d.(driver.Queuer); ok && !n.try {
			dg, a, err = n.queue(ctx, q)
		} else {
			dg, a, err = n.poll(ctx)
		}
		if err != nil {
			return nil, err
		}
		lk, err := n.accept(ctx, a, dg)
		if err == nil {
			return lk, nil
		}
		var stale *staleGrant
		if !errors.As(err, &stale) || n.try && !errors.Is(err, ErrNotHeld) {
			return nil, err
		}
		n.last = err
		if !n.pause(ctx, n.c.pauseFor(again), nil) {
			return nil, n.gaveUp(ctx)
		}
	}
}

// staleGrant is a grant that was over before it could be returned; it was given
// back, and the wait goes on.
type staleGrant struct{ err error }

func (e *staleGrant) Error() string { return e.err.Error() }
func (e *staleGrant) Unwrap() error { return e.err }

// accept makes a holding of what the server granted, or gives it back.
func (n *contender) accept(ctx context.Context, a *attempt, dg driver.Grant) (*Lock, error) {
	c := n.c
	kd := dg.Lease.Keeper()
	every, maxBatch := kd.Every(), kd.MaxBatch()
	token, err := tokenOf(dg.Number, c.caps().Fencing)

	c.mu.Lock()
	defer c.unlock()
	kp := c.keeperFor(kd, every, maxBatch, dg.TTL)
	g := c.take(n.name, dg, kp, n.cfg.fixed > 0 && !kp.shared)
	a.g = g
	if err == nil && g.valid.length <= 0 {
		err = &driver.PermanentError{Err: fmt.Errorf("distlock: the server granted a TTL of %v, which is not longer than the safety margin of %v",
			dg.TTL, c.cfg.marginFor(dg.TTL))}
	}
	if err == nil {
		err = n.fresh(ctx, a, g)
	}
	if err == nil && c.closing {
		err = ErrClosed
	}
	if err == nil && ctx.Err() != nil {
		err = n.gaveUp(ctx)
	}
	if err != nil {
		u := g.giveBack()
		g.drop()
		u.start()
		return nil, err
	}
	now := time.Now()
	h := &holding{c: c, g: g, token: token, since: now, handles: map[*Lock]struct{}{}, ctx: context.WithoutCancel(n.ctx), gate: n.gate}
	h.max = span{now, n.cfg.maxHold}
	if kp.shared {
		h.fixed = span{now, n.cfg.fixed}
	}
	g.h = h
	c.holdings[h] = struct{}{}
	n.gate.set(gateTaken)
	h.setLimit()
	c.alarms.set(&g.end, g.valid.end())
	lk := h.newHandle(n.ctx)
	c.emit(h.ctx, Event{Kind: EventAcquired, Name: n.name, Token: token, Waited: now.Sub(n.started), Attempts: n.attempts})
	return lk, nil
}

// fresh makes sure that g has time left. On a shared session, whose last
// confirmation may be long ago, that takes a renewal when less than a quarter of
// the TTL is left. It is called with the mutex held and gives it up to wait.
func (n *contender) fresh(ctx context.Context, a *attempt, g *grant) error {
	c, kp := n.c, g.keeper
	for {
		switch {
		case a.gone:
			return &staleGrant{errors.Join(ErrNotHeld, a.goneErr)}
		case kp.retired:
			return &staleGrant{ErrNotHeld}
		case !kp.shared && c.left(g.valid) <= 0:
			return &staleGrant{errLateGrant}
		case !kp.shared || c.left(g.valid) >= g.ttl/4:
			return nil
		}
		asked, next, retry := g.renewNow(), kp.interval, retryPause(kp.ttl)
		var err error
		c.unlocked(func() {
			select {
			case err = <-asked:
			case <-ctx.Done():
				err = ctx.Err()
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotHeld) {
				n.last = err
				n.pause(ctx, min(retry, next), nil)
			}
		})
		switch {
		case errors.Is(err, ErrNotHeld):
			return &staleGrant{err}
		case ctx.Err() != nil:
			return n.gaveUp(ctx)
		case err == nil && c.left(g.valid) < g.ttl/4 && !kp.retired:
			// One renewal need not move From (ZooKeeper's takes three).
			c.unlocked(func() { n.pause(ctx, next, nil) })
		}
	}
}

// newAttempt makes a request with an Owner of its own.
func (n *contender) newAttempt() *attempt {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	a := &attempt{c: n.c}
	a.req = driver.Request{
		Name: n.name, Owner: base64.RawURLEncoding.EncodeToString(id[:]),
		TTL: n.ttl, Metadata: n.cfg.metadata, Gone: a.ended,
	}
	return a
}

// ended takes the server's own news that the attempt's holding is over. It may
// come from a driver's goroutine that must not block, so nothing of the user's
// runs in it.
func (a *attempt) ended(reason error) {
	c := a.c
	c.mu.Lock()
	c.spawn(func() {
		c.mu.Lock()
		defer c.unlock()
		a.gone, a.goneErr = true, reason
		if a.g != nil && a.g.h != nil {
			h := a.g.h
			h.checkClock() // the server's end of a TTL may be told before our timer fires
			h.lose(Revoked, reason)
		}
	})
	c.mu.Unlock()
}

// abandon undoes a, if anything of it may be at the server.
func (a *attempt) abandon() {
	if !a.unclear {
		return
	}
	a.unclear = false
	a.c.mu.Lock()
	a.c.undoAbandon(a.req)
	a.c.mu.Unlock()
}

// poll asks for the lock until it is granted; once, for TryLock.
func (n *contender) poll(ctx context.Context) (driver.Grant, *attempt, error) {
	c := n.c
	hints := hinting{n: n}
	defer hints.stop()
	a := n.newAttempt()
	for held, fails := 0, 0; ; {
		ended := c.sessionsEnded()
		dg, err := ask(ctx, n, a, c.d.Acquire, n.returnLate)
		if err == nil {
			return dg, a, nil
		}
		var pause time.Duration
		var hint <-chan struct{}
		if errors.Is(err, ErrHeld) {
			a.unclear = false
			a = n.newAttempt()
			n.heardHeld(err)
			if n.try {
				return dg, nil, err
			}
			var fresh bool
			if hint, fresh = hints.listen(ctx); fresh {
				continue // try again now that hints come
			}
			pause = n.pauseHeld(held, err, hint != nil)
			held++
		} else {
			// A TryLock whose session ended under it, retired when it had long been
			// idle, has not had its attempt yet.
			if isPermanent(err) || n.try && c.sessionsEnded() == ended {
				a.abandon()
				return dg, nil, n.failed(ctx, err)
			}
			n.failing(ctx, err)
			a = n.again(a, err)
			pause = c.pauseFor(fails)
			fails++
		}
		if !n.pause(ctx, pause, hint) {
			a.abandon()
			return dg, nil, n.gaveUp(ctx)
		}
	}
}

// queue takes a place in the server's queue and waits for its turn.
func (n *contender) queue(ctx context.Context, q driver.Queuer) (driver.Grant, *attempt, error) {
	var none driver.Grant
	a := n.newAttempt()
	for fails := 0; ; fails++ {
		t, err := ask(ctx, n, a, q.Enqueue, n.leave)
		if err == nil {
			var dg driver.Grant
			if dg, err = n.stand(ctx, a, t); err == nil {
				return dg, a, nil
			}
			a = n.newAttempt()
		}
		switch {
		case isPermanent(err):
			a.abandon()
			return none, nil, err
		case errors.Is(err, ErrHeld):
			a.unclear = false
			a = n.newAttempt()
			n.isHeld()
		case !errors.Is(err, ErrNotHeld): // else the place is gone, and a new one is taken
			n.failing(ctx, err)
			a = n.again(a, err)
		}
		if !n.pause(ctx, n.c.pauseFor(fails), nil) {
			a.abandon()
			return none, nil, n.gaveUp(ctx)
		}
	}
}

// stand waits at a place in the queue. Its keeper keeps the place meanwhile.
func (n *contender) stand(ctx context.Context, a *attempt, t driver.Ticket) (driver.Grant, error) {
	c := n.c
	kd := t.Keeper()
	every, maxBatch := kd.Every(), kd.MaxBatch()
	waits, gone := context.WithCancel(ctx)
	defer gone()

	c.mu.Lock()
	kp := c.keeperFor(kd, every, maxBatch, n.ttl)
	k := &kept{k: t, ttl: n.ttl}
	k.answered = func(err error) {
		if errors.Is(err, ErrNotHeld) {
			gone()
		}
	}
	k.ended = func(Reason, error) { gone() }
	kp.keep(k)
	k.renewAfter(time.Now())
	if kp.retired {
		gone()
	}
	n.gate.set(gateTaken)
	n.isHeld()
	c.mu.Unlock()

	waiting := time.AfterFunc(waitsAfter, func() {
		c.mu.Lock()
		defer c.unlock()
		n.waits(nil)
	})
	dg, err := n.waitTurn(waits, t)
	waiting.Stop()

	c.mu.Lock()
	defer c.unlock()
	kp.drop(k)
	a.unclear = false
	if err == nil || errors.Is(err, ErrNotHeld) {
		return dg, err
	}
	c.newUndo(n.name, kp, n.ttl, t.Leave).start()
	if ctx.Err() == nil && waits.Err() != nil {
		return dg, ErrNotHeld // a place that is lost is nobody's loss
	}
	return dg, err
}

// waitTurn waits at t through errors of transport.
func (n *contender) waitTurn(ctx context.Context, t driver.Ticket) (driver.Grant, error) {
	for fails := 0; ; fails++ {
		dg, err := guarded(ctx, n.c, t.Wait, func(dg driver.Grant, err error) {
			if err == nil {
				n.returnLate(dg)
			}
		})
		if err == nil || errors.Is(err, ErrNotHeld) || isPermanent(err) || ctx.Err() != nil {
			return dg, err
		}
		if !n.pause(ctx, n.c.pauseFor(fails), nil) {
			return dg, err
		}
	}
}

// ask makes one bounded attempt. A grant or place that comes after it was given
// up goes to late.
func ask[T any](ctx context.Context, n *contender, a *attempt, send func(context.Context, driver.Request) (T, error), late func(T)) (T, error) {
	n.attempts++
	a.unclear = true
	ctx, cancel := context.WithTimeout(ctx, n.limit)
	defer cancel()
	return guarded(ctx, n.c, func(ctx context.Context) (T, error) { return send(ctx, a.req) }, func(v T, err error) {
		if err == nil {
			late(v)
		}
	})
}

func (c *Client) sessionsEnded() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retirements
}

// again returns the attempt to go on with after an unclear outcome: the same
// request, unless the driver has not returned from it yet.
func (n *contender) again(a *attempt, err error) *attempt {
	if _, hung := errors.AsType[*givenUp](err); hung {
		a.abandon()
		return n.newAttempt()
	}
	return a
}

// returnLate gives back a grant that came after its attempt was given up.
func (n *contender) returnLate(dg driver.Grant) {
	c := n.c
	kd := dg.Lease.Keeper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newUndo(n.name, c.keepers[kd], n.ttl, dg.Lease.Release).start()
}

// leave gives up a place that came after its attempt was given up.
func (n *contender) leave(t driver.Ticket) {
	c := n.c
	kd := t.Keeper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newUndo(n.name, c.keepers[kd], n.ttl, t.Leave).start()
}

// heardHeld takes the answer that somebody else has the lock.
func (n *contender) heardHeld(err error) {
	c := n.c
	n.isHeld()
	var held *driver.HeldError
	var kd driver.Keeper
	var every time.Duration
	var maxBatch int
	if errors.As(err, &held) && held.Keeper != nil {
		kd = held.Keeper
		every, maxBatch = kd.Every(), kd.MaxBatch()
	}
	c.mu.Lock()
	defer c.unlock()
	if kd != nil {
		c.keeperFor(kd, every, maxBatch, n.ttl).used()
	}
	if !n.try {
		n.gate.set(gateTaken)
		n.waits(nil)
	}
}

func (n *contender) isHeld() { n.held, n.last = true, nil }

// waits tells observers, once, that this Lock has begun to wait for a holder,
// or, because of err, for the server; mutex held.
func (n *contender) waits(err error) {
	told := &n.told[0]
	if err != nil {
		told = &n.told[1]
	}
	if !*told {
		*told = true
		n.c.emit(n.ctx, Event{Kind: EventWaiting, Name: n.name, Err: err})
	}
}

// failing notes what keeps n from the lock. What ctx's end did to a request in
// flight says less than what was known before.
func (n *contender) failing(ctx context.Context, err error) {
	if ctx.Err() != nil && (n.held || n.last != nil) {
		return
	}
	n.last = asText(ctx, err)
	if !n.try {
		n.c.mu.Lock()
		defer n.c.unlock()
		n.waits(err)
	}
}

// asText keeps of an error that only says that ctx has ended what it says: the
// wait's own context is cancelled also when the caller's had a deadline.
func asText(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return errors.New(err.Error())
	}
	return err
}

// gaveUp is the error of a wait that ended: by the caller's context or, for
// TryLock, by its own time.
func (n *contender) gaveUp(ctx context.Context) error {
	if n.ctx.Err() != nil {
		ctx = n.ctx
	}
	e := &waitError{ctxErr: contextError(ctx)}
	if n.held {
		e.why = append(e.why, ErrHeld)
	}
	if n.last != nil {
		e.why = append(e.why, n.last)
	}
	return e
}

// failed is the error of a single attempt.
func (n *contender) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil && !isPermanent(err) {
		n.last = asText(ctx, err)
		return n.gaveUp(ctx)
	}
	return err
}

// pauseFor is how long to wait before try i again.
func (c *Client) pauseFor(i int) time.Duration { return max(c.cfg.backoff(i), time.Millisecond) }

// pauseHeld is how long to wait after the i-th answer that the lock is taken.
func (n *contender) pauseHeld(i int, err error, hinted bool) time.Duration {
	var pause time.Duration
	if hinted {
		pause = hintFloor + randomPart(hintFloor/4)
	} else {
		pause = n.c.pauseFor(i)
	}
	var held *driver.HeldError
	if errors.As(err, &held) && held.Remaining > 0 {
		pause = min(pause, held.Remaining+time.Millisecond+randomPart(4*time.Millisecond))
	}
	return pause
}

// pause waits for d, a hint, or the end of ctx: it reports whether to go on.
func (n *contender) pause(ctx context.Context, d time.Duration, hint <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-hint:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

func randomPart(d time.Duration) time.Duration { return randv2.N(max(d, 1)) }

// hinting is the listening of one contender to its backend's hints.
type hinting struct {
	n    *contender
	ch   <-chan struct{}
	end  func()
	next time.Time // when to try to listen again
}

// listen returns the channel of hints, nil if there are none, and whether they
// have just begun.
func (hs *hinting) listen(ctx context.Context) (hint <-chan struct{}, fresh bool) {
	d, ok := hs.n.c.d.(driver.Hinter)
	if !ok || hs.ch != nil || time.Now().Before(hs.next) {
		return hs.ch, false
	}
	type listening struct {
		ch  <-chan struct{}
		end func()
	}
	ctx, cancel := context.WithTimeout(ctx, hs.n.limit)
	defer cancel()
	l, err := guarded(ctx, hs.n.c, func(ctx context.Context) (listening, error) {
		ch, end, err := d.Hints(ctx, hs.n.name)
		return listening{ch, end}, err
	}, func(l listening, err error) {
		if err == nil {
			l.end()
		}
	})
	if err != nil {
		hs.next = time.Now().Add(hintFloor) // polls meanwhile
		return nil, false
	}
	hs.ch, hs.end = l.ch, l.end
	return hs.ch, true
}

func (hs *hinting) stop() {
	if hs.end != nil {
		hs.end()
	}
}
