package redlockbackend

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
	"example.com/distlock/internal/testbed"
)

// chaos has clients with wrong clocks and short memories fight for one name on
// real servers, while keys disappear, so that Redlock's exclusion is broken many
// times; the numbers must stay in order nevertheless.
type chaos struct {
	t       *testing.T
	servers []*testbed.Server
	prefix  string
	name    string

	mu       sync.Mutex
	grants   []grant
	pause    sync.RWMutex // held for writing: no client has anything on its way
	overlaps atomic.Int64
	holders  atomic.Int64
}

type grant struct {
	start, done time.Time
	number      uint64
}

func newChaos(t *testing.T) *chaos {
	return &chaos{t: t, servers: testbed.RedisNodes(t, 5), prefix: "chaos-" + crand.Text(), name: testbed.Name(t)}
}

// client locks and unlocks until ctx ends, with a clock that is off by skew. Often
// it forgets what it has seen, and sometimes it stops while it holds the lock.
func (c *chaos) client(ctx context.Context, r *rig, skew time.Duration) {
	rng := rand.New(rand.NewPCG(uint64(skew), 7))
	r.clock = func() time.Time { return time.Now().Add(skew) }
	for ctx.Err() == nil {
		c.pause.RLock()
		if rng.IntN(4) == 0 {
			for i := range r.last {
				r.last[i].Store(0)
			}
		}
		req := request(c.name)
		req.TTL = 4 * minTTL
		start := time.Now()
		g, err := r.Acquire(c.t.Context(), req)
		var held *driver.HeldError
		switch {
		case err == nil:
			c.mu.Lock()
			c.grants = append(c.grants, grant{start, time.Now(), g.Number})
			c.mu.Unlock()
			if c.holders.Add(1) > 1 {
				c.overlaps.Add(1)
			}
			nap(time.Duration(rng.IntN(3000)) * time.Microsecond)
			c.holders.Add(-1)
			// What a loaded machine doesn't get done in time ends with the TTL.
			_ = g.Lease.Release(c.t.Context())
		case !errors.As(err, &held):
			_ = r.Abandon(c.t.Context(), req)
		}
		c.pause.RUnlock()
		nap(time.Duration(rng.IntN(2000)) * time.Microsecond)
	}
}

func nap(d time.Duration) { <-time.After(d) }

// run lets clients fight for d while trouble(node) happens again and again.
func (c *chaos) run(d time.Duration, skews []time.Duration, trouble func(rng *rand.Rand, node *redis.Client)) {
	ctx, cancel := context.WithTimeout(c.t.Context(), d)
	defer cancel()
	var raw []*redis.Client
	for _, s := range c.servers {
		raw = append(raw, redis.NewClient(&redis.Options{Addr: s.Addr()}))
	}
	var wg sync.WaitGroup
	for _, skew := range skews {
		r := open(c.t, nil, addrs(c.servers), &Options{Prefix: c.prefix})
		wg.Go(func() { c.client(ctx, r, skew) })
	}
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for ctx.Err() == nil {
			trouble(rng, raw[rng.IntN(len(raw))])
		}
	})
	wg.Wait()
	for _, r := range raw {
		_ = r.Close()
	}
}

// verdict returns how many pairs of grants are out of order.
func (c *chaos) verdict() (bad int) {
	seen := make(map[uint64]bool)
	for _, g := range c.grants {
		if seen[g.number] {
			bad++
			c.t.Logf("number %d was given twice", g.number)
		}
		seen[g.number] = true
	}
	byStart, byDone := slices.Clone(c.grants), slices.Clone(c.grants)
	slices.SortFunc(byStart, func(a, b grant) int { return a.start.Compare(b.start) })
	slices.SortFunc(byDone, func(a, b grant) int { return a.done.Compare(b.done) })
	last, i := uint64(0), 0
	for _, g := range byStart {
		for ; byDone[i].done.Before(g.start); i++ {
			last = max(last, byDone[i].number)
		}
		if g.number <= last {
			bad++
			if bad < 10 {
				c.t.Logf("number %d was given after %d", g.number, last)
			}
		}
	}
	c.t.Logf("%d grants, %d of them while another client believed to hold, %d out of order", len(c.grants), c.overlaps.Load(), bad)
	return bad
}

func chaosTime(t *testing.T) time.Duration {
	d := 2 * time.Second
	if v := os.Getenv("DISTLOCK_CHAOS"); v != "" {
		var err error
		if d, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

var skews = []time.Duration{0, -time.Hour, time.Hour, -1900 * time.Millisecond, 1900 * time.Millisecond, 3 * time.Second, 10 * time.Millisecond, -10 * time.Millisecond}

// dropKey removes the lock's key from one node, as if it had expired early.
func (c *chaos) dropKey(rng *rand.Rand, node *redis.Client) {
	node.Del(c.t.Context(), redisnode.Layout{Prefix: c.prefix}.Lock(c.name))
	nap(time.Duration(rng.IntN(1000)) * time.Microsecond)
}

// DISTLOCK_CHAOS=1m makes this run longer than its 2 s.
func TestChaosNumbers(t *testing.T) {
	c := newChaos(t)
	for i := 0; i < 10 && (len(c.grants) < 50 || c.overlaps.Load() == 0); i++ {
		c.run(chaosTime(t), skews, c.dropKey)
	}
	if bad := c.verdict(); bad > 0 {
		t.Errorf("%d grants out of order", bad)
	}
	if len(c.grants) < 50 || c.overlaps.Load() == 0 {
		t.Errorf("the test tests nothing: %d grants, %d overlaps", len(c.grants), c.overlaps.Load())
	}
}

// One node loses its data, but 4 s after the last grant, as promised.
func TestChaosDataLoss(t *testing.T) {
	t.Parallel()
	c := newChaos(t)
	layout := redisnode.Layout{Prefix: c.prefix}
	lose := time.Now().Add(500 * time.Millisecond)
	c.run(6*time.Second, skews, func(rng *rand.Rand, node *redis.Client) {
		c.dropKey(rng, node)
		if !lose.IsZero() && time.Now().After(lose) {
			lose = time.Time{}
			c.pause.Lock()
			defer c.pause.Unlock()
			nap(4100 * time.Millisecond)
			for _, key := range []string{layout.Clock(c.name), layout.Lock(c.name)} {
				if err := node.Del(t.Context(), key).Err(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if bad := c.verdict(); bad > 0 {
		t.Errorf("%d grants out of order", bad)
	}
	if !lose.IsZero() {
		t.Error("no node lost its data")
	}
}

// The run must be able to fail: with a rule taken out of a node's script it does.
func TestChaosFindsMutations(t *testing.T) {
	for what, m := range map[string]struct {
		script   **redisnode.Script
		src      string
		from, to string
	}{
		"any number is accepted":        {&acquireScript, acquireSource, "number > counter and", "true and"},
		"granting counts as accepting":  {&acquireScript, acquireSource, "accepted == number and 'accepted' or 'granted'", "'accepted'"},
		"the counter is not remembered": {&acquireScript, acquireSource, "redis.call('SET', KEYS[2], ARGV[3])", ""},
	} {
		t.Run(what, func(t *testing.T) {
			if strings.Count(m.src, m.from) != 1 {
				t.Fatalf("%q is not in the script once", m.from)
			}
			good := *m.script
			*m.script = redisnode.NewScript(strings.Replace(m.src, m.from, m.to, 1))
			defer func() { *m.script = good }()
			for range 10 {
				c := newChaos(t)
				c.run(500*time.Millisecond, skews, c.dropKey)
				if c.verdict() > 0 {
					return
				}
			}
			t.Error("not found")
		})
	}
}

// The scripts' rules, one by one, on one node with a clock of its own.
func TestNodeRules(t *testing.T) {
	r := nodes(t, 1)
	n := r.nodes[0]
	now := func() uint64 { return uint64(time.Now().UnixMicro() / 10) }
	const second = 100_000
	for i, c := range []struct {
		counter int64 // relative to now; 0 none
		number  int64
		want    verdict
	}{
		{0, 0, accepted},
		{0, -1 * second, accepted},
		{0, -3 * second, granted}, // behind the floor
		{0, 1 * second, accepted},
		{0, 3 * second, granted}, // far ahead
		{-1 * second, -1*second - 1, granted},
		{-1 * second, -1 * second, granted},
		{-1 * second, -1*second + 1, accepted},
		{-10 * second, -9 * second, granted},
		{3600 * second, 3600*second + 1, accepted}, // continues the counter
		{3600 * second, 3600*second + 2, granted},
	} {
		name := fmt.Sprintf("%s-%d", testbed.Name(t), i)
		at := now()
		if c.counter != 0 {
			if err := r.raw[0].Set(t.Context(), r.layout.Clock(name), at+uint64(c.counter), 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		l := &lease{d: r.redlockDriver, req: request(name), try: 1, state: make([]nodeState, 1)}
		number := at + uint64(c.number)
		v, err := l.acquireOn(t.Context(), n, number)
		if err != nil || v.verdict != c.want {
			t.Errorf("counter now%+d, proposal now%+d: %v, %v; want %v", c.counter, c.number, v.verdict, err, c.want)
			continue
		}
		// What was not accepted in the first round is in the second, as counter + 1.
		if v.verdict == granted {
			if w, err := l.acceptOn(t.Context(), n, v.counter+1); err != nil || w.verdict != accepted {
				t.Errorf("second round with %d + 1: %v, %v", v.counter, w.verdict, err)
			}
			if w, err := l.acceptOn(t.Context(), n, v.counter+1); err != nil || w.verdict != accepted {
				t.Errorf("the same request again: %v, %v", w.verdict, err)
			}
			if w, err := l.acceptOn(t.Context(), n, v.counter); err != nil || w.verdict != behind {
				t.Errorf("second round with the counter itself: %v, %v", w.verdict, err)
			}
		}
		stranger := &lease{d: r.redlockDriver, req: request(name), try: 1, state: make([]nodeState, 1)}
		if w, err := stranger.acceptOn(t.Context(), n, at+7200*second); err != nil || w.verdict != lost {
			t.Errorf("second round of somebody who has not got the lock: %v, %v", w.verdict, err)
		}
	}
}
