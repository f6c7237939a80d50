package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/internal/testbed"
)

// A deadline counted from the grant lies before the server's, however slow the
// network is.
func TestFromIsBeforeTheServersCountdown(t *testing.T) {
	srv := testbed.Redis(t)
	proxy := srv.Proxy(t)
	n := open(t, proxy.Addr(), nil)
	raw := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer raw.Close()
	g := n.must(request("warm up"))
	n.renew(g.Lease)
	proxy.Delay(50 * time.Millisecond)
	check := func(what string, from time.Time) {
		t.Helper()
		now := time.Now()
		left, err := raw.PTTL(t.Context(), n.layout.Lock("n")).Result()
		if err != nil {
			t.Fatal(err)
		}
		if ahead := from.Add(ttl).Sub(now.Add(left)); ahead > 5*time.Millisecond {
			t.Errorf("%s: our deadline is %v after the server's", what, ahead)
		}
		if age := now.Sub(from); age > 10*time.Second {
			t.Errorf("%s: From is %v old", what, age)
		}
	}
	g = n.must(request("n"))
	check("acquire", g.From)
	check("renewal", n.renew(g.Lease)[0].From)
}

// The reply to the acquire is lost and the client library asks again on its own:
// it must not take the lock for another's.
func TestLostAcquireReplyIsRetried(t *testing.T) {
	srv := testbed.Redis(t)
	proxy := srv.Proxy(t)
	n := open(t, proxy.Addr(), nil)
	n.must(request("warm up"))
	req := request("n")
	before := time.Now()
	proxy.FailReplies(1)
	g := n.must(req)
	left := n.pttl(n.layout.Lock("n"))
	if !g.From.After(before) || time.Until(g.From.Add(g.TTL)) > left+time.Millisecond {
		t.Errorf("From %v after the call, but the server keeps the lock for %v only", g.From.Sub(before), left)
	}
	if err := g.Lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !n.exists(n.layout.Dead("n", req.Owner)) {
		t.Error("the first copy may come later, but the release left no tombstone")
	}
}

// Without retries the outcome is open. The same owner may ask again, or give up.
func TestLostAcquireReply(t *testing.T) {
	srv := testbed.Redis(t)
	proxy := srv.Proxy(t)
	n := open(t, proxy.Addr(), nil, noRetries)
	ctx := t.Context()
	n.must(request("warm up"))
	for _, again := range []bool{true, false} {
		req := request(fmt.Sprint("again=", again))
		proxy.FailReplies(1)
		_, err := n.Acquire(ctx, req)
		wantTransient(t, err)
		if !again {
			if err := n.Abandon(ctx, req); err != nil {
				t.Fatal(err)
			}
			n.must(request(req.Name)) // free at once
			continue
		}
		g := n.must(req)
		if err := g.Lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if !n.exists(n.layout.Dead(req.Name, req.Owner)) {
			t.Error("the first copy may come later, but the release left no tombstone")
		}
	}
	if len(n.doubt) != 0 {
		t.Errorf("the driver remembers %v", n.doubt)
	}
}

func TestLostReleaseReply(t *testing.T) {
	srv := testbed.Redis(t)
	proxy := srv.Proxy(t)
	for _, retries := range []int{-1, 3} {
		n := open(t, proxy.Addr(), nil, func(o *redis.Options) { o.MaxRetries = retries })
		g := n.must(request("n"))
		proxy.FailReplies(1)
		err := g.Lease.Release(t.Context())
		if retries < 0 {
			wantTransient(t, err)
			err = g.Lease.Release(t.Context())
		}
		if err != nil {
			t.Errorf("retries %d: repeated release: %v, want nil", retries, err)
		}
	}
}

func TestLostRenewReply(t *testing.T) {
	srv := testbed.Redis(t)
	proxy := srv.Proxy(t)
	n := open(t, proxy.Addr(), nil, noRetries)
	g := n.must(request("n"))
	n.renew(g.Lease) // the connection for pipelines is there
	proxy.FailReplies(1)
	wantTransient(t, n.renew(g.Lease)[0].Err)
	if c := n.renew(g.Lease)[0]; c.Err != nil {
		t.Error(c.Err)
	}
}

// The client library reads on after the end of a context; our calls do not wait
// for it, and a request that arrives after its caller gave up takes nothing.
func TestSilentServer(t *testing.T) {
	srv := testbed.Redis(t)
	proxy := srv.Proxy(t)
	n := open(t, proxy.Addr(), nil, func(o *redis.Options) { o.ReadTimeout = 2 * time.Second; o.MaxRetries = -1 })
	g := n.must(request("held"))
	n.renew(g.Lease)
	proxy.Cut()
	within := func(what string, call func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		wantTransient(t, call(ctx))
		if d := time.Since(start); d > time.Second {
			t.Errorf("%s took %v", what, d)
		}
	}
	req := request("n")
	within("Acquire", func(ctx context.Context) error { _, err := n.Acquire(ctx, req); return err })
	within("Renew", func(ctx context.Context) error { return n.keeper.Renew(ctx, []driver.Kept{g.Lease})[0].Err })
	within("Release", func(ctx context.Context) error { return g.Lease.Release(ctx) })
	within("Abandon", func(ctx context.Context) error { return n.Abandon(ctx, req) })
	within("Capabilities", func(ctx context.Context) error { _, err := n.Capabilities(ctx); return err })
	within("Hints", func(ctx context.Context) error { _, _, err := n.Hints(ctx, "n"); return err })
	within("Close", func(ctx context.Context) error { return n.calls.Wait(ctx) })
	proxy.Heal() // what was held is delivered

	if err := n.Abandon(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	n.must(request("n"))
	if err := g.Lease.Release(t.Context()); err != nil {
		t.Errorf("release repeated after an unclear one: %v", err)
	}
}

func TestNoServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	n := open(t, ln.Addr().String(), nil, noRetries)
	_, err = n.Capabilities(t.Context())
	wantTransient(t, err)
	_, err = n.Acquire(t.Context(), request("n"))
	wantTransient(t, err)
}

func TestClientClosedByItsOwner(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: testbed.Redis(t).Addr()})
	d, err := newDriver(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	c.Close()
	_, err = d.Acquire(t.Context(), request("n"))
	wantPermanent(t, err)
}

// probe asks a server with this client and wants a permanent error with all texts.
func probe(t *testing.T, addr string, tweak func(*redis.Options), texts ...string) {
	t.Helper()
	n := open(t, addr, nil, func(o *redis.Options) {
		if tweak != nil {
			tweak(o)
		}
	})
	_, err := n.Capabilities(t.Context())
	wantPermanent(t, err)
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

func TestReplica(t *testing.T) {
	_, replica := testbed.RedisPair(t)
	probe(t, replica.Addr(), nil, "replica of")
	// Without the probe, as after a demotion: not an answer about the lock.
	n := open(t, replica.Addr(), nil, noRetries)
	_, err := n.Acquire(t.Context(), request("n"))
	wantTransient(t, err)
}

func TestDemotionWhileHeld(t *testing.T) {
	srv := testbed.Redis(t, testbed.Own())
	n := open(t, srv.Addr(), nil, noRetries)
	g := n.must(request("n"))
	if err := n.raw.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	wantTransient(t, n.renew(g.Lease)[0].Err)
	wantTransient(t, g.Lease.Release(t.Context()))
	if err := n.raw.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if c := n.renew(g.Lease)[0]; c.Err != nil {
		t.Error(c.Err)
	}
}

func TestPassword(t *testing.T) {
	srv := testbed.Redis(t, testbed.RedisArgs("--requirepass", "secret"))
	probe(t, srv.Addr(), nil, "NOAUTH")
	probe(t, srv.Addr(), func(o *redis.Options) { o.Password = "wrong" }, "WRONGPASS")
	c := redis.NewClient(&redis.Options{Addr: srv.Addr(), Password: "secret"})
	defer c.Close()
	d, err := newDriver(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Capabilities(t.Context()); err != nil {
		t.Error(err)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// user makes a user of the server that the returned client options log in as.
func user(t *testing.T, addr, name string, rules ...string) func(*redis.Options) {
	t.Helper()
	admin := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() {
		admin.Do(context.Background(), "ACL", "DELUSER", name)
		admin.Close()
	})
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">pw"}
	for _, r := range rules {
		args = append(args, r)
	}
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	return func(o *redis.Options) { o.Username, o.Password, o.MaxRetries = name, "pw", -1 }
}

// refused is the error of the first use by a user who lacks something; the server
// is as it was before.
func refused(t *testing.T, addr, prefix string, tweak func(*redis.Options), texts ...string) error {
	t.Helper()
	n := open(t, addr, &Options{Prefix: prefix}, tweak)
	_, err := n.Capabilities(t.Context())
	wantPermanent(t, err)
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
	if left := n.raw.Keys(t.Context(), "*"+prefix+"*").Val(); len(left) != 0 {
		t.Errorf("keys %q are left", left)
	}
	return err
}

func TestPermissions(t *testing.T) {
	addr := testbed.Redis(t).Addr()
	// Each command alone, on a server that knows the scripts and one that does not.
	open(t, addr, nil).must(request("n"))
	for _, command := range []string{"EVAL", "EVALSHA", "GET", "SET", "DEL", "EXISTS", "PTTL", "PEXPIRE", "TIME", "PUBLISH"} {
		for _, prefix := range []string{"acl-1-" + command, "acl-2-" + command} {
			err := refused(t, addr, prefix, user(t, addr, "no"+command, "~*", "&*", "+@all", "-"+command),
				"lacks the permission to run "+command+":", "ACL rules ~"+prefix+":* &"+prefix+":* +eval ", " +"+strings.ToLower(command)+" ")
			for _, other := range []string{"keys", "channels", "does not have"} {
				if strings.Contains(err.Error(), other+" ") {
					t.Errorf("without %s: %q speaks of %s", command, err, other)
				}
			}
		}
		open(t, addr, nil).must(request("n"))
	}
	refused(t, addr, "acl-3", user(t, addr, "nothing", "~*", "&*"), "EVAL, EVALSHA")
	refused(t, addr, "acl-4", user(t, addr, "two", "~*", "&*", "+@all", "-del", "-time"), "run DEL, TIME:")
	for name, rules := range map[string][]string{
		"otherkeys": {"~other:*", "&*", "+@all"},
		"readonly":  {"%R~*", "&*", "+@all"},
		"markonly":  {"~acl-5:version", "&*", "+@all"},
	} {
		refused(t, addr, "acl-5", user(t, addr, name, rules...), `read and write the keys that begin with "acl-5:"`, "~acl-5:* ")
	}
	refused(t, addr, "acl-6", user(t, addr, "nochannels", "~*", "resetchannels", "+@all"),
		`publish on the channels that begin with "acl-6:"`, "&acl-6:* ")
	refused(t, addr, "acl-7", user(t, addr, "otherchannels", "~*", "resetchannels", "&acl:*", "+@all", "-get"),
		"run GET; ", `publish on the channels that begin with "acl-7:"`)

	// A permission that is taken away later.
	n := open(t, addr, nil, user(t, addr, "later", "~*", "&*", "+@all"))
	g := n.must(request("n"))
	user(t, addr, "later", "~*", "&*", "+@all", "-time", "-del", "-pexpire")
	_, err := n.Acquire(t.Context(), request("m"))
	for command, err := range map[string]error{"TIME": err, "DEL": g.Lease.Release(t.Context()), "PEXPIRE": n.renew(g.Lease)[0].Err} {
		wantPermanent(t, err)
		if !strings.Contains(err.Error(), "lacks the permission to run "+command) {
			t.Errorf("without %s: %v", command, err)
		}
	}
}

// What the error advises, and the documentation asks for, is enough, also where
// the prefix has characters that are special in patterns. No INFO costs a warning,
// and so does no SUBSCRIBE, with which waiters hear of releases.
func TestPermissionsAsAdvised(t *testing.T) {
	addr := testbed.Redis(t).Addr()
	for i, without := range []string{"", "subscribe"} {
		prefix := fmt.Sprintf(`acl[%d]*?\\`, i)
		name := fmt.Sprint("advised-", i)
		_, err := open(t, addr, &Options{Prefix: prefix}, user(t, addr, name)).Capabilities(t.Context())
		wantPermanent(t, err)
		_, advice, _ := strings.Cut(err.Error(), "ACL rules ")
		advice, _, _ = strings.Cut(advice, " (")
		rules := strings.Fields(advice)
		if without != "" {
			rules = append(rules, "-"+without)
		}
		var log logRecorder
		n := open(t, addr, &Options{Prefix: prefix, Logger: slog.New(&log)}, user(t, addr, name, rules...))
		if _, err := n.Capabilities(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.text(), "INFO") {
			t.Errorf("logged %q, want a warning about INFO", log.text())
		}
		g := n.must(request("n"))
		if c := n.renew(g.Lease)[0]; c.Err != nil {
			t.Error(c.Err)
		}
		if err := g.Lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := n.Abandon(t.Context(), request("n")); err != nil {
			t.Error(err)
		}
		if without == "" {
			_, stop := n.listen("n")
			stop()
			continue
		}
		if _, _, err := n.Hints(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "'subscribe'") {
			t.Errorf("Hints: %v, want the server's refusal", err)
		}
		eventually(t, "the refusal is logged", func() bool { return strings.Contains(log.text(), "waiters poll") })
	}
}

func TestCommandsNotThere(t *testing.T) {
	srv := testbed.Redis(t, testbed.RedisArgs("--rename-command", "PEXPIRE", "", "--rename-command", "DEL", "remove"))
	refused(t, srv.Addr(), "absent", noRetries, "does not have PEXPIRE, DEL, renamed or disabled")
}

func TestScriptsNotThere(t *testing.T) {
	srv := testbed.Redis(t, testbed.RedisArgs("--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""))
	probe(t, srv.Addr(), nil, "does not have EVAL, EVALSHA, renamed or disabled")
}

func TestPrefixOfAnotherVersion(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	n.set(n.layout.Version(), "redis 2")
	_, err := n.Capabilities(t.Context())
	wantPermanent(t, err)
	if !strings.Contains(err.Error(), `"redis 2"`) || !strings.Contains(err.Error(), n.layout.Version()) {
		t.Errorf("error %q names neither the other version nor the key", err)
	}
	if v := n.raw.Get(t.Context(), n.layout.Version()).Val(); v != "redis 2" {
		t.Errorf("the version key became %q", v)
	}
	n.raw.Del(t.Context(), n.layout.Version())
	n.raw.HSet(t.Context(), n.layout.Version(), "a", "b")
	_, err = n.Capabilities(t.Context())
	wantPermanent(t, err)
}

func TestEvictionIsWarnedOf(t *testing.T) {
	srv := testbed.Redis(t, testbed.RedisArgs("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
	var log logRecorder
	n := open(t, srv.Addr(), &Options{Logger: slog.New(&log)})
	if _, err := n.Capabilities(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.text(), "allkeys-lru") {
		t.Errorf("logged %q, want a warning about eviction", log.text())
	}
}

func TestClusterNodeNeedsAClusterClient(t *testing.T) {
	srv := testbed.Redis(t, testbed.RedisArgs("--cluster-enabled", "yes", "--cluster-port", "0"))
	probe(t, srv.Addr(), nil, "redis.ClusterClient")
}

func TestOldServer(t *testing.T) {
	f := newFake(t, func(args []string) string {
		if args[0] == "INFO" {
			return bulk("# Server\r\nredis_version:6.0.16\r\nrole:master\r\n")
		}
		return "+OK\r\n"
	})
	probe(t, f.addr(), nil, "6.0.16", "6.2 or newer")
}

// A slot that moves: the client follows some redirections, and what is beyond its
// budget is tried again later, since it says nothing about the lock.
func TestRedirections(t *testing.T) {
	var left atomic.Int64 // redirections to give
	var kind atomic.Value
	kind.Store("MOVED")
	var f *fake
	f = newFake(t, func(args []string) string {
		host, port, _ := net.SplitHostPort(f.addr())
		switch args[0] {
		case "CLUSTER":
			return fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n%s:%s\r\n", bulk(host), port)
		case "EVAL", "EVALSHA":
			if left.Add(-1) >= 0 {
				return fmt.Sprintf("-%s 1 %s\r\n", kind.Load(), f.addr())
			}
			if strings.Contains(args[3], ":lock:") && args[2] == "3" {
				return "*2\r\n" + bulk("granted") + bulk("7")
			}
			return ":1\r\n"
		case "COMMAND":
			return "*0\r\n"
		}
		return "+OK\r\n"
	})
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{f.addr()}, MaxRedirects: 3,
		MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 2 * time.Millisecond})
	defer c.Close()
	d, err := newDriver(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	for _, k := range []string{"MOVED", "ASK"} {
		kind.Store(k)
		left.Store(2)
		g, err := d.Acquire(t.Context(), request("n"))
		if err != nil {
			t.Fatalf("%s: acquire over two redirections: %v", k, err)
		}
		renew := func() error { return d.keeper.Renew(t.Context(), []driver.Kept{g.Lease})[0].Err }
		left.Store(2)
		if err := renew(); err != nil {
			t.Errorf("%s: renewal over two redirections: %v", k, err)
		}
		left.Store(1000)
		_, err = d.Acquire(t.Context(), request("n"))
		wantTransient(t, err)
		wantTransient(t, renew())
		wantTransient(t, g.Lease.Release(t.Context()))
		left.Store(0)
		if err := renew(); err != nil {
			t.Errorf("%s: renewal afterwards: %v", k, err)
		}
		if err := g.Lease.Release(t.Context()); err != nil {
			t.Errorf("%s: release afterwards: %v", k, err)
		}
	}
}

func TestReplicaAck(t *testing.T) {
	primary, replica := testbed.RedisPair(t, testbed.Own())
	ctx := t.Context()
	n := open(t, primary.Addr(), &Options{ReplicaAck: ReplicaAck{N: 1, Timeout: 4 * time.Second}})
	g := n.must(request("n"))
	if c := n.renew(g.Lease)[0]; c.Err != nil {
		t.Fatal(c.Err)
	}
	r := redis.NewClient(&redis.Options{Addr: replica.Addr()})
	defer r.Close()
	if v := r.Get(ctx, n.layout.Lock("n")).Val(); v == "" {
		t.Error("the acquire was confirmed, but the replica does not have it")
	}

	replica.Link().Cut()
	n.opt.ReplicaAck.Timeout = 50 * time.Millisecond
	var unacked *errUnacked
	c := n.renew(g.Lease)[0]
	if !errors.As(c.Err, &unacked) || !c.From.IsZero() {
		t.Errorf("renewal without a replica: %+v, want an errUnacked", c)
	}
	req := request("m")
	if _, err := n.Acquire(ctx, req); !errors.As(err, &unacked) {
		t.Errorf("acquire without a replica: %v, want an errUnacked", err)
	}
	// The same again, of which the server need not store anything.
	if _, err := n.Acquire(ctx, req); !errors.As(err, &unacked) {
		t.Errorf("repeated acquire without a replica: %v, want an errUnacked", err)
	}
	if err := n.Abandon(ctx, req); err != nil {
		t.Error(err)
	}
	if n.exists(n.layout.Lock("m")) {
		t.Error("the unconfirmed lock is still there")
	}
	l, err := New(n.c, &Options{Prefix: n.opt.Prefix, ReplicaAck: n.opt.ReplicaAck})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryLock(ctx, "m"); !errors.As(err, &unacked) || errors.Is(err, distlock.ErrHeld) {
		t.Errorf("TryLock without a replica: %v, want an errUnacked", err)
	}
	eventually(t, "the unconfirmed lock is gone", func() bool { return !n.exists(n.layout.Lock("m")) })
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := g.Lease.Release(ctx); err != nil {
		t.Errorf("release without a replica: %v", err)
	}
	two := open(t, primary.Addr(), &Options{ReplicaAck: ReplicaAck{N: 2, Timeout: 50 * time.Millisecond}})
	replica.Link().Heal()
	if _, err := two.Acquire(ctx, request("n")); !errors.As(err, &unacked) {
		t.Errorf("two replicas asked for, one there: %v, want an errUnacked", err)
	}
}
