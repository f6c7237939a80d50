package redlockbackend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
	"example.com/distlock/internal/faultproxy"
	"example.com/distlock/internal/testbed"
)

// proxied opens a driver that reaches each of n shared servers through a proxy.
func proxied(t testing.TB, n int, o *Options, tweak ...func(*redis.Options)) (*rig, []*faultproxy.Proxy) {
	t.Helper()
	s := testbed.RedisNodes(t, n)
	var ps []*faultproxy.Proxy
	var through []string
	for _, srv := range s {
		p := srv.Proxy(t)
		ps = append(ps, p)
		through = append(through, p.Addr())
	}
	r := open(t, s, through, o, append([]func(*redis.Options){hasty, noRetries}, tweak...)...)
	t.Cleanup(func() { // so that Close waits for nothing
		for _, p := range ps {
			p.Heal()
		}
	})
	return r, ps
}

// An address where nobody listens.
func nowhere(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A dead node's error is detail where a majority agrees; B24.
func TestDeadNode(t *testing.T) {
	for what, addr := range map[string]string{"refuses": nowhere(t), "has no address": "no-such-host.invalid:6379"} {
		t.Run(what, func(t *testing.T) {
			s := testbed.RedisNodes(t, 2)
			r := open(t, s, []string{addr, s[0].Addr(), s[1].Addr()}, nil)
			if _, err := r.Capabilities(t.Context()); err != nil {
				t.Fatal(err)
			}
			req := request(testbed.Name(t))
			g := r.must(req)
			if c := r.renew(g.Lease); c[0].Err != nil {
				t.Error(c[0].Err)
			}
			r.release(g.Lease)
			if err := r.Abandon(t.Context(), request(req.Name)); err != nil {
				t.Error(err)
			}
		})
	}
}

// Too few nodes is a quorum error that names the dead ones, never "busy"; B23.
func TestNoQuorum(t *testing.T) {
	for _, c := range []struct{ n, dead int }{{2, 1}, {4, 2}, {5, 3}, {1, 1}} {
		t.Run(fmt.Sprintf("%d of %d dead", c.dead, c.n), func(t *testing.T) {
			s := testbed.RedisNodes(t, c.n)
			through := addrs(s)
			for i := range c.dead {
				through[i] = nowhere(t)
			}
			r := open(t, s, through, &Options{NodeTimeout: 200 * time.Millisecond})
			_, err := r.Capabilities(t.Context())
			q := wantQuorum(t, err, false)
			if len(q.Failed) != c.dead || q.Quorum != quorum(c.n) || q.Nodes != c.n {
				t.Errorf("%+v", q)
			}
			for _, f := range q.Failed {
				if !errors.Is(f, syscall.ECONNREFUSED) {
					t.Errorf("nobody listens there, but the error is %v", f)
				}
			}
			name := testbed.Name(t)
			_, err = r.Acquire(t.Context(), request(name))
			q = wantQuorum(t, err, false)
			if len(q.Failed) != c.dead || q.Failed[0].Index != 0 || q.Agreed != c.n-c.dead {
				t.Errorf("%+v", q)
			}
			if _, ok := errors.AsType[NodeError](err); !ok {
				t.Errorf("no NodeError in %v", err)
			}
			live := r.raw[c.dead:]
			eventually(t, "nothing is left on the live nodes", func() bool {
				for i := range live {
					if r.value(c.dead+i, name).Owner != "" {
						return false
					}
				}
				return true
			})
		})
	}
}

// A node that swallows requests costs nothing but itself; B25, B32.
func TestBlackHole(t *testing.T) {
	r, ps := proxied(t, 5, &Options{NodeTimeout: time.Second})
	ps[0].Cut()
	start := time.Now()
	const rounds = 50
	for range rounds {
		g := r.must(request(testbed.Name(t)))
		if c := r.renew(g.Lease); c[0].Err != nil {
			t.Fatal(c[0].Err)
		}
		r.release(g.Lease)
	}
	// If one operation waited for the dead node, that alone would be a second.
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("%d rounds took %v", rounds, took)
	}
	ps[0].Heal()
	eventually(t, "the node takes part again", func() bool {
		g := r.must(request(testbed.Name(t)))
		defer r.release(g.Lease)
		l := g.Lease.(*lease)
		eventually(t, "all nodes have answered or failed", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.state[1].has == hasIt
		})
		return r.value(0, l.req.Name).Owner != ""
	})
}

// A lease in doubt costs the others of its batch nothing, however the time to renew
// them ends.
func TestRenewInDoubt(t *testing.T) {
	patient := func(o *redis.Options) { o.ReadTimeout = 10 * time.Second }
	r, ps := proxied(t, 5, &Options{NodeTimeout: 5 * time.Second}, patient)
	sound, doubtful := request(testbed.Name(t)+"-1"), request(testbed.Name(t)+"-2")
	ks := []driver.Kept{r.must(sound).Lease, r.must(doubtful).Lease}
	eventually(t, "all nodes have both", func() bool { return r.count(sound.Name, "")+r.count(doubtful.Name, "") == 10 })
	ps[3].Cut()
	ps[4].Cut()
	r.del(0, doubtful.Name)
	r.occupy(0, doubtful.Name)
	bounded := func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), time.Second) }
	cancelled := func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		return ctx, cancel
	}
	for what, begin := range map[string]func() (context.Context, context.CancelFunc){"bounded": bounded, "cancelled": cancelled} {
		ctx, cancel := begin()
		c := r.keeper.Renew(ctx, ks)
		if what == "bounded" && ctx.Err() != nil {
			t.Error("Renew answered only when the time was over")
		}
		cancel()
		if c[0].Err != nil {
			t.Errorf("%s: renewal of the sound lease: %v", what, c[0].Err)
		}
		q := wantQuorum(t, c[1].Err, false)
		if q.Agreed != 2 || q.Held != 1 || len(q.Failed) != 2 {
			t.Errorf("%s: %v", what, q)
		}
	}
}

// A node that has swallowed many requests for long gets no more of them, and what
// it missed meanwhile is made up for.
func TestSwallows(t *testing.T) {
	patient := func(o *redis.Options) { o.ReadTimeout = 10 * time.Second }
	r, ps := proxied(t, 3, &Options{NodeTimeout: 100 * time.Millisecond}, patient)
	r.warm()
	req := request(testbed.Name(t))
	var g driver.Grant
	eventually(t, "all nodes have it", func() (ok bool) {
		var err error
		g, err = r.Acquire(t.Context(), req)
		return err == nil && r.count(req.Name, "") == 3
	})
	ps[0].Cut()
	for range 2 * maxLate {
		ask(r.redlockDriver, r.nodes[:1], ttl, func(ctx context.Context, n *node) (string, error) { return n.c.Ping(ctx).Result() })
	}
	eventually(t, "it gets nothing more", func() bool { return r.ready(t.Context(), r.nodes[0]) != nil })
	if late := r.nodes[0].late.Load(); late < maxLate {
		t.Errorf("with %d late requests it gets nothing more", late)
	}
	r.release(g.Lease)
	if r.count(req.Name, "") != 1 {
		t.Error("the silent node has taken part")
	}
	ps[0].Heal()
	eventually(t, "it is clean", func() bool { return r.count(req.Name, "") == 0 })
	eventually(t, "it takes part again", func() bool { return r.ready(t.Context(), r.nodes[0]) == nil })
}

// With a majority silent an attempt ends at the node timeout.
func TestMajoritySilent(t *testing.T) {
	r, ps := proxied(t, 5, &Options{NodeTimeout: 50 * time.Millisecond})
	r.warm()
	g := r.must(request(testbed.Name(t)))
	for _, p := range ps[:3] {
		p.Cut()
	}
	start := time.Now()
	_, err := r.Acquire(t.Context(), request(testbed.Name(t)))
	q := wantQuorum(t, err, false)
	if len(q.Failed) != 3 {
		t.Error(q)
	}
	wantQuorum(t, g.Lease.Release(t.Context()), false)
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("two operations took %v", took)
	}
	// And at once when its context does.
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more patience")
	cancel(cause)
	if _, err := r.Acquire(ctx, request(testbed.Name(t))); !errors.Is(err, cause) {
		t.Errorf("Acquire with an ended context: %v", err)
	}
	for _, p := range ps {
		p.Heal()
	}
	// Repeated: what was removed when no answer came counts.
	eventually(t, "the release is confirmed", func() bool { return g.Lease.Release(t.Context()) == nil })
}

// Replies are lost: nothing stays where the outcome was open; B01, B29.
func TestLostReplies(t *testing.T) {
	r, ps := proxied(t, 3, &Options{NodeTimeout: 100 * time.Millisecond})
	r.warm()
	name := testbed.Name(t)
	r.occupy(0, name)
	ps[1].SwallowReplies(1)
	req := request(name)
	_, err := r.Acquire(t.Context(), req)
	q := wantQuorum(t, err, false)
	if q.Held != 1 || q.Agreed != 1 || len(q.Failed) != 1 {
		t.Errorf("%+v", q)
	}
	eventually(t, "no node has ours", func() bool { return r.count(name, req.Owner) == 0 })
	if r.count(name, "a-rival") != 1 {
		t.Error("the rival's node was touched")
	}
}

// Cleanup that fails does not hide why the attempt failed; B31.
func TestCleanupFails(t *testing.T) {
	r, ps := proxied(t, 3, &Options{NodeTimeout: 100 * time.Millisecond})
	r.warm()
	name := testbed.Name(t)
	r.occupy(0, name)
	r.occupy(1, name)
	ps[2].CutReplies()
	req := request(name)
	for range 3 {
		req.Owner = newOwner()
		r.held(req)
	}
	ps[2].Heal()
	eventually(t, "no node has ours", func() bool { return r.count(name, "") == 2 })
}

// A client library that repeats requests meets its own key; B02.
func TestLibraryRetries(t *testing.T) {
	s := testbed.RedisNodes(t, 3)
	var through []string
	var ps []*faultproxy.Proxy
	for _, srv := range s {
		p := srv.Proxy(t)
		ps, through = append(ps, p), append(through, p.Addr())
	}
	r := open(t, s, through, nil) // with retries
	r.warm()
	name := testbed.Name(t)
	for _, p := range ps {
		p.FailReplies(1)
	}
	req := request(name)
	g := r.must(req)
	if n := r.count(name, req.Owner); n < 2 {
		t.Errorf("%d nodes have it", n)
	}
	for _, p := range ps {
		p.FailReplies(1)
	}
	r.release(g.Lease) // the second copy finds nothing, and that is no loss
	eventually(t, "no node has it", func() bool { return r.count(name, "") == 0 })
	dead := 0
	for _, c := range r.raw {
		dead += int(c.Exists(t.Context(), r.layout.Dead(name, req.Owner)).Val())
	}
	if dead < 2 {
		t.Errorf("%d nodes keep late copies out, want all on which one may come", dead)
	}
}

// Requests that are held in the network arrive after the attempt was abandoned.
func TestLateRequests(t *testing.T) {
	r, ps := proxied(t, 5, &Options{NodeTimeout: 50 * time.Millisecond})
	r.warm()
	name := testbed.Name(t)
	for _, p := range ps[:3] {
		p.CutRequests()
	}
	req := request(name)
	_, err := r.Acquire(t.Context(), req)
	wantQuorum(t, err, false)
	wantQuorum(t, r.Abandon(t.Context(), req), false)
	for _, p := range ps {
		p.Heal()
	}
	eventually(t, "the abandoning succeeds", func() bool { return r.Abandon(t.Context(), req) == nil })
	eventually(t, "nothing waits in the network", func() bool {
		for _, n := range r.nodes {
			if n.late.Load() > 0 {
				return false
			}
		}
		return r.count(name, "") == 0
	})
	r.release(r.must(request(name)).Lease)
}

// Releases whose answer is lost are repeated, and count as what they were.
func TestReleaseRepeated(t *testing.T) {
	r, ps := proxied(t, 3, &Options{NodeTimeout: 100 * time.Millisecond})
	name := testbed.Name(t)
	// A node that does not know the script, or a new connection, needs answers.
	r.release(r.must(request(name)).Lease)
	eventually(t, "all nodes have removed it", func() bool { return r.count(name, "") == 0 })
	g := r.must(request(name))
	eventually(t, "all nodes have answered", func() bool { return confirmed(g.Lease) == 3 })
	ps[0].CutReplies()
	ps[1].CutReplies()
	q := wantQuorum(t, g.Lease.Release(t.Context()), false)
	if q.Agreed != 1 {
		t.Error(q)
	}
	eventually(t, "all nodes have removed it", func() bool { return r.count(name, "") == 0 })
	ps[0].Heal()
	ps[1].Heal()
	eventually(t, "the release is confirmed", func() bool { return g.Lease.Release(t.Context()) == nil })
}

// What removes a lock takes nothing from a TTL: it waits for nodes that need longer
// than NodeTimeout, but only as long as they are needed.
func TestReleaseIsPatient(t *testing.T) {
	const nodeTimeout = 100 * time.Millisecond
	patient := func(o *redis.Options) { o.ReadTimeout = 5 * time.Second }
	r, ps := proxied(t, 5, &Options{NodeTimeout: nodeTimeout}, patient)
	r.warm()
	take := func(name string) (driver.Request, driver.Lease) {
		t.Helper()
		req := request(name)
		var g driver.Grant
		eventually(t, "it is taken", func() (ok bool) {
			var err error
			g, err = r.Acquire(t.Context(), req)
			return err == nil && r.count(name, req.Owner) == 5
		})
		return req, g.Lease
	}
	bounded, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	first, lease := take(testbed.Name(t))
	second, _ := take(testbed.Name(t) + "-2")
	for _, p := range ps[:3] {
		p.Delay(nodeTimeout) // and as long again for the answer
	}
	if err := lease.Release(bounded); err != nil {
		t.Errorf("Release from a slow majority: %v", err)
	}
	if err := r.Abandon(bounded, second); err != nil {
		t.Errorf("Abandon on a slow majority: %v", err)
	}
	for _, req := range []driver.Request{first, second} {
		if n := r.count(req.Name, ""); n > 2 {
			t.Errorf("%d nodes have a released lock", n)
		}
	}
	for _, p := range ps {
		p.Heal()
	}

	// A minority that does not answer holds nobody up, and is cleaned all the same.
	req, lease := take(testbed.Name(t) + "-3")
	for _, p := range ps[:2] {
		p.CutRequests()
	}
	bounded, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	start := time.Now()
	if err := lease.Release(bounded); err != nil {
		t.Errorf("Release with a silent minority: %v", err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("Release with a silent minority took %v", took)
	}
	if n := r.count(req.Name, ""); n != 2 {
		t.Errorf("%d nodes have it, want the 2 whose requests are held up", n)
	}
	rival := r.peer()
	g := rival.must(request(req.Name))
	for _, p := range ps[:2] {
		p.Heal()
	}
	eventually(t, "the late nodes are clean", func() bool { return r.count(req.Name, req.Owner) == 0 })
	rival.release(g.Lease)
}

// A node that cannot be reached at the release is cleaned when it is back, not
// only when the TTL is over.
func TestCleanedLater(t *testing.T) {
	r, ps := proxied(t, 5, &Options{NodeTimeout: 100 * time.Millisecond})
	name := testbed.Name(t)
	g := r.must(request(name))
	eventually(t, "all nodes have it", func() bool { return r.count(name, "") == 5 })
	for _, p := range ps[:2] {
		p.Refuse()
		p.Reset()
	}
	r.release(g.Lease)
	eventually(t, "three nodes are free", func() bool { return r.count(name, "") == 2 })
	for _, p := range ps {
		p.Heal()
	}
	eventually(t, "all nodes are free", func() bool { return r.count(name, "") == 0 })
	eventually(t, "the cleaners have ended", func() bool {
		for _, n := range r.nodes {
			n.clean.mu.Lock()
			busy := n.clean.running
			n.clean.mu.Unlock()
			if busy {
				return false
			}
		}
		return true
	})
}

// A renewal that takes longer than is left confirms nothing; B27.
func TestRenewalTooSlow(t *testing.T) {
	r, ps := proxied(t, 3, &Options{NodeTimeout: 10 * time.Second})
	req := request(testbed.Name(t))
	req.TTL = 400 * time.Millisecond
	g := r.must(req)
	for _, p := range ps {
		p.Delay(time.Second)
	}
	c := r.renew(g.Lease)
	if c[0].Err == nil || errors.Is(c[0].Err, driver.ErrNotHeld) {
		t.Errorf("a renewal slower than the TTL: %+v", c[0])
	}
	// The same where the answers come in time for the node timeout.
	l := &renewed{lease: g.Lease.(*lease), has: r.nodes}
	rn := &renewal{d: r.redlockDriver, start: time.Now().Add(-time.Second)}
	if rn.decide(l); l.confirm.Err == nil || errors.Is(l.confirm.Err, driver.ErrNotHeld) {
		t.Errorf("a majority that answered after the TTL: %+v", l.confirm)
	}
}

// Nodes restart without their data, one after another; B26.
func TestRollingAmnesia(t *testing.T) {
	t.Parallel()
	s := testbed.RedisNodes(t, 3, testbed.Own())
	r := open(t, s, addrs(s), nil, hasty)
	name := testbed.Name(t)
	g := r.must(request(name))
	number := g.Number
	for i := range 3 {
		s[i].Restart(t, false)
		// The first renewal may meet a connection of before.
		eventually(t, "a renewal is confirmed", func() bool {
			c := r.renew(g.Lease)
			if errors.Is(c[0].Err, driver.ErrNotHeld) {
				t.Fatal("lost")
			}
			return c[0].Err == nil && r.count(name, "") == 3
		})
		r.held(request(name))
	}
	r.release(g.Lease)
	if g := r.must(request(name)); g.Number <= number {
		t.Errorf("number %d after %d", g.Number, number)
	}
}

// A server that is gone is named as that, once it has been silent for a while.
func TestGone(t *testing.T) {
	s := testbed.RedisNodes(t, 1, testbed.Own())
	r := open(t, s, addrs(s), &Options{NodeTimeout: 50 * time.Millisecond})
	r.warm()
	s[0].Kill(t)
	eventually(t, "the refusal is named", func() bool {
		_, err := r.Acquire(t.Context(), request(testbed.Name(t)))
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	s[0].Restart(t, false)
	eventually(t, "it is used again", func() bool {
		_, err := r.Acquire(t.Context(), request(testbed.Name(t)))
		return err == nil
	})
}

// Renewals wait longer for a majority than attempts do, since no TTL is shortened
// by what comes in time; but not for more than a majority.
func TestRenewalIsPatient(t *testing.T) {
	const nodeTimeout = 50 * time.Millisecond
	patient := func(o *redis.Options) { o.ReadTimeout = 5 * time.Second }
	r, ps := proxied(t, 3, &Options{NodeTimeout: nodeTimeout}, patient)
	r.warm()
	var g driver.Grant
	eventually(t, "it is taken", func() (ok bool) {
		var err error
		g, err = r.Acquire(t.Context(), request(testbed.Name(t)))
		return err == nil
	})
	ps[0].Cut()
	for _, p := range ps[1:] {
		p.Delay(nodeTimeout)
	}
	start := time.Now()
	c := r.renew(g.Lease)
	if c[0].Err != nil {
		t.Errorf("renewal by a slow majority: %v", c[0].Err)
	}
	if took := time.Since(start); took > ttl/16 {
		t.Errorf("it took %v", took)
	}
}

// Close does not wait until the client gives up a silent node; nor do rounds that
// wait for it.
func TestCloseWithSilentNode(t *testing.T) {
	patient := func(o *redis.Options) { o.ReadTimeout = 10 * time.Second }
	r, ps := proxied(t, 5, &Options{NodeTimeout: 50 * time.Millisecond}, patient)
	r.warm()
	g := r.must(request(testbed.Name(t)))
	ps[0].Cut()
	r.renew(g.Lease)
	r.held(request(g.Lease.(*lease).req.Name))
	r.release(g.Lease)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	start := time.Now()
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("Close took %v", took)
	}
}
