package distlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"example.com/distlock/driver"
)

// This file keeps what was granted: it renews, computes deadlines and decides
// that a lock is lost. A driver decides nothing about time.
//
// A deadline is From + TTL − margin, where From is the time before the request
// was sent from which the server surely counts. Where fate is shared, all that
// hangs on one keeper has the keeper's From, the largest seen.

// span is a stretch of local time: length, counted from from.
type span struct {
	from   time.Time
	length time.Duration
}

func (s span) end() time.Time { return s.from.Add(s.length) }

// left is what remains of s. It counts by the monotonic and by the wall clock
// and believes the one that is further: Linux's monotonic clock stands still
// while the machine is suspended, and the wall clock may be set back.
func (c *Client) left(s span) time.Duration {
	mono, wall := c.since(s.from)
	return s.length - max(mono, wall)
}

// since is how long ago t was, by each clock.
func (c *Client) since(t time.Time) (mono, wall time.Duration) {
	now := time.Now()
	return now.Sub(t), now.Round(0).Sub(t.Round(0)) + time.Duration(c.wallSkew.Load())
}

// noticeJump looks at all that is held if the wall clock has run ahead since the
// last alarm, as it does while the machine is suspended: timers, which go by the
// monotonic clock, would tell of it too late.
func (c *Client) noticeJump() {
	mono, wall := c.since(c.epoch)
	if wall-mono > c.wallAhead {
		for h := range c.holdings {
			h.checkClock()
		}
	}
	c.wallAhead = wall - mono
}

// keeper is a driver.Keeper and what it keeps. The Client's mutex guards it.
type keeper struct {
	c        *Client
	d        driver.Keeper
	every    time.Duration // the longest pause that d can bear; 0: TTL/3
	maxBatch int
	kept     map[*kept]struct{}
	due      []*kept // to be renewed now
	underWay int     // renewals; only where fate is not shared

	// Only where fate is shared:
	shared   bool
	ttl      time.Duration
	interval time.Duration
	valid    span // zero until a first confirmation
	since    time.Time
	idle     time.Time // nothing is kept since then
	lastErr  error     // of the last renewal
	renewing bool
	again    bool // somebody asked for a renewal while one was under way
	retired  bool
	renewal  alarm
	end      alarm
}

// kept is a lease or a place in a queue, as its keeper sees it.
type kept struct {
	k        driver.Kept
	keeper   *keeper
	ttl      time.Duration
	interval time.Duration
	valid    span // zero: unknown
	renewal  alarm
	once     bool         // a fixed lease: renewed only when asked
	busy     bool         // a renewal is under way
	asked    []chan error // who waits for the next renewal
	lastErr  error        // of the last renewal
	dropped  bool

	// Both are called with the mutex held.
	answered func(err error)                // what a renewal said; valid is up to date
	ended    func(reason Reason, err error) // the shared session that k hung on is given up
}

// keeperFor finds or makes the keeper of what a driver gave. every and maxBatch
// are asked before the mutex is taken, since drivers may lock.
func (c *Client) keeperFor(d driver.Keeper, every time.Duration, maxBatch int, ttl time.Duration) *keeper {
	if kp := c.keepers[d]; kp != nil {
		return kp
	}
	now := time.Now()
	kp := &keeper{c: c, d: d, every: every, maxBatch: maxBatch, kept: map[*kept]struct{}{}, shared: c.caps().SharedFate}
	c.keepers[d] = kp
	if kp.shared {
		kp.ttl, kp.interval, kp.since, kp.idle = ttl, c.intervalFor(ttl, every), now, now
		kp.renewal.ring = func(time.Time) { kp.renewShared() }
		kp.end.ring = func(time.Time) { kp.retire(Expired) }
		kp.schedule()
		c.alarms.set(&kp.renewal, c.renewalAt(now, kp.interval))
	}
	return kp
}

// intervalFor is the longest pause between renewals.
func (c *Client) intervalFor(ttl, every time.Duration) time.Duration {
	d := ttl / 3
	if r := c.cfg.renewEvery; r > 0 && r < ttl-c.cfg.marginFor(ttl) { // the server may have granted less than was asked
		d = r
	}
	if every > 0 {
		d = min(d, every)
	}
	return d
}

// renewalAt is when to renew what was confirmed at from: up to a tenth earlier
// than need be, on a grid of the Client's own, so that renewals of one process
// meet in a batch and those of many processes do not meet.
func (c *Client) renewalAt(from time.Time, interval time.Duration) time.Time {
	grid := max(interval/10, time.Millisecond)
	if interval <= grid {
		return from.Add(interval)
	}
	since := from.Add(interval).Sub(c.epoch)
	return c.epoch.Add(since - since%grid)
}

// keep begins to keep k.
func (kp *keeper) keep(k *kept) {
	k.keeper = kp
	kp.kept[k] = struct{}{}
	k.interval = kp.c.intervalFor(k.ttl, kp.every)
	k.renewal.ring = func(time.Time) {
		kp.due = append(kp.due, k)
		kp.c.roused[kp] = struct{}{}
	}
	if kp.shared && len(kp.kept) == 1 {
		kp.schedule() // idle no more
	}
}

// renewAfter sets the next renewal of a k with a lease of its own, counted from
// its last confirmation, but not so soon that a slow server is kept busy by it.
func (k *kept) renewAfter(from time.Time) {
	if k.once || k.keeper.shared {
		return
	}
	at := k.keeper.c.renewalAt(from, k.interval)
	if soonest := time.Now().Add(k.interval / 8); at.Before(soonest) {
		at = soonest
	}
	k.keeper.c.alarms.set(&k.renewal, at)
}

// renewNow asks for a renewal and returns where its result will be.
func (k *kept) renewNow() <-chan error {
	ch := make(chan error, 1)
	k.asked = append(k.asked, ch)
	switch {
	case k.keeper.shared:
		k.keeper.renewNow()
	case !k.busy:
		k.keeper.c.alarms.unset(&k.renewal)
		k.keeper.renew([]*kept{k})
	}
	return ch
}

// used notes that something was asked of kp's session, which is not idle then.
func (kp *keeper) used() {
	if kp.shared && !kp.retired && len(kp.kept) == 0 {
		kp.idle = time.Now()
		kp.schedule()
	}
}

// drop ends the keeping of k.
func (kp *keeper) drop(k *kept) {
	if k.dropped {
		return
	}
	k.dropped = true
	delete(kp.kept, k)
	kp.c.alarms.unset(&k.renewal)
	for _, ch := range k.asked {
		ch <- ErrNotHeld
	}
	k.asked = nil
	kp.used()
}

// maxRenewals bounds the renewals of one keeper that are under way at once, so
// that thousands of locks do not crowd each other out of the connections.
const maxRenewals = 8

// flushDue sends the renewals whose alarms rang.
func (c *Client) flushDue() {
	for kp := range c.roused {
		delete(c.roused, kp)
		kp.flushDue()
	}
}

// flushDue sends what is due in batches, in the order in which it became due.
func (kp *keeper) flushDue() {
	for kp.underWay < maxRenewals && len(kp.due) > 0 {
		var batch []*kept
		for len(kp.due) > 0 && (kp.maxBatch <= 0 || len(batch) < kp.maxBatch) {
			k := kp.due[0]
			kp.due = kp.due[1:]
			if !k.dropped && !k.busy {
				batch = append(batch, k)
			}
		}
		if len(batch) > 0 {
			kp.renew(batch)
		}
	}
}

// renew sends one renewal of ks, which have leases of their own.
func (kp *keeper) renew(ks []*kept) {
	limit := ks[0].ttl / 4
	for _, k := range ks {
		k.busy = true
		limit = min(limit, k.ttl/4)
	}
	ds, asked := takeUp(ks)
	kp.underWay++
	kp.c.spawn(func() {
		confirms := kp.ask(ds, limit)
		kp.c.mu.Lock()
		defer kp.c.unlock()
		for i, k := range ks {
			k.busy = false
			k.apply(confirms[i])
		}
		tell(asked, confirms)
		kp.underWay--
		kp.flushDue()
	})
}

// takeUp returns what a renewal of ks asks for, and who waits for each answer.
func takeUp(ks []*kept) (ds []driver.Kept, asked [][]chan error) {
	ds, asked = make([]driver.Kept, len(ks)), make([][]chan error, len(ks))
	for i, k := range ks {
		ds[i], asked[i] = k.k, k.asked
		k.asked = nil
	}
	return ds, asked
}

func tell(asked [][]chan error, confirms []driver.Confirm) {
	for i, chs := range asked {
		for _, ch := range chs {
			ch <- confirms[i].Err
		}
	}
}

// ask sends renewals of ks, in as few requests as the driver takes, and answers
// for each at the same index; for the session alone where ks is empty. It runs
// without the mutex.
func (kp *keeper) ask(ks []driver.Kept, limit time.Duration) []driver.Confirm {
	var all []driver.Confirm
	for {
		n := len(ks)
		if kp.maxBatch > 0 {
			n = min(n, kp.maxBatch)
		}
		all = append(all, kp.askOnce(ks[:n], limit)...)
		if ks = ks[n:]; len(ks) == 0 {
			return all
		}
	}
}

func (kp *keeper) askOnce(ks []driver.Kept, limit time.Duration) []driver.Confirm {
	ctx, cancel := context.WithTimeout(kp.c.background, limit)
	defer cancel()
	want := max(len(ks), 1)
	confirms, err := guarded(ctx, kp.c, func(ctx context.Context) ([]driver.Confirm, error) {
		return kp.d.Renew(ctx, ks), nil
	}, nil)
	if err == nil && len(confirms) != want {
		err = fmt.Errorf("distlock: the driver gave %d answers to a renewal of %d leases", len(confirms), len(ks))
	}
	if err != nil {
		confirms = slices.Repeat([]driver.Confirm{{Err: err}}, want)
	}
	return confirms
}

// apply takes the answer about a k with a lease of its own.
func (k *kept) apply(cf driver.Confirm) {
	if k.dropped {
		return
	}
	now := time.Now()
	switch {
	case cf.Err == nil:
		if cf.From.After(k.valid.from) {
			k.valid = k.keeper.c.spanOf(cf.From, cf.TTL)
		}
		k.renewAfter(k.valid.from)
	case !errors.Is(cf.Err, ErrNotHeld) && !k.once:
		k.keeper.c.alarms.set(&k.renewal, now.Add(min(retryPause(k.ttl), k.interval)))
	}
	if len(k.asked) > 0 {
		k.keeper.c.alarms.set(&k.renewal, now)
	}
	k.answered(cf.Err)
}

// retryPause is how long to wait after a renewal that failed: short enough for
// several tries before the deadline.
func retryPause(ttl time.Duration) time.Duration { return ttl/20 + rand.N(ttl/20+1) }

func (c *Client) spanOf(from time.Time, ttl time.Duration) span {
	return span{from, ttl - c.cfg.marginFor(ttl)}
}

// The rest of this file is about keepers whose fate is shared.

// confirm takes the news that kp's session surely runs for ttl from from.
func (kp *keeper) confirm(from time.Time, ttl time.Duration) {
	if kp.retired || !from.After(kp.valid.from) {
		return
	}
	kp.ttl, kp.interval = ttl, kp.c.intervalFor(ttl, kp.every)
	kp.valid = kp.c.spanOf(from, ttl)
	kp.schedule()
}

// schedule sets the alarm for kp's end: its deadline, or one TTL without use. A
// keeper that was new with so little left that nothing is held on it before a
// renewal (see fresh) has a first TTL in which to be confirmed.
func (kp *keeper) schedule() {
	end := kp.since.Add(kp.ttl)
	if deadline := kp.valid.end(); kp.valid.length > 0 && deadline.Sub(kp.since) >= kp.ttl/4 {
		end = deadline
	}
	if idle := kp.idle.Add(kp.ttl); len(kp.kept) == 0 && idle.Before(end) {
		end = idle
	}
	kp.c.alarms.set(&kp.end, end)
}

// renewNow sends a renewal at once, or after the one under way.
func (kp *keeper) renewNow() {
	if kp.again = kp.renewing; !kp.again {
		kp.renewShared()
	}
}

// renewShared sends one renewal for the session and all that hangs on it.
func (kp *keeper) renewShared() {
	if kp.retired || kp.renewing {
		return
	}
	kp.renewing = true
	kp.c.alarms.unset(&kp.renewal)
	ks := slices.Collect(maps.Keys(kp.kept))
	ds, asked := takeUp(ks)
	limit, started := kp.ttl/4, time.Now()
	kp.c.spawn(func() {
		confirms := kp.ask(ds, limit)
		kp.c.mu.Lock()
		defer kp.c.unlock()
		kp.renewing = false
		kp.applyShared(ks, confirms, started)
		tell(asked, confirms)
	})
}

// applyShared takes the answers about the session and about each of ks.
func (kp *keeper) applyShared(ks []*kept, confirms []driver.Confirm, started time.Time) {
	if kp.retired {
		return // a loss is never taken back
	}
	kp.lastErr = confirms[0].Err
	for _, cf := range confirms {
		if cf.Err == nil {
			kp.lastErr = nil
			kp.confirm(cf.From, cf.TTL)
		}
	}
	for i, k := range ks {
		if k.dropped {
			continue
		}
		if confirms[i].Err == nil {
			k.valid = kp.valid
		}
		k.answered(confirms[i].Err)
	}
	next := kp.c.renewalAt(started, kp.interval)
	switch {
	case len(ks) == 0 && errors.Is(kp.lastErr, ErrNotHeld):
		kp.retire(Revoked)
		return
	case kp.again:
		next = time.Now()
	case kp.lastErr != nil:
		next = time.Now().Add(min(retryPause(kp.ttl), kp.interval))
	}
	kp.again = false
	kp.c.alarms.set(&kp.renewal, next)
}

// retire ends kp, whose time is over or whose session is gone: all that is held
// on it is lost first.
func (kp *keeper) retire(reason Reason) {
	if kp.retired {
		return
	}
	c := kp.c
	kp.retired = true
	c.retirements++
	c.alarms.unset(&kp.end)
	c.alarms.unset(&kp.renewal)
	for k := range kp.kept {
		k.ended(reason, kp.lastErr)
		kp.drop(k) // if that has not been done
	}
	for u := range c.undos {
		u.sessionEnds(kp)
	}
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(c.background, c.cfg.releaseTimeout)
		defer cancel()
		// An error leaves the session to its own timeout: nothing keeps it any more.
		_, _ = guarded(ctx, c, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, kp.d.Retire(ctx)
		}, nil)
	})
	// Grants that were on their way are recognised for as long as they can come.
	kp.end.ring = func(time.Time) { delete(c.keepers, kp.d) }
	c.alarms.set(&kp.end, time.Now().Add(kp.ttl+maxTryTimeout))
}
