package redlockbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
)

// maxLate bounds the requests to a node that swallows them, by those that have had
// no answer for longer than NodeTimeout but have not ended: it gets no more until
// some have. A node that is only slow answers one or another meanwhile.
const maxLate = 32

// node is one of the independent servers.
type node struct {
	index int
	name  string // "node 2 (127.0.0.1:6379)"
	c     redis.UniversalClient
	late  atomic.Int32 // requests that are late, see maxLate
	// silent is since when requests have had no answer in time, in nanoseconds; 0
	// after an answer. Where the others are a majority, nobody waits the whole
	// timeout for such a node again.
	silent atomic.Int64
	clean  cleaner

	mu    sync.Mutex
	runID string // of the server that was probed; "" before
}

func newNode(i int, c redis.UniversalClient) *node {
	addr := ""
	if o, ok := c.(interface{ Options() *redis.Options }); ok {
		addr = " (" + o.Options().Addr + ")"
	}
	return &node{index: i, name: fmt.Sprintf("node %d%s", i+1, addr), c: c}
}

// errNoAnswer is a node that took longer than its timeout.
type errNoAnswer struct{ within time.Duration }

func (e *errNoAnswer) Error() string { return fmt.Sprintf("no answer within %v", e.within) }
func (e *errNoAnswer) Timeout() bool { return true }

var errClosed = errors.New("the driver is closed")

// answer is what one node said in a round.
type answer[T any] struct {
	node  *node
	value T
	err   error
}

// ask sends a request to each of nodes at the same time. Each answers exactly
// once on the channel, at the latest after timeout, with an error then. fn runs in
// a goroutine of its own and goes on if it is late: the client library can be
// slower than any context to give up. What late requests bring is for fn to deal
// with. The caller may stop listening at any time.
func ask[T any](d *redlockDriver, nodes []*node, timeout time.Duration, fn func(context.Context, *node) (T, error)) <-chan answer[T] {
	out := make(chan answer[T], len(nodes))
	if len(nodes) == 0 {
		return out
	}
	ctx, cancel := context.WithTimeout(d.ctx, timeout)
	requests := make([]pending, len(nodes))
	var running atomic.Int32
	running.Store(int32(len(nodes)))
	slow := func() {
		for i, n := range nodes {
			requests[i].isLate(n)
		}
	}
	stopEnd := context.AfterFunc(ctx, func() {
		slow()
		err := error(&errNoAnswer{timeout})
		if d.ctx.Err() != nil {
			err = errClosed
		}
		for i, n := range nodes {
			if requests[i].told.CompareAndSwap(false, true) {
				out <- answer[T]{node: n, err: err}
			}
		}
	})
	stopSlow := func() bool { return true }
	if timeout > d.opt.NodeTimeout {
		stopSlow = time.AfterFunc(d.opt.NodeTimeout, slow).Stop
	}
	ended := func(i int, a answer[T]) {
		requests[i].hasEnded(a.node)
		if requests[i].told.CompareAndSwap(false, true) {
			out <- a
		}
		if running.Add(-1) == 0 {
			stopEnd()
			stopSlow()
			cancel()
		}
	}
	for i, n := range nodes {
		if !d.goes(func() {
			value, err := fn(ctx, n)
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
				err = &errNoAnswer{timeout}
				n.fallsSilent()
			}
			if err == nil || isReply(err) {
				n.silent.Store(0)
			}
			ended(i, answer[T]{n, value, err})
		}) {
			ended(i, answer[T]{node: n, err: errClosed})
		}
	}
	return out
}

// pending is the state of one request that ask has sent.
type pending struct {
	told  atomic.Bool // the answer was sent
	state atomic.Int32
}

const (
	underWay int32 = iota
	late           // for longer than a node is waited for; counted in node.late
	over
)

func (r *pending) isLate(n *node) {
	if r.state.CompareAndSwap(underWay, late) {
		n.late.Add(1)
		n.fallsSilent()
	}
}

func (r *pending) hasEnded(n *node) {
	if r.state.Swap(over) == late {
		n.late.Add(-1)
	}
}

func (n *node) isSilent() bool { return n.silent.Load() != 0 }
func (n *node) fallsSilent()   { n.silent.CompareAndSwap(0, time.Now().UnixNano()) }

// isGone reports whether n has been silent for so long that it is worth asking
// whether anybody listens there.
func (d *redlockDriver) isGone(n *node) bool {
	since := n.silent.Load()
	return since != 0 && time.Since(time.Unix(0, since)) >= d.patience()
}

// reach makes a connection to n's server, as the client would.
func (n *node) reach(ctx context.Context) error {
	c, ok := n.c.(*redis.Client)
	if !ok {
		return nil
	}
	o := c.Options()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// swallows returns an error if n gets no more requests for now.
func (d *redlockDriver) swallows(n *node) error {
	if n.late.Load() < maxLate || !d.isGone(n) {
		return nil
	}
	return fmt.Errorf("%d requests are without an answer", maxLate)
}

// isReply reports whether err is a server's answer.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// runAll makes calls on n in one pipeline. The error is that of the connection, if
// nothing came back.
func runAll(ctx context.Context, n *node, calls []redisnode.Call) ([]redisnode.Reply, error) {
	replies := redisnode.RunAll(ctx, n.c, calls, nil)
	for _, r := range replies {
		if r.Err == nil || isReply(r.Err) {
			return replies, nil
		}
	}
	return nil, replies[0].Err
}

// fit counts the nodes that have been probed and found usable.
func (d *redlockDriver) fit() (n int) {
	for _, o := range d.nodes {
		o.mu.Lock()
		if o.runID != "" {
			n++
		}
		o.mu.Unlock()
	}
	return n
}

// ready probes the server at its first use, and finds a server that stands behind
// two clients: it would vote twice.
func (d *redlockDriver) ready(ctx context.Context, n *node) error {
	if err := d.swallows(n); err != nil {
		return err
	}
	n.mu.Lock()
	known := n.runID != ""
	n.mu.Unlock()
	if known && !d.isGone(n) {
		return nil
	}
	// The client library dials again and again, and tells of it too late.
	if err := n.reach(ctx); err != nil || known {
		return err
	}
	report, err := redisnode.Probe(ctx, n.c, d.layout, wire)
	if err != nil {
		return err
	}
	id := "unknown"
	if info, err := n.c.Info(ctx, "server").Result(); err == nil {
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(line, "run_id:"); ok {
				id = strings.TrimSpace(v)
			}
		}
	}
	for _, w := range report.Warnings {
		d.opt.Logger.WarnContext(ctx, "distlock: redlock: "+n.name+": "+w)
	}
	return d.admit(n, id)
}

// admit remembers which server n is.
func (d *redlockDriver) admit(n *node, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opt.AllowSameServer && id != "unknown" {
		for _, o := range d.nodes {
			o.mu.Lock()
			same := o != n && o.runID == id
			o.mu.Unlock()
			if same {
				first, second := o, n
				if n.index < o.index {
					first, second = n, o
				}
				d.twice = &driver.PermanentError{Err: fmt.Errorf("%s and %s are the same server (run_id %s): each node must be a server of its own", first.name, second.name, id)}
				return d.twice
			}
		}
	}
	n.mu.Lock()
	n.runID = id
	n.mu.Unlock()
	return nil
}

// A cleaner removes what could not be removed from one node at once, until it is
// done or the TTL has done it. Its goroutine runs only while there is something.
type cleaner struct {
	mu      sync.Mutex
	items   map[string]cleanup // by owner
	running bool
}

// cleanup is what removes an owner's tries up to this one.
type cleanup struct {
	req   driver.Request
	try   uint64
	until time.Time
}

// maxCleanups bounds the memory for a node that is down for long; what is beyond
// it ends with its TTL.
const maxCleanups = 10_000

func (d *redlockDriver) cleanLater(n *node, it cleanup) {
	c := &n.clean
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.items[it.req.Owner]; ok && old.try > it.try || !ok && len(c.items) >= maxCleanups {
		return
	}
	if c.items == nil {
		c.items = make(map[string]cleanup)
	}
	c.items[it.req.Owner] = it
	if !c.running {
		c.running = d.goes(func() { d.cleanLoop(n) })
	}
}

func (d *redlockDriver) cleanLoop(n *node) {
	const first, last = 20 * time.Millisecond, time.Second
	for pause := first; ; pause = min(2*pause, last) {
		timer := time.NewTimer(pause)
		select {
		case <-d.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		items := n.clean.some()
		if len(items) == 0 {
			return
		}
		a := <-ask(d, []*node{n}, d.patience(), func(ctx context.Context, n *node) ([]redisnode.Reply, error) {
			if err := d.swallows(n); err != nil {
				return nil, err
			}
			return runAll(ctx, n, d.cleanCalls(items))
		})
		if a.err != nil {
			continue
		}
		for i, r := range a.value {
			if r.Err == nil || redisnode.WrongType(r.Err) {
				n.clean.done(items[i])
				pause = 0 // it answers again
			}
		}
	}
}

// cleanCalls makes the calls of one round. The round may be left behind with its
// calls still being sent, so no other one uses them.
func (d *redlockDriver) cleanCalls(items []cleanup) []redisnode.Call {
	calls := make([]redisnode.Call, len(items))
	for i, it := range items {
		calls[i] = d.releaseCall(it.req, it.try, &redisnode.Sends{Before: true})
	}
	return calls
}

// some returns what is to be removed, a batch at most. With nothing left the loop
// that asked has ended.
func (c *cleaner) some() (items []cleanup) {
	const batch = 100
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for owner, it := range c.items {
		if !now.Before(it.until) {
			delete(c.items, owner)
		} else if len(items) < batch {
			items = append(items, it)
		}
	}
	c.running = len(items) > 0
	return items
}

func (c *cleaner) done(done cleanup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if it, ok := c.items[done.req.Owner]; ok && it.try == done.try { // not a later try
		delete(c.items, done.req.Owner)
	}
}
