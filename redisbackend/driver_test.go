package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
	"example.com/distlock/internal/testbed"
)

func TestOptionsAreChecked(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // sends nothing
	defer c.Close()
	var noClient *redis.Client
	var noCluster *redis.ClusterClient
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	for _, test := range []struct {
		c    redis.UniversalClient
		o    *Options
		want string // part of the error; "" means none
	}{
		{c, nil, ""},
		{c, &Options{}, ""},
		{c, &Options{Prefix: strings.Repeat("x", 64)}, ""},
		{cluster, nil, ""},
		{c, &Options{ReplicaAck: ReplicaAck{N: 1}}, ""},
		{nil, nil, "client must not be nil"},
		{noClient, nil, "client must not be nil"},
		{noCluster, nil, "client must not be nil"},
		{ring, nil, "Ring"},
		{c, &Options{Prefix: strings.Repeat("x", 65)}, "Options.Prefix has 65 bytes"},
		{c, &Options{Prefix: "a{b"}, "Options.Prefix must not contain braces"},
		{c, &Options{Prefix: "a}b"}, "Options.Prefix must not contain braces"},
		{c, &Options{Prefix: "a\xff"}, "Options.Prefix is not valid UTF-8"},
		{c, &Options{ReplicaAck: ReplicaAck{N: -1}}, "Options.ReplicaAck.N is -1"},
		{c, &Options{ReplicaAck: ReplicaAck{Timeout: time.Second}}, "Options.ReplicaAck.Timeout is set"},
		{c, &Options{ReplicaAck: ReplicaAck{N: 1, Timeout: time.Microsecond}}, "Options.ReplicaAck.Timeout is 1µs"},
		{c, &Options{ReplicaAck: ReplicaAck{N: 1, Timeout: -time.Second}}, "Options.ReplicaAck.Timeout is -1s"},
		{c, &Options{ReplicaAck: ReplicaAck{N: 1, Timeout: 5 * time.Second}}, "shorter than the client's ReadTimeout"},
		{cluster, &Options{ReplicaAck: ReplicaAck{N: 1}}, "Options.ReplicaAck needs a *redis.Client"},
	} {
		l, err := New(test.c, test.o)
		if err == nil {
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		switch {
		case test.want == "" && err != nil:
			t.Errorf("New(%T, %+v): %v", test.c, test.o, err)
		case test.want != "" && (!errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("New(%T, %+v): %v, want ErrInvalid with %q", test.c, test.o, err, test.want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	got, err := n.Capabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := driver.Capabilities{Backend: "redis", Fencing: true, LockTTL: true, Push: true,
		MinTTL: minTTL, MaxTTL: maxTTL, TTLQuantum: time.Millisecond, NumberKind: got.NumberKind}
	if got != want {
		t.Errorf("Capabilities() = %+v, want %+v", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := n.Capabilities(ctx); err == nil || got != want {
		t.Errorf("Capabilities() without a server = %+v, %v, want %+v and an error", got, err, want)
	}
	if v := n.raw.Get(t.Context(), n.layout.Version()).Val(); v != wire {
		t.Errorf("version key is %q, want %q", v, wire)
	}
}

func TestAcquire(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	req := request("a name: {with} anything\n")
	before := time.Now()
	g := n.must(req)
	if g.From.Before(before) || g.From.After(time.Now()) {
		t.Errorf("From is %v, want a time during the call", g.From)
	}
	if g.TTL != ttl {
		t.Errorf("TTL is %v, want %v", g.TTL, ttl)
	}
	if left := n.pttl(n.layout.Lock(req.Name)); left > ttl || left < ttl-10*time.Second {
		t.Errorf("the server keeps the key for %v, want %v", left, ttl)
	}
	v := n.value(req.Name)
	if want := (redisnode.Value{Owner: req.Owner, Number: g.Number, Since: v.Since, TTL: ttl, Metadata: "test"}); v != want {
		t.Errorf("value is %+v, want %+v", v, want)
	}
	now, err := n.raw.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for what, at := range map[string]time.Time{"number": time.UnixMicro(int64(g.Number) * 10), "since": v.Since} {
		if age := now.Sub(at); age < -time.Second || age > time.Minute {
			t.Errorf("%s says %v, the server's clock %v", what, at, now)
		}
	}
	if g.Number >= 1<<58 || g.Number<<5 >= 1<<53 {
		t.Errorf("number %d makes a token of more than 53 bits", g.Number)
	}
}

func TestAcquireOfTheSameOwnerIsGrantedAgain(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	req := request("n")
	first := n.must(req)
	key := n.layout.Lock("n")
	n.raw.PExpire(t.Context(), key, time.Second)
	again := n.must(req)
	if again.Number != first.Number {
		t.Errorf("number is %d, want that of the first grant, %d", again.Number, first.Number)
	}
	if left := n.pttl(key); left < ttl/2 {
		t.Errorf("%v are left, want the full TTL", left)
	}
	n.raw.PExpire(t.Context(), key, time.Hour)
	n.must(req)
	if left := n.pttl(key); left < time.Hour/2 {
		t.Errorf("%v are left: a longer expiry was shortened", left)
	}
}

func TestAcquireOfATakenName(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	first := request("n")
	n.must(first)
	rival := request("n")
	held := n.held(rival)
	if held.Remaining <= 0 || held.Remaining > ttl || held.Waiters != -1 || held.Keeper != nil {
		t.Errorf("HeldError is %+v", held)
	}
	if n.value("n").Owner != first.Owner {
		t.Error("the key has passed to the rival")
	}
	if n.exists(n.layout.Dead("n", rival.Owner)) {
		t.Error("a plain refusal left a tombstone")
	}
}

// A lock without expiry is nobody's wish. Waiters must not take it for one that
// ends now, and its holder gives it an expiry again.
func TestLockWithoutExpiry(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	g := n.must(request("n"))
	key := n.layout.Lock("n")
	n.raw.Persist(t.Context(), key)
	if held := n.held(request("n")); held.Remaining != 0 {
		t.Errorf("Remaining is %v, want 0: unknown", held.Remaining)
	}
	if c := n.renew(g.Lease)[0]; c.Err != nil {
		t.Error(c.Err)
	}
	if left := n.pttl(key); left <= 0 || left > ttl {
		t.Errorf("expiry after the renewal is %v, want %v", left, ttl)
	}
}

func TestRemaining(t *testing.T) {
	for pttl, want := range map[int64]time.Duration{-2: 0, -1: 0, 0: time.Millisecond, 1: time.Millisecond, 1500: 1500 * time.Millisecond} {
		if got := remaining(pttl); got != want {
			t.Errorf("remaining(%d) = %v, want %v", pttl, got, want)
		}
	}
}

func TestForeignDataIsLeftAlone(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	ctx := t.Context()
	for i, seed := range []func(key string) error{
		func(k string) error { return n.raw.Set(ctx, k, "their data", 0).Err() },
		func(k string) error { return n.raw.Set(ctx, k, "", 0).Err() },
		func(k string) error { return n.raw.HSet(ctx, k, "a", "b").Err() },
		func(k string) error { return n.raw.RPush(ctx, k, "a", "b").Err() },
	} {
		name := fmt.Sprint("n", i)
		key := n.layout.Lock(name)
		mine := n.must(request(name))
		if err := errors.Join(n.raw.Del(ctx, key).Err(), seed(key)); err != nil {
			t.Fatal(err)
		}
		before := n.raw.Dump(ctx, key).Val()

		req := request(name)
		_, err := n.Acquire(ctx, req)
		wantPermanent(t, err)
		if !strings.Contains(err.Error(), key) {
			t.Errorf("error %q does not name the key", err)
		}
		if err := n.Abandon(ctx, req); err != nil {
			t.Errorf("Abandon: %v", err)
		}
		if c := n.renew(mine.Lease)[0]; c.Err != driver.ErrNotHeld {
			t.Errorf("renewal: %v, want ErrNotHeld", c.Err)
		}
		if err := mine.Lease.Release(ctx); err != driver.ErrNotHeld {
			t.Errorf("release: %v, want ErrNotHeld", err)
		}
		if after := n.raw.Dump(ctx, key).Val(); after != before {
			t.Errorf("case %d: foreign data was changed", i)
		}
		if left := n.pttl(key); left != -1 {
			t.Errorf("case %d: foreign data expires in %v", i, left)
		}
	}
}

func TestForeignClock(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	key := n.layout.Clock("n")
	for _, v := range []string{"text", "-5", "9007199254740992"} {
		n.set(key, v)
		_, err := n.Acquire(t.Context(), request("n"))
		wantPermanent(t, err)
		if got := n.raw.Get(t.Context(), key).Val(); got != v || n.exists(n.layout.Lock("n")) {
			t.Errorf("clock %q became %q, or the lock was taken", v, got)
		}
	}
	n.raw.Del(t.Context(), key)
	n.raw.RPush(t.Context(), key, "x")
	_, err := n.Acquire(t.Context(), request("n"))
	wantPermanent(t, err)
}

func TestExtend(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	ctx := t.Context()
	g := n.must(request("n"))
	key := n.layout.Lock("n")

	n.raw.PExpire(ctx, key, time.Second)
	before := time.Now()
	c := n.renew(g.Lease)[0]
	if c.Err != nil || c.TTL != ttl || c.From.Before(before) || c.From.After(time.Now()) {
		t.Errorf("renewal: %+v", c)
	}
	if left := n.pttl(key); left < ttl/2 {
		t.Errorf("%v are left, want the full TTL", left)
	}
	n.raw.PExpire(ctx, key, time.Hour)
	if c := n.renew(g.Lease)[0]; c.Err != nil {
		t.Error(c.Err)
	}
	if left := n.pttl(key); left < time.Hour/2 {
		t.Errorf("%v are left: a longer expiry was shortened", left)
	}

	n.raw.Del(ctx, key)
	if c := n.renew(g.Lease)[0]; c.Err != driver.ErrNotHeld {
		t.Errorf("renewal of a lock that is gone: %v, want ErrNotHeld", c.Err)
	}
	if n.exists(key) {
		t.Error("a renewal created the key")
	}

	rival := request("n")
	rival.TTL = time.Second
	n.must(rival)
	if c := n.renew(g.Lease)[0]; c.Err != driver.ErrNotHeld {
		t.Errorf("renewal of a lock that is another's: %v, want ErrNotHeld", c.Err)
	}
	if left := n.pttl(key); left > time.Second {
		t.Errorf("the rival's lock was extended to %v", left)
	}
}

func TestRenewAnswersForEach(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	if got := n.keeper.Renew(t.Context(), nil); len(got) != 0 {
		t.Errorf("Renew of nothing: %v", got)
	}
	ls := make([]driver.Lease, maxBatch)
	for i := range ls {
		ls[i] = n.must(request(fmt.Sprint("n", i))).Lease
	}
	for i := 0; i < len(ls); i += 3 {
		n.raw.Del(t.Context(), n.layout.Lock(fmt.Sprint("n", i)))
	}
	n.raw.ScriptFlush(t.Context())
	for i, c := range n.renew(ls...) {
		if gone := i%3 == 0; gone != (c.Err == driver.ErrNotHeld) || !gone && c.Err != nil {
			t.Errorf("lock %d: %v", i, c.Err)
		}
	}
	if ls[0].Keeper() != ls[1].Keeper() {
		t.Error("two leases of a driver have different keepers")
	}
}

// Only a positive answer confirms.
func TestConfirm(t *testing.T) {
	from := time.Now()
	if c := confirm(redisnode.Reply{Value: int64(1)}, from, ttl); c.Err != nil || c.From != from || c.TTL != ttl {
		t.Errorf("1: %+v", c)
	}
	for _, v := range []any{int64(0), nil, "", "1", int64(-1), []any{}, false} {
		if c := confirm(redisnode.Reply{Value: v}, from, ttl); c.Err != driver.ErrNotHeld || !c.From.IsZero() {
			t.Errorf("%#v: %+v, want ErrNotHeld", v, c)
		}
	}
	c := confirm(redisnode.Reply{Err: errors.New("i/o timeout")}, from, ttl)
	wantTransient(t, c.Err)
}

func TestRelease(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	ctx := t.Context()
	req := request("n")
	g := n.must(req)
	if err := g.Lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if n.exists(n.layout.Lock("n")) {
		t.Error("the key is still there")
	}
	if n.exists(n.layout.Dead("n", req.Owner)) {
		t.Error("a release without doubt left a tombstone")
	}
	if err := g.Lease.Release(ctx); err != driver.ErrNotHeld {
		t.Errorf("second release: %v, want ErrNotHeld", err)
	}
	rival := request("n")
	n.must(rival)
	if err := g.Lease.Release(ctx); err != driver.ErrNotHeld {
		t.Errorf("release of another's lock: %v, want ErrNotHeld", err)
	}
	if v := n.value("n"); v.Owner != rival.Owner || n.pttl(n.layout.Lock("n")) < ttl/2 {
		t.Error("the rival's lock was touched")
	}
}

func TestAbandon(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	ctx := t.Context()
	req := request("n")
	n.must(req)
	for range 2 {
		if err := n.Abandon(ctx, req); err != nil {
			t.Fatal(err)
		}
	}
	if n.exists(n.layout.Lock("n")) {
		t.Error("the lock is still there")
	}
	if left := n.pttl(n.layout.Dead("n", req.Owner)); left <= 0 || left > ttl {
		t.Errorf("the tombstone stays for %v, want %v", left, ttl)
	}
	if _, err := n.Acquire(ctx, req); err == nil || errors.Is(err, driver.ErrHeld) {
		t.Errorf("a late request of the owner: %v, want a refusal", err)
	}
	rival := request("n")
	n.must(rival)
	if err := n.Abandon(ctx, req); err != nil {
		t.Fatal(err)
	}
	if n.value("n").Owner != rival.Owner {
		t.Error("Abandon touched another's lock")
	}
	if len(n.doubt) != 0 {
		t.Errorf("the driver remembers %v", n.doubt)
	}
}

// An answer of held ends the owner, also for an earlier copy that comes later.
func TestHeldAfterDoubtLeavesATombstone(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	g := n.must(request("n"))
	late := request("n")
	n.setDoubt(late.Owner) // as after an attempt whose reply is missing
	n.held(late)
	if err := g.Lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Acquire(t.Context(), late); err == nil || errors.Is(err, driver.ErrHeld) {
		t.Errorf("the earlier copy: %v, want a refusal", err)
	}
	n.must(request("n"))
}

func TestTTLs(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	for i, d := range []time.Duration{12345 * time.Millisecond, 24 * time.Hour, maxTTL} {
		req := request(fmt.Sprint("n", i))
		req.TTL = d
		g := n.must(req)
		key := n.layout.Lock(req.Name)
		if left := n.pttl(key); left > d || left < d-5*time.Second {
			t.Errorf("TTL %v: the server keeps %v", d, left)
		}
		if c := n.renew(g.Lease)[0]; c.Err != nil || c.TTL != d {
			t.Errorf("TTL %v: renewal %+v", d, c)
		}
		if left := n.pttl(key); left > d || left < d-5*time.Second {
			t.Errorf("TTL %v: the server keeps %v after a renewal", d, left)
		}
		n.held(request(req.Name))
		if err := n.Abandon(t.Context(), req); err != nil {
			t.Error(err)
		}
	}
	l, err := New(n.raw, &Options{Prefix: n.opt.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, d := range []time.Duration{0, -1, minTTL - 1, maxTTL + 1, math.MaxInt64} {
		if _, err := l.TryLock(t.Context(), "x", distlock.WithTTL(d)); !errors.Is(err, distlock.ErrInvalid) {
			t.Errorf("TTL %v: %v, want ErrInvalid", d, err)
		}
	}
	if n.exists(n.layout.Lock("x")) {
		t.Error("a refused TTL left a key")
	}
}

func TestNumbersRise(t *testing.T) {
	srv := testbed.Redis(t, testbed.Own())
	n := open(t, srv.Addr(), nil)
	ctx := t.Context()
	var last uint64
	next := func(what string) {
		t.Helper()
		g := n.must(request("n"))
		if g.Number <= last {
			t.Fatalf("%s: number %d after %d", what, g.Number, last)
		}
		last = g.Number
		if err := g.Lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		next("in a row")
	}
	n.raw.FlushAll(ctx)
	next("after FLUSHALL")
	srv.Restart(t, false)
	next("after a restart without data")

	// The clock of the server was once ahead of what it is now.
	ahead := last + 1_000_000_000
	n.set(n.layout.Clock("n"), fmt.Sprint(ahead))
	next("with a clock that went back")
	next("and again")
	if last != ahead+2 {
		t.Errorf("number is %d, want %d", last, ahead+2)
	}

	// Names of one bucket share the counter, so they rise together.
	other := sameBucket("n")
	g := n.must(request(other))
	if g.Number != last+1 {
		t.Errorf("number in the same bucket is %d, want %d", g.Number, last+1)
	}
}

// sameBucket finds another name in the bucket of name.
func sameBucket(name string) string {
	for i := 0; ; i++ {
		if s := fmt.Sprint("other", i); redisnode.Bucket(s) == redisnode.Bucket(name) {
			return s
		}
	}
}

func TestScriptsForgotten(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	ctx := t.Context()
	flush := func() {
		t.Helper()
		if err := n.raw.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	if _, err := n.Capabilities(ctx); err != nil {
		t.Fatal(err)
	}
	flush()
	req := request("n")
	g := n.must(req)
	flush()
	if c := n.renew(g.Lease)[0]; c.Err != nil {
		t.Error(c.Err)
	}
	flush()
	if err := g.Lease.Release(ctx); err != nil {
		t.Error(err)
	}
	if n.exists(n.layout.Dead("n", req.Owner)) {
		t.Error("a script that had to be sent again was taken for doubt")
	}
	flush()
	if err := n.Abandon(ctx, request("n")); err != nil {
		t.Error(err)
	}
}

// Every key and channel of a lock has the slot of its bucket, whatever its name.
func TestOneSlotPerLock(t *testing.T) {
	l := redisnode.Layout{Prefix: "p"}
	for _, name := range []string{"plain", "{tag}", "a{}b", "a{b", "a}b", "}{", "{x}{y}"} {
		tag := fmt.Sprintf("{%d}", redisnode.Bucket(name))
		for _, key := range []string{l.Lock(name), l.Clock(name), l.Dead(name, "o"), l.Hints(name)} {
			open, end := strings.Index(key, "{"), strings.Index(key, "}")
			if end < open || key[open:end+1] != tag {
				t.Errorf("name %q: hash tag of key %q is not %s", name, key, tag)
			}
		}
	}
}

func TestNamesDoNotMeet(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	seen := make(map[string]bool)
	for _, name := range []string{"a", "A", "a:", ":a", "a:b", "a/b", "a b", "a\x00", "a\x00b", "lock:a", "clock", "hints",
		"dead:a", "é", "e\u0301", strings.Repeat("x", 512), "{1}", "a\r\n"} {
		n.must(request(name))
		seen[n.layout.Lock(name)] = true
	}
	keys, err := n.raw.Keys(t.Context(), n.opt.Prefix+":*:lock:*").Result()
	if err != nil || len(keys) != len(seen) {
		t.Errorf("%d lock keys for %d names (%v)", len(keys), len(seen), err)
	}
}

// One round trip for an acquire, a renewal of many, and a release.
func TestRoundTrips(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	warm := n.must(request("warm up")) // connections are made, scripts are sent
	n.renew(warm.Lease)
	_ = warm.Lease.Release(t.Context())
	var trips countHook
	n.c.AddHook(&trips)
	a, b := n.must(request("a")), n.must(request("b"))
	n.renew(a.Lease, b.Lease)
	_ = a.Lease.Release(t.Context())
	_ = b.Lease.Release(t.Context())
	if want := (countHook{commands: 4, pipelines: 1}); !reflect.DeepEqual(trips, want) {
		t.Errorf("%+v, want %+v", trips, want)
	}
}

type countHook struct{ commands, pipelines int }

func (h *countHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *countHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.commands++; return next(ctx, cmd) }
}
func (h *countHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h.pipelines++; return next(ctx, cmds) }
}
