package redlockbackend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/internal/testbed"
)

func TestNewRefuses(t *testing.T) {
	a := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	b := redis.NewClient(&redis.Options{Addr: "127.0.0.1:2"})
	ring := redis.NewRing(&redis.RingOptions{})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	other := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DB: 1})
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "a", SentinelAddrs: []string{"127.0.0.1:1"}})
	sentinel2 := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "b", SentinelAddrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() {
		for _, c := range []redis.UniversalClient{a, b, ring, cluster, other, sentinel, sentinel2} {
			_ = c.Close()
		}
	})
	type list = []redis.UniversalClient
	for what, c := range map[string]struct {
		clients list
		o       *Options
		ok      bool
	}{
		"no clients":      {nil, nil, false},
		"nil client":      {list{a, nil}, nil, false},
		"nil pointer":     {list{a, (*redis.Client)(nil)}, nil, false},
		"same twice":      {list{a, b, a}, nil, false},
		"same address":    {list{a, b, other}, nil, false},
		"allowed":         {list{a, b, other}, &Options{AllowSameServer: true}, true},
		"Sentinel":        {list{sentinel, sentinel2}, nil, true},
		"ring":            {list{a, ring}, nil, false},
		"cluster":         {list{a, cluster}, nil, false},
		"braces":          {list{a}, &Options{Prefix: "a{b}"}, false},
		"negative":        {list{a}, &Options{NodeTimeout: -1}, false},
		"too short":       {list{a}, &Options{NodeTimeout: time.Microsecond}, false},
		"one":             {list{a}, nil, true},
		"two":             {list{a, b}, nil, true},
		"options are set": {list{a, b}, &Options{Prefix: "x", NodeTimeout: time.Second}, true},
	} {
		l, err := New(c.clients, c.o)
		if c.ok != (err == nil) || !c.ok && !errors.Is(err, distlock.ErrInvalid) {
			t.Errorf("%s: New: %v", what, err)
		}
		if l != nil {
			_ = l.Close()
		}
	}
}

func TestAcquireRelease(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	before := time.Now()
	req := request(name)
	g := r.must(req)
	if g.From.Before(before) || g.From.After(time.Now()) || g.TTL != ttl {
		t.Errorf("From %v, TTL %v; want a moment of the attempt (from %v), and %v", g.From, g.TTL, before, ttl)
	}
	eventually(t, "all nodes have it", func() bool { return r.count(name, req.Owner) == 5 })
	now := uint64(time.Now().UnixMicro() / 10)
	if g.Number > now || g.Number < now-200_000 {
		t.Errorf("number %d is not of now (%d)", g.Number, now)
	}
	if h := r.peer().held(request(name)); h.Remaining <= ttl/2 || h.Remaining > ttl {
		t.Errorf("remaining %v of %v", h.Remaining, ttl)
	}
	r.release(g.Lease)
	eventually(t, "no node has it", func() bool { return r.count(name, "") == 0 })
	if err := g.Lease.Release(t.Context()); err != nil {
		t.Errorf("a release repeated after its success: %v", err)
	}
	second := r.peer().must(request(name))
	if second.Number <= g.Number {
		t.Errorf("number %d after %d", second.Number, g.Number)
	}
	r.release(second.Lease)
}

// What others have on some nodes decides by quorum; B23, B29.
func TestOccupied(t *testing.T) {
	for _, c := range []struct{ n, occupied, want int }{
		{5, 2, 3}, {5, 3, 0}, {5, 5, 0}, {4, 1, 3}, {4, 2, 0}, {3, 1, 2}, {2, 1, 0}, {1, 0, 1}, {1, 1, 0},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.occupied, c.n), func(t *testing.T) {
			r := nodes(t, c.n)
			name := testbed.Name(t)
			for i := range c.occupied {
				r.occupy(i, name)
			}
			req := request(name)
			if c.want > 0 {
				g := r.must(req)
				eventually(t, "the free nodes have it", func() bool { return r.count(name, req.Owner) == c.want })
				r.release(g.Lease)
			} else {
				r.held(req)
			}
			eventually(t, "nothing of ours is left", func() bool { return r.count(name, req.Owner) == 0 })
			if n := r.count(name, "a-rival"); n != c.occupied {
				t.Errorf("the rival has %d nodes, had %d", n, c.occupied)
			}
		})
	}
}

// Where no owner has a majority, contenders have split the nodes, and the TTLs
// they asked for say nothing about when one will be free.
func TestRemaining(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	set := func(i int, owner string, left time.Duration) {
		t.Helper()
		v := fmt.Sprintf("dl1 %s.1 0 1 1 ", owner)
		if err := r.raw[i].Set(t.Context(), r.layout.Lock(name), v, left).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for i, left := range []time.Duration{50 * time.Second, 20 * time.Second, 40 * time.Second, 30 * time.Second} {
		set(i, "a", left)
	}
	// One node is free, two more are after 30 s. An answer that is certain without
	// the last node may say more.
	if left := r.held(request(name)).Remaining; left < 29*time.Second || left > 50*time.Second {
		t.Errorf("remaining %v, want 30 s to 50 s", left)
	}
	for i := range 3 { // without expiry: B12
		set(i, "a", 0)
	}
	if left := r.held(request(name)).Remaining; left != 0 {
		t.Errorf("remaining %v where no expiry frees a majority, want 0", left)
	}
	for i, owner := range []string{"a", "a", "b", "b", "c"} {
		set(i, owner, time.Minute)
	}
	if left := r.held(request(name)).Remaining; left <= 0 || left > 2*time.Second {
		t.Errorf("remaining %v after a split vote, want a few round trips", left)
	}
}

// The same owner is granted again, with its full TTL and a number of its own.
func TestSameOwnerAgain(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	req := request(name)
	first := r.must(req)
	eventually(t, "all nodes have it", func() bool { return r.count(name, req.Owner) == 5 })
	for i, c := range r.raw {
		if i < 3 {
			c.PExpire(t.Context(), r.layout.Lock(name), 5*time.Second)
		}
	}
	second := r.must(req)
	if second.Number < first.Number {
		t.Errorf("number %d after %d", second.Number, first.Number)
	}
	eventually(t, "all nodes have the full TTL", func() bool {
		for _, c := range r.raw {
			if c.PTTL(t.Context(), r.layout.Lock(name)).Val() < ttl/2 {
				return false
			}
		}
		return true
	})
	// The first grant's lease is not the second's.
	if err := first.Lease.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release of the replaced grant: %v", err)
	}
	if r.count(name, req.Owner) != 5 {
		t.Error("the replaced grant's release removed the other's keys")
	}
	r.release(second.Lease)
}

func TestAbandon(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	req := request(name)
	r.must(req)
	if err := r.Abandon(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if n := r.count(name, ""); n != 0 {
		t.Fatalf("%d nodes still have it", n)
	}
	// A copy of an abandoned request that arrives late is refused.
	late := &lease{d: r.redlockDriver, req: req, try: 1, state: make([]nodeState, 5)}
	if _, _, err := late.acquire(t.Context()); err == nil || errors.Is(err, driver.ErrHeld) {
		t.Errorf("a late request of a dead owner: %v", err)
	}
	if n := r.count(name, ""); n != 0 {
		t.Errorf("a late request took %d nodes", n)
	}
	r.release(r.must(request(name)).Lease)
}

func TestReleaseTellsNotHeld(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	g := r.must(request(name))
	eventually(t, "all nodes have it", func() bool { return r.count(name, "") == 5 })
	for i := range 3 {
		r.del(i, name)
		r.occupy(i, name)
	}
	if err := g.Lease.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release with the majority lost: %v", err)
	}
	eventually(t, "ours are removed everywhere", func() bool { return r.count(name, "") == 3 })
	if r.count(name, "a-rival") != 3 {
		t.Error("the rival's keys were touched")
	}
}

func TestRenew(t *testing.T) {
	r := nodes(t, 5)
	var ls []driver.Lease
	var names []string
	for i := range 3 {
		names = append(names, fmt.Sprintf("%s-%d", testbed.Name(t), i))
		ls = append(ls, r.must(request(names[i])).Lease)
		eventually(t, "all nodes have it", func() bool { return r.count(names[i], "") == 5 })
		for j, c := range r.raw {
			if j > 0 {
				c.PExpire(t.Context(), r.layout.Lock(names[i]), 5*time.Second)
			} else { // never shortened
				c.PExpire(t.Context(), r.layout.Lock(names[i]), time.Hour)
			}
		}
	}
	for i := range 3 { // names[1] loses its majority, names[2] a minority: B28, B30
		r.del(i, names[1])
	}
	r.del(1, names[2])
	r.occupy(2, names[2])
	r.del(2, names[2])
	before := time.Now()
	c := r.renew(ls...)
	for _, i := range []int{0, 2} {
		if c[i].Err != nil || c[i].From.Before(before) || c[i].From.After(time.Now()) || c[i].TTL != ttl {
			t.Errorf("confirm %d: %+v", i, c[i])
		}
	}
	if !errors.Is(c[1].Err, driver.ErrNotHeld) {
		t.Errorf("renewal of a lock that has lost its majority: %v", c[1].Err)
	}
	eventually(t, "all nodes are renewed", func() bool {
		for j, c := range r.raw {
			left := c.PTTL(t.Context(), r.layout.Lock(names[0])).Val()
			if left < ttl/2 || j == 0 && left < ttl {
				return false
			}
		}
		return true
	})
	if n := r.count(names[1], ""); n != 2 {
		t.Errorf("%d nodes have a lost lock, want the 2 that had it: renewal must not bring it back", n)
	}
	for _, l := range []driver.Lease{ls[0], ls[2]} {
		r.release(l)
	}
	if err := ls[1].Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release of a lost lock: %v", err)
	}
	if c := r.renew(ls...); !errors.Is(c[0].Err, driver.ErrNotHeld) {
		t.Errorf("renewal of a released lock: %v", c[0].Err)
	}
}

// A node that lost the key gets it back after a majority has proved it; B26.
func TestRefill(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	req := request(name)
	g := r.must(req)
	eventually(t, "all nodes have it", func() bool { return r.count(name, req.Owner) == 5 })
	r.del(0, name)
	if err := r.raw[0].Del(t.Context(), r.layout.Clock(name)).Err(); err != nil {
		t.Fatal(err)
	}
	r.del(1, name)
	r.occupy(1, name)
	if c := r.renew(g.Lease); c[0].Err != nil {
		t.Fatal(c[0].Err)
	}
	eventually(t, "the node has it again", func() bool { return r.count(name, req.Owner) == 4 })
	if r.value(1, name).Owner != "a-rival.1" {
		t.Error("a refill overwrote another owner's lock")
	}
	v := r.value(0, name)
	if v.Number != g.Number || v.Metadata != req.Metadata || v.TTL != ttl {
		t.Errorf("refilled value %+v", v)
	}
	if left := r.raw[0].PTTL(t.Context(), r.layout.Lock(name)).Val(); left > ttl-drift(ttl) || left < ttl/2 {
		t.Errorf("refilled for %v of %v", left, ttl)
	}
	if n, _ := r.raw[0].Get(t.Context(), r.layout.Clock(name)).Uint64(); n < g.Number {
		t.Errorf("the node's clock is %d, behind the number of the lock it has, %d", n, g.Number)
	}
	// The refilled node counts from now on.
	r.del(2, name)
	r.del(3, name)
	r.occupy(3, name)
	if c := r.renew(g.Lease); c[0].Err == nil {
		t.Error("two nodes of five confirmed a renewal")
	} else if !errors.Is(c[0].Err, driver.ErrNotHeld) {
		t.Error(c[0].Err)
	}
	if n := r.count(name, req.Owner); n != 2 {
		t.Errorf("%d nodes have it: refilled without a proof", n)
	}
	if err := g.Lease.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Error(err)
	}
}

// No refill brings a released lock back, however late it arrives.
func TestRefillAfterRelease(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	req := request(name)
	g := r.must(req)
	l := g.Lease.(*lease)
	eventually(t, "all nodes have it", func() bool { return r.count(name, req.Owner) == 5 })
	r.del(4, name)
	if _, ok := l.sending(r.nodes[4]); !ok { // as a refill does before it sends
		t.Fatal("a held lock cannot be refilled")
	}
	r.release(l)
	eventually(t, "all nodes have answered", func() bool { had, not := l.counts(); return had+not == 5 })
	if _, ok := l.sending(r.nodes[3]); ok {
		t.Error("a released lock can be refilled")
	}
	// The refill that was under way arrives now.
	n, err := refillScript.Run(t.Context(), r.raw[4],
		[]string{r.layout.Lock(name), r.layout.Clock(name), r.layout.Dead(name, req.Owner)},
		req.Owner, l.try, l.number, 10_000, ttl.Milliseconds(), "")
	if err != nil || n != int64(0) {
		t.Errorf("a late refill: %v, %v", n, err)
	}
	if n := r.count(name, ""); n != 0 {
		t.Errorf("%d nodes have a released lock", n)
	}
}

// Numbers rise across drivers whose clocks and memories differ.
func TestNumbersRise(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	var last uint64
	for i := range 100 {
		p := r
		if i%10 == 9 { // forgets what it has seen
			p = r.peer()
		}
		g := p.must(request(name))
		if g.Number <= last {
			t.Fatalf("number %d after %d", g.Number, last)
		}
		last = g.Number
		p.release(g.Lease)
	}
}

// A node that is ahead, or a client whose clock is, costs a second round and moves
// nothing: numbers stay at the time of the majority's clocks.
func TestSecondRound(t *testing.T) {
	now := func() uint64 { return uint64(time.Now().UnixMicro() / 10) }
	const minute = 6_000_000
	t.Run("client clock ahead", func(t *testing.T) {
		r := nodes(t, 5)
		name := testbed.Name(t)
		r.agreed(name, now()+60*minute) // proposes that + 1
		g := r.must(request(name))
		if g.Number > now() {
			t.Errorf("number %d is ahead of time (%d)", g.Number, now())
		}
		r.release(g.Lease)
		if next := r.peer().must(request(name)); next.Number <= g.Number {
			t.Errorf("number %d after %d", next.Number, g.Number)
		}
	})
	t.Run("nodes' counters ahead", func(t *testing.T) {
		r := nodes(t, 5)
		name := testbed.Name(t)
		ahead := now() + 60*minute
		for i, c := range r.raw {
			if err := c.Set(t.Context(), r.layout.Clock(name), ahead+uint64(i), 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		g := r.must(request(name))
		if g.Number <= ahead+1 || g.Number > ahead+5 { // the majority's largest, + 1
			t.Errorf("number is counter + %d", g.Number-ahead)
		}
		r.release(g.Lease)
		next := r.must(request(name)) // continues it in one round
		if next.Number <= g.Number || next.Number > ahead+10 {
			t.Errorf("numbers are counter + %d, then counter + %d", g.Number-ahead, next.Number-ahead)
		}
	})
	t.Run("one node ahead", func(t *testing.T) {
		r := nodes(t, 5)
		name := testbed.Name(t)
		if err := r.raw[2].Set(t.Context(), r.layout.Clock(name), now()+60*minute, 0).Err(); err != nil {
			t.Fatal(err)
		}
		r.clock = func() time.Time { return time.Now().Add(-time.Minute) } // so a second round is needed
		var last uint64
		for range 5 {
			g := r.must(request(name))
			if g.Number > now() || g.Number <= last {
				t.Errorf("number %d after %d, at %d", g.Number, last, now())
			}
			last = g.Number
			r.release(g.Lease)
		}
	})
	t.Run("client clock behind", func(t *testing.T) {
		r := nodes(t, 5)
		name := testbed.Name(t)
		l := &lease{d: r.redlockDriver, req: request(name), try: 1, state: make([]nodeState, 5)}
		v, err := l.acquireOn(t.Context(), r.nodes[0], now()-minute)
		if err != nil || v.verdict != granted || v.counter < now()-300_000 {
			t.Errorf("an old number on a fresh node: %+v, %v; want it granted, not accepted, and a counter near now", v, err)
		}
		l.undo(t.Context())
	})
	t.Run("at the end", func(t *testing.T) {
		r := nodes(t, 3)
		name := testbed.Name(t)
		for _, c := range r.raw {
			if err := c.Set(t.Context(), r.layout.Clock(name), uint64(maxNumber-1), 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Acquire(t.Context(), request(name)); !permanent(err) {
			t.Errorf("counters at their end: %v", err)
		}
		eventually(t, "nothing is left", func() bool { return r.count(name, "") == 0 })
	})
}

// An attempt whose time is used up is refused and undone, although every node said
// yes: the client was stopped on the way; B21, B22.
func TestValidityUsedUp(t *testing.T) {
	r := nodes(t, 3)
	name := testbed.Name(t)
	req := request(name)
	req.TTL = 400 * time.Millisecond
	r.clock = func() time.Time {
		nap(req.TTL)
		return time.Now()
	}
	if _, err := r.Acquire(t.Context(), req); err == nil || errors.Is(err, driver.ErrHeld) || permanent(err) {
		t.Errorf("an attempt without validity: %v", err)
	}
	if n := r.count(name, ""); n != 0 {
		t.Errorf("%d nodes have something left", n)
	}
}

// One node that is permanently wrong is like a dead one.
func TestPermanent(t *testing.T) {
	d := &redlockDriver{nodes: make([]*node, 5), quorum: 3}
	for i := range 6 {
		var failed []NodeError
		for j := range 5 {
			failed = append(failed, NodeError{Index: j, Permanent: j < i, Err: errors.New("x")})
		}
		if err := d.noQuorum("test", 0, 0, failed); permanent(err) != (i > 2) {
			t.Errorf("%d of 5 permanently wrong: permanent is %v", i, permanent(err))
		}
	}
}

func TestForeignData(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	put := func(i int) {
		t.Helper()
		var err error
		if i%2 == 0 {
			err = r.raw[i].Set(t.Context(), r.layout.Lock(name), "data", 0).Err()
		} else {
			err = r.raw[i].RPush(t.Context(), r.layout.Lock(name), "data").Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put(0)
	put(1)
	g := r.must(request(name))
	if c := r.renew(g.Lease); c[0].Err != nil {
		t.Error(c[0].Err)
	}
	r.release(g.Lease)
	put(2)
	_, err := r.Acquire(t.Context(), request(name))
	q := wantQuorum(t, err, true)
	if len(q.Failed) != 3 || q.Failed[0].Index != 0 {
		t.Errorf("failed nodes: %v", q.Failed)
	}
	for i := range 3 {
		if n := r.raw[i].Exists(t.Context(), r.layout.Lock(name)).Val(); n != 1 {
			t.Errorf("the data on node %d is gone", i)
		}
	}
}

func TestCapabilitiesWithoutServer(t *testing.T) {
	var asked atomic.Bool
	clients := make([]redis.UniversalClient, 3)
	for i := range clients {
		c := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", i+1), Dialer: func(context.Context, string, string) (net.Conn, error) {
			asked.Store(true)
			return nil, errors.New("nobody may connect")
		}})
		defer c.Close()
		clients[i] = c
	}
	l, err := New(clients, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.TryLock(t.Context(), "n", distlock.WithTTL(time.Millisecond)); !errors.Is(err, distlock.ErrInvalid) {
		t.Errorf("a TTL below the minimum: %v", err)
	}
	if _, err := New(clients, nil, distlock.WithTTL(time.Millisecond)); !errors.Is(err, distlock.ErrInvalid) {
		t.Errorf("New with a TTL below the minimum: %v", err)
	}
	if asked.Load() {
		t.Error("a server was asked")
	}
	var e *distlock.Error
	if _, err := l.TryLock(t.Context(), "n"); !errors.As(err, &e) || e.Backend != "redlock" {
		t.Errorf("the error names backend %q: %v", e.Backend, err)
	}
}

func TestCapabilities(t *testing.T) {
	t.Run("fit", func(t *testing.T) {
		c, err := nodes(t, 3).Capabilities(t.Context())
		if err != nil || c.Backend != "redlock" || !c.Fencing || !c.Replicated || c.FIFO || c.SharedFate || !c.LockTTL || !c.Push {
			t.Errorf("%+v, %v", c, err)
		}
	})
	t.Run("one server twice", func(t *testing.T) {
		s := testbed.RedisNodes(t, 2)
		twice := []string{s[0].Addr(), s[1].Addr(), s[0].Proxy(t).Addr()}
		r := open(t, s, twice, nil)
		_, err := r.Capabilities(t.Context())
		if !permanent(err) {
			t.Fatalf("one server behind two clients: %v", err)
		}
		t.Log(err)
		if _, err := r.Acquire(t.Context(), request(testbed.Name(t))); !permanent(err) {
			t.Errorf("Acquire: %v", err)
		}
		r = open(t, s, twice, &Options{AllowSameServer: true})
		if _, err := r.Capabilities(t.Context()); err != nil {
			t.Errorf("allowed: %v", err)
		}
	})
	t.Run("wrong credentials on a minority, then a majority", func(t *testing.T) {
		s := testbed.RedisNodes(t, 3)
		bad := 0
		tweak := func(o *redis.Options) {
			if o.Addr == s[0].Addr() || bad == 2 && o.Addr == s[1].Addr() {
				o.Username, o.Password = "nobody", "wrong"
			}
		}
		r := open(t, s, addrs(s), nil, tweak)
		if _, err := r.Capabilities(t.Context()); err != nil {
			t.Errorf("one node with wrong credentials: %v", err)
		}
		g := r.must(request(testbed.Name(t)))
		if c := r.renew(g.Lease); c[0].Err != nil {
			t.Error(c[0].Err)
		}
		r.release(g.Lease)
		bad = 2
		r = open(t, s, addrs(s), nil, tweak)
		_, err := r.Capabilities(t.Context())
		wantQuorum(t, err, true)
		t.Log(err)
	})
	t.Run("other use of the prefix", func(t *testing.T) {
		r := nodes(t, 1)
		if err := r.raw[0].Set(t.Context(), r.layout.Version(), "redis 1", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Capabilities(t.Context()); !permanent(err) {
			t.Error(err)
		}
	})
}

// Every reply that does not say yes is no success; B28.
func TestReplies(t *testing.T) {
	for _, reply := range []any{nil, "", "1", "OK", int64(2), int64(-1), []any{}, 1, true} {
		if ok, err := parseCount(reply); ok || err == nil {
			t.Errorf("parseCount(%v) = %v, %v", reply, ok, err)
		}
	}
	for _, reply := range []any{
		nil, "accepted", []any{}, []any{"accepted"}, []any{"accepted", "x"}, []any{"accepted", int64(5)}, []any{"yes", "5"},
		[]any{"held", "5"}, []any{"held", "5", "7", "who"}, []any{"held", "5", int64(7), nil}, []any{"conflict", "key"},
	} {
		if v, err := parseVote(reply); err == nil {
			t.Errorf("parseVote(%v) = %+v", reply, v)
		}
	}
}

func TestClosed(t *testing.T) {
	r := nodes(t, 3)
	g := r.must(request(testbed.Name(t)))
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Acquire(t.Context(), request("x")); err == nil {
		t.Error("Acquire after Close succeeded")
	}
	if c := r.renew(g.Lease); c[0].Err == nil {
		t.Error("Renew after Close succeeded")
	}
	if err := g.Lease.Release(t.Context()); err == nil {
		t.Error("Release after Close succeeded")
	}
	if _, _, err := r.Hints(t.Context(), "x"); err == nil {
		t.Error("Hints after Close succeeded")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Capabilities(ctx); err == nil {
		t.Error("Capabilities after Close succeeded")
	}
}

// Of contenders that share out the nodes exactly one leads, as each of them sees it.
func TestLeads(t *testing.T) {
	for _, c := range []struct {
		mine   string
		nodes  map[string]int // by owner; ours with them
		quorum int
		want   bool
	}{
		{"a", map[string]int{"a": 2, "b": 2, "c": 1}, 3, true},
		{"b", map[string]int{"a": 2, "b": 2, "c": 1}, 3, false},
		{"c", map[string]int{"a": 2, "b": 2, "c": 1}, 3, false},
		{"b", map[string]int{"a": 1, "b": 2}, 3, true},          // two nodes are dead
		{"a", map[string]int{"a": 1, "b": 2}, 3, false},         //
		{"a", map[string]int{"a": 1, "b": 1}, 3, false},         // three nodes are dead
		{"a", map[string]int{"a": 2, "b": 3}, 3, false},         // held
		{"a", map[string]int{"a": 2}, 3, false},                 // nobody to wait for
		{"a", map[string]int{"b": 1, "c": 1, "d": 1}, 3, false}, // no node of ours
	} {
		ty := &tally{granted: make([]*node, c.nodes[c.mine])}
		for owner, n := range c.nodes {
			if owner != c.mine {
				if ty.holders == nil {
					ty.holders = map[string]int{}
				}
				ty.holders[owner], ty.held = n, ty.held+n
			}
		}
		if got := ty.leads(c.mine, c.quorum); got != c.want {
			t.Errorf("%s of %v leads: %v, want %v", c.mine, c.nodes, got, c.want)
		}
	}
}

// Many clients that split the votes again and again all get their turn.
func TestNoLivelock(t *testing.T) {
	const clients = 20
	servers := testbed.RedisNodes(t, 5)
	name := testbed.Name(t)
	first := nodes(t, 5)
	var wg sync.WaitGroup
	var inside atomic.Int32
	for range clients {
		r := open(t, nil, addrs(servers), &Options{Prefix: first.opt.Prefix})
		wg.Go(func() {
			for done := 0; done < 3; {
				req := request(name)
				g, err := r.Acquire(t.Context(), req)
				var held *driver.HeldError
				switch {
				case err == nil:
					if inside.Add(1) > 1 {
						t.Error("two clients are inside")
					}
					inside.Add(-1)
					done++
					if err := g.Lease.Release(t.Context()); err != nil {
						t.Errorf("Release: %v", err)
					}
				case errors.As(err, &held):
					nap(min(held.Remaining, 5*time.Millisecond))
				default:
					if err := r.Abandon(t.Context(), req); err != nil {
						t.Errorf("Abandon: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// After a refusal, a release or an abandoning nothing of it is on its way that the
// next attempt on a free name could meet; B79.
func TestFreeIsFree(t *testing.T) {
	a := nodes(t, 5)
	b, c := a.peer(), a.peer()
	for i := range 300 {
		name := fmt.Sprintf("%s-%d", testbed.Name(t), i)
		g := a.must(request(name))
		b.held(request(name))
		a.release(g.Lease)
		g = c.must(request(name))
		c.release(g.Lease)
		req := request(name)
		b.must(req)
		if err := b.Abandon(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		a.release(a.must(request(name)).Lease)
	}
}
