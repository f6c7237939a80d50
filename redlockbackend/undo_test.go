package redlockbackend

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
	"example.com/distlock/internal/testbed"
)

// scriptHook is called around each script that a client sends. It tells scripts
// apart by their number of keys: acquire.lua has 3, release.lua 2.
type scriptHook func(keys int, send func() error) error

func (h scriptHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		send := func() error { return next(ctx, cmd) }
		if args := cmd.Args(); cmd.Name() == "evalsha" || cmd.Name() == "eval" {
			return h(args[2].(int), send)
		}
		return send()
	}
}

func (h scriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// known returns a driver on n nodes that know its scripts.
func known(t *testing.T, n int) *rig {
	t.Helper()
	r := nodes(t, n)
	r.warm()
	g := r.must(request(testbed.Name(t) + "-first"))
	eventually(t, "all have answered", func() bool { return confirmed(g.Lease) == n })
	r.release(g.Lease)
	eventually(t, "all have released it", func() bool { return r.count(testbed.Name(t)+"-first", "") == 0 })
	return r
}

// endingCtx is a context at the moment of its end, when Err says so already and
// Done is not closed yet.
type endingCtx struct {
	context.Context
	ending atomic.Bool
}

func (c *endingCtx) Err() error {
	if c.ending.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

// ErrHeld says that nothing of the request is left, also when its context ends at
// that moment: at any other answer it is abandoned.
func TestGivenUpWhenHeld(t *testing.T) {
	// One node is taken; the others, a majority, are a rival's.
	split := func(t *testing.T) (*rig, driver.Request) {
		r := known(t, 3)
		req := request(testbed.Name(t))
		r.occupy(0, req.Name)
		r.occupy(1, req.Name)
		return r, req
	}
	check := func(t *testing.T, r *rig, req driver.Request, err error) {
		t.Helper()
		if err == nil {
			t.Fatal("acquired")
		}
		if n := r.count(req.Name, req.Owner); n > 0 && errors.Is(err, driver.ErrHeld) {
			t.Errorf("%d nodes have it after %v", n, err)
		}
	}
	t.Run("before the undoing", func(t *testing.T) {
		r, req := split(t)
		ctx := &endingCtx{Context: t.Context()}
		r.nodes[2].c.(*redis.Client).AddHook(scriptHook(func(keys int, send func() error) error {
			err := send()
			if keys == 3 {
				ctx.ending.Store(true)
			}
			return err
		}))
		_, err := r.Acquire(ctx, req)
		check(t, r, req, err)
		eventually(t, "nothing of it is left", func() bool { return r.count(req.Name, req.Owner) == 0 })
	})
	t.Run("during the undoing", func(t *testing.T) {
		r, req := split(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		returned := make(chan struct{})
		r.nodes[2].c.(*redis.Client).AddHook(scriptHook(func(keys int, send func() error) error {
			if keys == 2 {
				cancel()
				<-returned
			}
			return send()
		}))
		_, err := r.Acquire(ctx, req)
		check(t, r, req, err)
		close(returned)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v", err)
		}
		eventually(t, "nothing of it is left", func() bool { return r.count(req.Name, req.Owner) == 0 })
	})
}

// An attempt that ctx has ended goes on being undone: the same request sent again
// may be refused and have nothing to undo, when the first one arrives.
func TestInterruptedIsUndone(t *testing.T) {
	r := known(t, 3)
	req := request(testbed.Name(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	returned := make(chan struct{})
	var sending, sent sync.WaitGroup
	sending.Add(len(r.nodes))
	sent.Add(len(r.nodes))
	for _, n := range r.nodes {
		n.c.(*redis.Client).AddHook(scriptHook(func(keys int, send func() error) error {
			if keys == 3 {
				sending.Done()
				<-returned
				defer sent.Done()
			}
			return send()
		}))
	}
	go func() {
		sending.Wait()
		cancel()
	}()
	if _, err := r.Acquire(ctx, req); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire: %v", err)
	}
	close(returned)
	sent.Wait()
	eventually(t, "nothing of it is left", func() bool { return r.count(req.Name, "") == 0 })
}

// An Acquire that begins a try when its context has ended, and perhaps was
// abandoned, sends nothing for it.
func TestNoTryAfterTheEnd(t *testing.T) {
	r := nodes(t, 3)
	r.warm()
	for _, n := range r.nodes {
		n.c.(*redis.Client).AddHook(scriptHook(func(_ int, send func() error) error {
			t.Error("a script is sent")
			return send()
		}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Acquire(ctx, request(testbed.Name(t))); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire: %v", err)
	}
}

// A request of an earlier try that is on its way does not take a node after a
// later try was refused there.
func TestEarlierTryArrivesLate(t *testing.T) {
	for what, foreign := range map[string]bool{"held": false, "foreign data": true} {
		t.Run(what, func(t *testing.T) {
			r := nodes(t, 3)
			r.warm()
			req := request(testbed.Name(t))
			n := r.nodes[2]
			first := r.newLease(req, nil)
			first.sending(n)
			second := r.newLease(req, first)
			if foreign {
				if err := r.raw[2].HSet(t.Context(), r.layout.Lock(req.Name), "foreign", "data").Err(); err != nil {
					t.Fatal(err)
				}
			} else {
				r.occupy(2, req.Name)
			}
			v, err := second.acquireOn(t.Context(), n, r.propose(req.Name))
			if foreign != (err != nil) || !foreign && v.verdict != held {
				t.Fatalf("second try: %v, %v", v, err)
			}
			second.undo(t.Context())
			r.del(2, req.Name)
			reply, err := acquireScript.Run(t.Context(), n.c,
				[]string{r.layout.Lock(req.Name), r.layout.Clock(req.Name), r.layout.Dead(req.Name, req.Owner)},
				req.Owner, first.try, r.propose(req.Name), req.TTL.Milliseconds(), "", new(redisnode.Sends))
			if n := r.count(req.Name, req.Owner); err != nil || n != 0 {
				t.Errorf("%d nodes have it after the first try's %v, %v", n, reply, err)
			}
		})
	}
}

// What a later try knows a node to have needs no tombstone.
func TestLaterTryKnows(t *testing.T) {
	r := nodes(t, 3)
	req := request(testbed.Name(t))
	first := r.must(req).Lease.(*lease)
	eventually(t, "all have answered", func() bool { return confirmed(first) == 3 })
	if second := r.newLease(req, first); confirmed(second) != 3 {
		t.Errorf("%d nodes are known to have it", confirmed(second))
	}
}

// A round of cleaning that is left behind shares nothing with the next one, and a
// later try of the owner stays to be cleaned.
func TestCleanRounds(t *testing.T) {
	r := nodes(t, 1)
	n := r.nodes[0]
	n.clean.running = true // no loop
	req := request(testbed.Name(t))
	end := func(try uint64) cleanup { return cleanup{req: req, try: try, until: time.Now().Add(ttl)} }
	r.cleanLater(n, end(2))
	r.cleanLater(n, end(1))
	items := n.clean.some()
	if len(items) != 1 || items[0].try != 2 {
		t.Fatalf("to be cleaned: %v", items)
	}
	if a, b := r.cleanCalls(items)[0].Args[2].(*redisnode.Sends), r.cleanCalls(items)[0].Args[2].(*redisnode.Sends); a == b {
		t.Error("two rounds share an argument that is written when it is sent")
	}
	n.clean.done(end(1))
	if len(n.clean.some()) != 1 {
		t.Error("the later try is forgotten")
	}
	if n.clean.done(end(2)); len(n.clean.some()) != 0 {
		t.Error("what is done is kept")
	}
}
