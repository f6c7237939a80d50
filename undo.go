package distlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"example.com/distlock/driver"
)

// maxUndosRunning bounds the goroutines that undo, if a server that many locks
// hang on is out of reach.
const maxUndosRunning = 64

// undo is something that must not stay at the server: a lock given up, an
// attempt whose outcome is unknown, a place in a queue. It is tried again in the
// background until it is confirmed, or until its time is over where a TTL or the
// end of its session takes care of it.
type undo struct {
	c     *Client
	name  string // the lock's
	do    func(context.Context) error
	until time.Time // zero: only success, or the end of the session, ends it
	kp    *keeper   // whose session it hangs on; nil: none or unknown
	ttl   time.Duration
	retry alarm
	tries int

	done bool
	err  error // of the last try, while not done
}

// newUndo notes what is to be undone, with c.mu held. Where a lock has a lease of
// its own, nothing is left of it one TTL from now.
func (c *Client) newUndo(name string, kp *keeper, ttl time.Duration, do func(context.Context) error) *undo {
	u := &undo{c: c, name: name, kp: kp, ttl: ttl, do: do}
	if !c.caps().SharedFate {
		u.until = time.Now().Add(ttl)
	}
	if kp != nil {
		u.sessionEnds(kp)
	}
	u.retry.ring = func(time.Time) { u.start() }
	c.undos[u] = struct{}{}
	return u
}

// sessionEnds bounds u if it hangs on kp and kp is retired: nothing keeps that
// session any more, so it is over within its TTL.
func (u *undo) sessionEnds(kp *keeper) {
	if u.kp == kp && kp.retired && u.until.IsZero() {
		u.until = time.Now().Add(kp.ttl)
	}
}

func (c *Client) undoAbandon(req driver.Request) {
	c.newUndo(req.Name, nil, req.TTL, func(ctx context.Context) error { return c.d.Abandon(ctx, req) }).start()
}

// start makes a try in the background, with the mutex held.
func (u *undo) start() {
	if u.done {
		return
	}
	if u.c.undosRunning >= maxUndosRunning {
		u.c.alarms.set(&u.retry, time.Now().Add(10*time.Millisecond))
		return
	}
	u.c.undosRunning++
	u.c.spawn(func() {
		_ = u.try()
		u.c.mu.Lock()
		u.c.undosRunning--
		u.c.mu.Unlock()
	})
}

// try makes one try and, if it fails, has it tried again later. It runs without
// the mutex.
func (u *undo) try() error {
	ctx, cancel := context.WithTimeout(u.c.background, u.c.cfg.releaseTimeout)
	defer cancel()
	_, err := guarded(ctx, u.c, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, u.do(ctx)
	}, nil)
	u.c.mu.Lock()
	defer u.c.unlock()
	u.tries++
	now := time.Now()
	switch {
	case err == nil, u.tries > 1 && errors.Is(err, ErrNotHeld):
		u.finish(nil)
	case errors.Is(err, ErrNotHeld):
		u.finish(err)
	case !u.until.IsZero() && !now.Before(u.until):
		u.finish(nil)
	default:
		u.err = err
		pause := min(u.ttl/4, 5*time.Second, 20*time.Millisecond<<min(u.tries, 8))
		next := now.Add(pause/2 + rand.N(pause/2+1))
		if !u.until.IsZero() && u.until.Before(next) {
			next = u.until
		}
		u.c.alarms.set(&u.retry, next)
	}
	return err
}

func (u *undo) finish(err error) {
	u.done, u.err = true, err
	u.c.alarms.unset(&u.retry)
	delete(u.c.undos, u)
	u.c.quiet()
}
