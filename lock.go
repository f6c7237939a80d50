package distlock

import (
	"context"
	"errors"
	"time"

	"example.com/distlock/driver"
)

// grant is what the server gave. Ownership is not in it but in the holding: the
// two part ways when a grant passes from one holder of this process to the next.
type grant struct {
	kept
	c      *Client
	name   string
	lease  driver.Lease
	number uint64
	end    alarm    // its deadline
	h      *holding // who holds by it; nil before and after
}

// holding is one ownership of a lock, from Lock's return to its Unlock or loss.
// A context carries it, and several handles may share it by re-entry. The
// Client's mutex guards it.
type holding struct {
	c       *Client
	g       *grant
	token   Token
	since   time.Time
	max     span  // MaxHold
	fixed   span  // a fixed lease counted here, where a session carries the locks
	limit   alarm // the end of the earlier of the two
	ended   error // nil while held; then ErrReleased or a *LostError
	handles map[*Lock]struct{}
	ctx     context.Context // values for events
	gate    *gate
}

// Lock is one holding of a lock, or one handle of several on it (see
// [Reentrant]). Its methods are safe for concurrent use. A nil or zero Lock
// holds nothing: its methods say so and never panic.
type Lock struct {
	h      *holding
	ctx    context.Context
	cancel context.CancelCauseFunc
	lost   chan struct{}

	// Guarded by the Client's mutex.
	err      error // why this handle holds no longer; nil while it does
	release  *undo // set by the Unlock that released the holding
	waiting  bool  // that Unlock still waits for its first try
	reported bool  // its confirmation was returned
}

type heldKey struct {
	c    *Client
	name string
}

var (
	closedChan  = func() chan struct{} { ch := make(chan struct{}); close(ch); return ch }()
	deadContext = func() context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrNotHeld)
		return ctx
	}()
)

// newHandle makes a Lock on h, with the mutex held.
func (h *holding) newHandle(ctx context.Context) *Lock {
	l := &Lock{h: h, lost: make(chan struct{})}
	ctx = context.WithValue(context.WithoutCancel(ctx), heldKey{h.c, h.g.name}, h)
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	h.handles[l] = struct{}{}
	return l
}

// Name returns the lock's name.
func (l *Lock) Name() string {
	if !l.ever() {
		return ""
	}
	return l.h.g.name
}

// Token returns the fencing token to send with every access to what the lock
// protects. It is 0 once the lock is held no longer, which is checked against the
// clock.
func (l *Lock) Token() Token {
	if l.Err() != nil {
		return 0
	}
	return l.h.token
}

// ValidUntil returns the local deadline: until then nobody else can have got the
// lock, on the assumptions that the backend's documentation states. Renewal moves
// it forward. It is zero once the lock is held no longer.
func (l *Lock) ValidUntil() time.Time {
	if l.Err() != nil {
		return time.Time{}
	}
	c := l.h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	until := l.h.g.valid.end()
	for _, s := range []span{l.h.max, l.h.fixed} {
		if s.length > 0 && s.end().Before(until) {
			until = s.end()
		}
	}
	return until
}

// Context returns a context with the values of the one given to Lock. It ends
// with the holding, and [context.Cause] then says why: ErrReleased, or a
// *LostError. Given to Lock, it tells that it holds this lock already.
func (l *Lock) Context() context.Context {
	if !l.ever() {
		return deadContext
	}
	return l.ctx
}

// Lost returns a channel that is closed when the lock is lost, after the cause of
// Context is set, and before a rival can get the lock. Unlock does not close it.
// For a nil or zero Lock it is closed.
func (l *Lock) Lost() <-chan struct{} {
	if !l.ever() {
		return closedChan
	}
	return l.lost
}

// Err returns nil while the lock is held, ErrReleased after Unlock, a *LostError
// after a loss, and ErrNotHeld for a nil or zero Lock. It checks the clock
// itself, since after a pause timers fire late.
func (l *Lock) Err() error {
	if !l.ever() {
		return ErrNotHeld
	}
	c := l.h.c
	c.mu.Lock()
	defer c.unlock()
	l.h.checkClock()
	return l.err
}

// Renew asks the server for a renewal now and returns when it has answered or
// ctx is done. Renewal goes on by itself; this is for a fixed lease, or to be
// sure. An error that matches ErrLost is final, any other leaves the lock held
// until its deadline. MaxHold is not prolonged.
func (l *Lock) Renew(ctx context.Context) error {
	if !l.ever() {
		return ErrNotHeld
	}
	h, c := l.h, l.h.c
	c.mu.Lock()
	h.checkClock()
	if l.err != nil {
		defer c.unlock()
		return h.wrap("renew", l.endedErr())
	}
	before := time.Now()
	asked := h.g.renewNow()
	c.unlock()
	var err error
	select {
	case err = <-asked:
	case <-ctx.Done():
		err = contextError(ctx)
	case <-l.ctx.Done():
		err = context.Cause(l.ctx)
	}
	c.mu.Lock()
	defer c.unlock()
	h.checkClock()
	switch {
	case l.err != nil:
		err = l.endedErr()
	case err == nil && h.fixed.length > 0 && before.After(h.fixed.from):
		h.fixed.from = before
		h.setLimit()
	}
	return h.wrap("renew", err)
}

// Unlock ends the holding at its first call, so that it is never reported lost
// afterwards, and releases the lock. The attempt is made even if ctx is done,
// bounded by WithReleaseTimeout; a ctx that ends meanwhile ends the waiting for
// it only.
//
// Unlock returns nil when the release is confirmed; an error matching ErrLost
// after a loss; one matching ErrNotHeld if the lock was never held, was released
// before, or was no longer there. After any other error the release goes on in
// the background, and Unlock can be called again: it returns that error while
// the release is open, and nil, once, when it is confirmed or the lease is over.
func (l *Lock) Unlock(ctx context.Context) error {
	if !l.ever() {
		return ErrNotHeld
	}
	h, c := l.h, l.h.c
	c.mu.Lock()
	h.checkClock()
	if l.err != nil {
		defer c.unlock()
		return h.wrap("unlock", l.unlockedAgain())
	}
	if len(h.handles) > 1 { // others share the holding
		l.endHandle(ErrReleased)
		c.unlock()
		return nil
	}
	u := h.release()
	l.release, l.waiting = u, true
	c.unlock()

	return h.wrap("unlock", l.awaitRelease(ctx, u))
}

// awaitRelease makes the first try of u and waits for it, as long as ctx allows
// if it was not done from the start.
func (l *Lock) awaitRelease(ctx context.Context, u *undo) error {
	h, c := l.h, l.h.c
	try := func() error {
		err := u.try()
		c.mu.Lock()
		defer c.unlock()
		h.gate.pass()
		ev := Event{Kind: EventReleased, Name: h.g.name, Token: h.token, Held: time.Since(h.since), Err: err}
		c.emit(h.ctx, ev)
		return err
	}
	var err error
	answered := true
	if ctx.Done() == nil || ctx.Err() != nil {
		err = try()
	} else {
		result := make(chan error, 1)
		c.mu.Lock()
		c.spawn(func() { result <- try() })
		c.mu.Unlock()
		select {
		case err = <-result:
		case <-ctx.Done():
			err, answered = contextError(ctx), false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.waiting, l.reported = false, answered && (err == nil || errors.Is(err, ErrNotHeld))
	return err
}

// unlockedAgain is the answer to an Unlock of a handle that holds no longer.
func (l *Lock) unlockedAgain() error {
	switch {
	case !errors.Is(l.err, ErrReleased):
		return l.err
	case l.release == nil || l.reported:
		return ErrNotHeld
	case l.waiting || !l.release.done && l.release.err == nil:
		return errReleasing
	case !l.release.done:
		return l.release.err
	}
	l.reported = true
	return l.release.err
}

var errReleasing = errors.New("distlock: the release is under way")

func (l *Lock) endedErr() error {
	if errors.Is(l.err, ErrReleased) {
		return ErrNotHeld
	}
	return l.err
}

func (l *Lock) ever() bool { return l != nil && l.h != nil }

func (h *holding) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Backend: h.c.caps().Backend, Name: h.g.name, Err: err}
}

// checkClock loses the holding if its time is over, whatever the timers do.
func (h *holding) checkClock() {
	if h.ended != nil {
		return
	}
	c := h.c
	switch {
	case c.left(h.g.valid) <= 0:
		h.lose(Expired, h.g.lastErr)
	case h.fixed.length > 0 && c.left(h.fixed) <= 0:
		h.lose(Expired, nil)
	case h.max.length > 0 && c.left(h.max) <= 0:
		h.lose(MaxHold, nil)
	}
}

// setLimit sets the alarm for MaxHold and for a fixed lease that is counted here.
func (h *holding) setLimit() {
	var at time.Time
	for _, s := range []span{h.max, h.fixed} {
		if s.length > 0 && (at.IsZero() || s.end().Before(at)) {
			at = s.end()
		}
	}
	if !at.IsZero() && h.ended == nil {
		h.limit.ring = func(time.Time) { h.checkClock() }
		h.c.alarms.set(&h.limit, at)
	}
}

// end takes everything of h out of the Client and tells its handles why.
func (h *holding) end(why error) {
	h.ended = why
	h.g.h = nil
	h.c.alarms.unset(&h.limit)
	delete(h.c.holdings, h)
	h.g.drop()
	for l := range h.handles {
		l.endHandle(why)
	}
}

// endHandle tells l's user why it holds no longer: cause and context first, then
// the channel.
func (l *Lock) endHandle(why error) {
	delete(l.h.handles, l)
	l.err = why
	l.cancel(why)
	if !errors.Is(why, ErrReleased) {
		close(l.lost)
	}
}

// release ends h by its user's will and returns what gives the lease back.
func (h *holding) release() *undo {
	u := h.g.giveBack()
	h.end(ErrReleased)
	h.gate.state = gateBusy
	return u
}

// lose ends h against its user's will and gives the lease back in the background.
func (h *holding) lose(reason Reason, err error) {
	if h.ended != nil {
		return
	}
	now := time.Now()
	lost := &LostError{Name: h.g.name, Token: h.token, Reason: reason, At: now, Err: err}
	u := h.g.giveBack()
	h.end(lost)
	h.c.emit(h.ctx, Event{Kind: EventLost, Name: h.g.name, Token: h.token, Held: now.Sub(h.since), Err: lost})
	u.start()
	h.gate.pass()
}

// giveBack makes the undo that releases g at the server.
func (g *grant) giveBack() *undo {
	return g.c.newUndo(g.name, g.keeper, g.ttl, g.lease.Release)
}

// drop takes g from its keeper.
func (g *grant) drop() {
	g.c.alarms.unset(&g.end)
	g.keeper.drop(&g.kept)
}

// take begins to keep what a driver granted, with the mutex held.
func (c *Client) take(name string, dg driver.Grant, kp *keeper, once bool) *grant {
	g := &grant{c: c, name: name, lease: dg.Lease, number: dg.Number}
	g.k, g.ttl, g.once = dg.Lease, dg.TTL, once
	kp.keep(&g.kept)
	g.valid = c.spanOf(dg.From, dg.TTL)
	if kp.shared {
		kp.confirm(dg.From, dg.TTL)
		g.valid = kp.valid
	}
	g.answered, g.ended = g.onAnswer, g.onSessionEnd
	g.end.ring = func(time.Time) { g.onDeadline() }
	g.renewAfter(dg.From)
	return g
}

func (g *grant) onAnswer(err error) {
	h := g.h
	if h == nil {
		return
	}
	g.c.emit(h.ctx, Event{Kind: EventRenewed, Name: g.name, Token: h.token, Err: err})
	switch {
	case err == nil:
		g.lastErr = nil
		g.c.alarms.set(&g.end, g.valid.end())
	case errors.Is(err, ErrNotHeld):
		h.lose(Revoked, err)
	default:
		g.lastErr = err
	}
}

func (g *grant) onDeadline() {
	if g.h != nil {
		g.h.lose(Expired, g.lastErr)
	}
}

func (g *grant) onSessionEnd(reason Reason, err error) {
	if g.h != nil {
		g.h.lose(reason, err)
	}
}
