package redisbackend

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
)

//go:embed acquire.lua
var acquireSource string

var acquireScript = redisnode.NewScript(acquireSource)

// Limits of TTLs. Redis counts milliseconds, but below 10 ms the third of a TTL
// in which to renew is about a round trip in a data center, and no lock would be
// kept. At the other end Redis adds the TTL to its clock in 64-bit milliseconds
// and refuses or loses what overflows; 10 years is far from that, and more than
// anything that is meant to end.
const (
	minTTL = 10 * time.Millisecond
	maxTTL = 10 * 365 * 24 * time.Hour
)

// redisDriver implements driver.Driver and driver.Hinter.
type redisDriver struct {
	c       redis.UniversalClient
	layout  redisnode.Layout
	opt     Options
	publish string // the command that reaches the subscribers of a channel

	calls  redisnode.Calls
	keeper *keeper
	hints  *hints

	mu    sync.Mutex
	doubt map[string]struct{} // owners with an acquire whose outcome is open
}

var (
	_ driver.Driver = (*redisDriver)(nil)
	_ driver.Hinter = (*redisDriver)(nil)
)

func makeDriver(c redis.UniversalClient, opt Options) *redisDriver {
	_, cluster := c.(*redis.ClusterClient)
	d := &redisDriver{
		c:       c,
		layout:  redisnode.Layout{Prefix: opt.Prefix},
		opt:     opt,
		publish: redisnode.PublishCommand(cluster),
		doubt:   make(map[string]struct{}),
	}
	d.keeper = &keeper{d}
	d.hints = newHints(c, opt.Logger)
	return d
}

// capabilities need no server to be known.
var capabilities = driver.Capabilities{
	Backend:    "redis",
	Fencing:    true,
	LockTTL:    true,
	Push:       true,
	MinTTL:     minTTL,
	MaxTTL:     maxTTL,
	TTLQuantum: time.Millisecond,
	NumberKind: "hybrid clock (10 µs)",
}

// call runs fn, a call of the client, no longer than ctx allows; the client's own
// error, which would name the server, is not to be had then.
func (d *redisDriver) call(ctx context.Context, fn func(context.Context)) error {
	if err := d.calls.Go(ctx, fn); err != nil {
		return fmt.Errorf("redis: no answer from %s: %w", redisnode.Address(d.c), err)
	}
	return nil
}

// Capabilities asks whether the server can do what is needed. It returns the same
// with and without an error.
func (d *redisDriver) Capabilities(ctx context.Context) (driver.Capabilities, error) {
	var report redisnode.Report
	var err error
	if gone := d.call(ctx, func(ctx context.Context) {
		report, err = redisnode.Probe(ctx, d.c, d.layout, wire, "EXISTS")
	}); gone != nil {
		return capabilities, gone
	}
	if err != nil {
		return capabilities, err
	}
	for _, w := range report.Warnings {
		d.opt.Logger.WarnContext(ctx, "distlock: redis: "+w)
	}
	return capabilities, nil
}

func (d *redisDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	sends := &redisnode.Sends{Before: d.setDoubt(req.Owner)}
	reply, err := d.run(ctx, redisnode.Call{
		Script: acquireScript,
		Keys:   d.acquireKeys(req.Name, req.Owner),
		Args:   []any{req.Owner, req.TTL.Milliseconds(), sends, req.Metadata},
	})
	if redisnode.WrongType(err) {
		d.clearDoubt(req.Owner)
		return driver.Grant{}, d.conflict(req.Name, err)
	}
	if err != nil {
		return driver.Grant{}, classify(err)
	}
	d.clearDoubt(req.Owner)
	f, _ := reply.([]any)
	switch {
	case len(f) == 2 && f[0] == "granted":
		s, _ := f[1].(string)
		number, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return driver.Grant{}, fmt.Errorf("unexpected reply %q", f)
		}
		l := &lease{d: d, name: req.Name, owner: req.Owner, ttl: req.TTL, doubt: sends.Doubt()}
		return driver.Grant{Lease: l, Number: number, From: sends.Last, TTL: req.TTL}, nil
	case len(f) == 2 && f[0] == "held":
		left, _ := f[1].(int64)
		return driver.Grant{}, &driver.HeldError{Remaining: remaining(left), Waiters: -1}
	case len(f) == 2 && f[0] == "conflict":
		return driver.Grant{}, redisnode.Conflict(fmt.Sprint(f[1]))
	case len(f) == 1 && f[0] == "dead":
		return driver.Grant{}, errors.New("this attempt was given up before it arrived")
	}
	return driver.Grant{}, fmt.Errorf("unexpected reply %q", f)
}

// run makes one call, with the confirmation of replicas if that is asked for.
func (d *redisDriver) run(ctx context.Context, call redisnode.Call) (any, error) {
	if d.opt.ReplicaAck.N > 0 {
		replies, err := d.runAll(ctx, []redisnode.Call{call})
		if err != nil {
			return nil, err
		}
		return replies[0].Value, replies[0].Err
	}
	var value any
	var err error
	if gone := d.call(ctx, func(ctx context.Context) {
		value, err = call.Script.Run(ctx, d.c, call.Keys, call.Args...)
	}); gone != nil {
		return nil, gone
	}
	return value, err
}

// runAll makes many calls in one pipeline. With ReplicaAck a WAIT follows them on
// their connection, the only one on which it speaks of them; too few replicas are
// an error for those calls that succeeded.
func (d *redisDriver) runAll(ctx context.Context, calls []redisnode.Call) ([]redisnode.Reply, error) {
	ack := d.opt.ReplicaAck
	var acks []*redis.Cmd
	var wait func(redis.Pipeliner)
	if ack.N > 0 {
		wait = func(p redis.Pipeliner) { acks = append(acks, p.Do(ctx, "WAIT", ack.N, ack.Timeout.Milliseconds())) }
	}
	var replies []redisnode.Reply
	if gone := d.call(ctx, func(ctx context.Context) {
		replies = redisnode.RunAll(ctx, d.c, calls, wait)
	}); gone != nil {
		return nil, gone
	}
	for _, cmd := range acks {
		n, err := cmd.Int64()
		if err == nil && n < int64(ack.N) {
			err = &errUnacked{int(n), ack.N, ack.Timeout}
		}
		if err == nil {
			continue
		}
		for i := range replies {
			if replies[i].Err == nil {
				replies[i].Err = err
			}
		}
	}
	return replies, nil
}

// conflict tells which key has the wrong type: the lock or the bucket's clock.
func (d *redisDriver) conflict(name string, err error) error {
	return &driver.PermanentError{Err: fmt.Errorf("key %q or %q holds data that is not of this library; use another Prefix or remove it (%w)",
		d.layout.Lock(name), d.layout.Clock(name), err)}
}

// remaining turns a PTTL into what HeldError says. A lock without expiry (made so
// by somebody else) has none, which is unknown; one with less than a millisecond
// is not.
func remaining(pttl int64) time.Duration {
	if pttl < 0 {
		return 0
	}
	return time.Duration(max(pttl, 1)) * time.Millisecond
}

func (d *redisDriver) Abandon(ctx context.Context, req driver.Request) error {
	d.clearDoubt(req.Owner) // from here on the owner is dead, whatever comes of this
	// The tombstone is left also where the key is another's or none: a copy of the
	// acquire that arrives later must find it.
	_, err := d.release(ctx, req.Name, req.Owner, req.TTL, &redisnode.Sends{Before: true})
	return classify(err)
}

// release removes the owner's lock and reports whether it was there.
func (d *redisDriver) release(ctx context.Context, name, owner string, ttl time.Duration, sends *redisnode.Sends) (bool, error) {
	var reply any
	var err error
	if gone := d.call(ctx, func(ctx context.Context) {
		reply, err = redisnode.Release.Run(ctx, d.c, d.releaseKeys(name, owner),
			owner, sends, ttl.Milliseconds(), d.publish, d.layout.Hints(name), name)
	}); gone != nil {
		return false, gone
	}
	if redisnode.WrongType(err) { // somebody else's data: ours is gone
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, ok := reply.(int64)
	if !ok {
		return false, fmt.Errorf("unexpected reply %v", reply)
	}
	return n == 1, nil
}

// setDoubt notes that a request of owner is on its way and reports whether an
// earlier one may be, too.
func (d *redisDriver) setDoubt(owner string) (before bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, before = d.doubt[owner]
	d.doubt[owner] = struct{}{}
	return before
}

func (d *redisDriver) clearDoubt(owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.doubt, owner)
}

// Close ends the subscription and waits for requests that nobody waits for any
// more. It leaves the client open.
func (d *redisDriver) Close(ctx context.Context) error {
	return errors.Join(d.hints.close(ctx), d.calls.Wait(ctx))
}

// lease is one lock on the server.
type lease struct {
	d     *redisDriver
	name  string
	owner string
	ttl   time.Duration
	doubt bool        // another copy of the acquire may still arrive
	open  atomic.Bool // the reply to a release is missing
}

func (l *lease) Keeper() driver.Keeper { return l.d.keeper }

func (l *lease) Release(ctx context.Context) error {
	sends := &redisnode.Sends{Before: l.doubt}
	removed, err := l.d.release(ctx, l.name, l.owner, l.ttl, sends)
	switch {
	case err != nil:
		l.open.Store(true)
		return classify(err)
	case removed, l.open.Load(), sends.Count > 1:
		return nil // an earlier copy of this release may have removed it
	}
	return driver.ErrNotHeld
}
