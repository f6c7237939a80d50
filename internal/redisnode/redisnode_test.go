package redisnode

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
	"example.com/distlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func TestValueRoundTrip(t *testing.T) {
	v := Value{"AAAAAAAAAAAAAAAAAAAAAA", 178123456789012, time.UnixMilli(1781234567890), 30 * time.Second, "host 7, x\n\x00 ü"}
	got, err := ParseValue(v.String())
	if err != nil || got != v {
		t.Errorf("ParseValue(%q) = %+v, %v; want %+v", v.String(), got, err, v)
	}
	for _, s := range []string{"", "dl1", "x y z", "dl1  1 2 3 ", "dl1 o x 2 3 m", "dl1 o -1 2 3 m", "dl1 o 1 x 3 m", "dl2 o 1 2 3 m", "dl1 o 1 2 3"} {
		if v, err := ParseValue(s); err == nil {
			t.Errorf("ParseValue(%q) = %+v, want an error", s, v)
		}
	}
}

func TestBucketsAreUsedEvenly(t *testing.T) {
	var n [Buckets]int
	for i := range 100 * Buckets {
		n[Bucket(fmt.Sprint("order/", i))]++
	}
	for b, n := range n {
		if n < 40 || n > 200 {
			t.Errorf("bucket %d has %d of %d names, want about 100", b, n, 100*Buckets)
		}
	}
}

func TestPermanent(t *testing.T) {
	for text, want := range map[string]bool{
		"NOAUTH Authentication required.":                       true,
		"WRONGPASS invalid username-password pair":              true,
		"NOPERM this user has no permissions to run 'eval'":     true,
		"ERR unknown command 'EVALSHA', with args beginning":    true,
		"CROSSSLOT Keys in request don't hash to the same slot": true,
		// A script's command, as Redis 7 and as 6.2 say it.
		"ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:1.":                       true,
		"ERR Error running script (call to f_1): @user_script:1: The user executing the script can't run this command or subcommand": true,
		"ERR ACL failure in script: User u has no permissions to run the 'del' command script: 1, on @user_script:1.":                true, // 7.2
		"READONLY You can't write against a read only replica.":                                                                      false,
		"LOADING Redis is loading the dataset in memory":                                                                             false,
		"MASTERDOWN Link with MASTER is down":                                                                                        false,
		"CLUSTERDOWN The cluster is down":                                                                                            false,
		"TRYAGAIN Multiple keys request during rehashing of slot":                                                                    false,
		"MOVED 1 127.0.0.1:1":                                     false,
		"ASK 1 127.0.0.1:1":                                       false,
		"BUSY Redis is busy running a script.":                    false,
		"OOM command not allowed when used memory > 'maxmemory'.": false,
		"MISCONF Redis is configured to save RDB snapshots":       false,
		"NOREPLICAS Not enough good replicas to write.":           false,
		"NOSCRIPT No matching script. Please use EVAL.":           false,
		"ERR max number of clients reached":                       false,
		"dial tcp 127.0.0.1:1: connect: connection refused":       false,
		"ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only replica.": false,
	} {
		for _, err := range []error{errors.New(text), fmt.Errorf("a hook says: %w", errors.New(text))} {
			if got := Permanent(err); got != want {
				t.Errorf("Permanent(%q) = %t", err, got)
			}
			var p *driver.PermanentError
			if got := Classify(err); errors.As(got, &p) != want || !errors.Is(got, err) {
				t.Errorf("Classify(%q) = %#v", err, got)
			}
		}
	}
	if !Permanent(&tls.CertificateVerificationError{Err: errors.New("x")}) || !Permanent(redis.ErrClosed) {
		t.Error("a bad certificate or a closed client is not permanent")
	}
	if Permanent(nil) || Classify(nil) != nil || Permanent(context.DeadlineExceeded) {
		t.Error("nil or a deadline is permanent")
	}
	once := Classify(redis.ErrClosed)
	if Classify(once) != once {
		t.Error("a PermanentError was wrapped again")
	}
}

// The texts of Redis 6.2, 7.0 and 7.2 about a command, a key, a channel and a
// command that is not there. In the tests of redisbackend a server says its own.
func TestDenials(t *testing.T) {
	s := NewScript("-- a comment\nlocal x = redis.call('DEL', KEYS[1])\nreturn x")
	for text, want := range map[string]int{
		"The user executing the script can't run this command or subcommand":                                     aboutCommand,
		"ACL failure in script: User my keys has no permissions to run the 'del' command":                        aboutCommand,
		"The user executing the script can't access at least one of the keys mentioned in the command arguments": aboutKeys,
		"ACL failure in script: User u has no permissions to access the 'a channel' key":                         aboutKeys,
		"ACL failure in script: No permissions to access a key":                                                  aboutKeys,
		"Unknown Redis command called from Lua script":                                                           aboutAbsence,
		"Unknown Redis command called from script":                                                               aboutAbsence,
		"This Redis command is not allowed from scripts":                                                         aboutAbsence,
		"This Redis command is not allowed from script":                                                          aboutAbsence,
	} {
		said := map[int]string{aboutCommand: "permission to run DEL (", aboutKeys: `permission to read and write one of the keys ["k"] (`, aboutAbsence: "does not have DEL, "}[want]
		for _, text := range []string{
			"ERR " + text + " script: 9a0364b9e99bb480dd25e1f0284c8555, on @user_script:2.",
			"NOPERM " + text + " script: 9a0364b9e99bb480dd25e1f0284c8555, on @user_script:2.",
			"ERR Error running script (call to f_9a0364b9e99bb480dd25): @user_script:2: @user_script: 2: " + text,
		} {
			if got := (denial{"DEL", text}).about(); got != want {
				t.Errorf("%q is about %d, want %d", text, got, want)
			}
			err := s.explain([]string{"k"}, errors.New(text))
			if _, ok := errors.AsType[*driver.PermanentError](err); !ok || !strings.Contains(err.Error(), said) {
				t.Errorf("%q was explained as %v, want %q", text, err, said)
			}
		}
	}
	for _, text := range []string{
		"The user executing the script can't publish to the channel mentioned in the command",
		"ACL failure in script: User u has no permissions to access the 'a key' channel",
	} {
		if got := (denial{"SPUBLISH", text}).about(); !forbidden(text) || got != aboutChannel {
			t.Errorf("%q is about %d, want a channel", text, got)
		}
	}
	for _, text := range []string{"@user_script:0: NOPERM", "@user_script:1: NOPERM can't run", "@user_script:77: NOPERM can't run",
		"@user_script:99999999999999999999: NOPERM can't run", "NOPERM this user has no permissions to run"} {
		if err := s.explain(nil, errors.New(text)); !Permanent(err) || !strings.HasPrefix(err.Error(), "the user lacks the permission to ") {
			t.Errorf("%q was explained as %v", text, err)
		}
	}
	for _, err := range []error{nil, errors.New("OOM @user_script:2"), redis.ErrClosed} {
		if got := s.explain(nil, err); got != err {
			t.Errorf("%v was explained as %v", err, got)
		}
	}
}

// What prevents writes only for now is no lack of a permission.
func TestProbeOfAServerThatTakesNoWrites(t *testing.T) {
	srv := testbed.Redis(t, testbed.Own())
	c := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer c.Close()
	l := Layout{Prefix: "p"}
	for setting, text := range map[string]string{"maxmemory": "OOM", "min-replicas-to-write": "NOREPLICAS"} {
		if err := c.ConfigSet(t.Context(), setting, "1").Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := Probe(t.Context(), c, l, "test 1"); err == nil || Permanent(err) || !strings.HasPrefix(err.Error(), text) {
			t.Errorf("with %s: %v", setting, err)
		}
		if err := c.ConfigSet(t.Context(), setting, "0").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	err := c.Do(t.Context(), "ACL", "SETUSER", "noinfo", "on", "nopass", "~*", "&*", "+@all", "-info").Err()
	if err != nil {
		t.Fatal(err)
	}
	u := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "noinfo", Password: "x"})
	defer u.Close()
	if _, err := Probe(t.Context(), u, l, "test 1"); err == nil || !strings.Contains(err.Error(), "the server is read-only") {
		t.Errorf("a replica that does not say so: %v", err)
	}
	if n := c.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		info    string
		cluster bool
		want    string // part of the error, or of a warning after "warn:"
	}{
		{"redis_version:6.2.0\r\nrole:master\r\n", false, ""},
		{"redis_version:255.255.255\r\nrole:master\r\n", false, ""},
		{"redis_version:7.4.1\r\nrole:master\r\ncluster_enabled:1\r\n", true, ""},
		{"redis_version:7.4.1\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n", false, ""},
		{"redis_version:7.4.1\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n", false, ""},
		{"redis_version:6.0.20\r\nrole:master\r\n", false, "6.0.20: 6.2 or newer"},
		{"redis_version:5.9\r\n", false, "6.2 or newer"},
		{"redis_version:7.0.0\r\nrole:slave\r\nmaster_host:h\r\nmaster_port:1\r\n", false, "replica of h:1"},
		{"redis_version:6.2.7\r\ncluster_enabled:1\r\n", true, "7.0 or newer"},
		{"redis_version:7.0.7\r\ncluster_enabled:1\r\n", false, "pass a redis.ClusterClient"},
		{"redis_version:7.0.7\r\ncluster_enabled:0\r\n", true, "pass a redis.Client"},
		{"role:master\r\n", false, "warn:version"},
		{"redis_version:x.y\r\n", false, "warn:version"},
		{"redis_version:7.0.0\r\nmaxmemory:1\r\nmaxmemory_policy:volatile-ttl\r\n", false, "warn:volatile-ttl"},
	} {
		r, err := judge(parseInfo("# Server\r\n"+test.info), test.cluster)
		warning, isWarning := strings.CutPrefix(test.want, "warn:")
		var p *driver.PermanentError
		switch {
		case isWarning && (err != nil || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], warning)),
			test.want == "" && (err != nil || len(r.Warnings) > 0),
			!isWarning && test.want != "" && (!errors.As(err, &p) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%q: warnings %q, error %v; want %q", test.info, r.Warnings, err, test.want)
		}
	}
}

func client(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: testbed.Redis(t).Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo is a script that no server knows yet.
func echo(t *testing.T) *Script {
	return NewScript("-- " + testbed.Name(t) + "\nreturn {KEYS[1], ARGV[1], ARGV[2]}")
}

func TestRun(t *testing.T) {
	c, s := client(t), echo(t)
	for range 2 { // unknown, then known
		sends := &Sends{}
		v, err := s.Run(t.Context(), c, []string{"k"}, "a", sends)
		if err != nil || fmt.Sprint(v) != "[k a 0]" {
			t.Errorf("Run = %v, %v", v, err)
		}
		if sends.Count != 1 || sends.Doubt() || sends.Last.IsZero() {
			t.Errorf("sends are %+v, want one without doubt", sends)
		}
	}
}

func TestRunAll(t *testing.T) {
	c := client(t)
	known, unknown := echo(t), NewScript("-- "+testbed.Name(t)+"\nreturn ARGV[1]")
	if _, err := known.Run(t.Context(), c, []string{"k"}, "a", "b"); err != nil {
		t.Fatal(err)
	}
	failing := NewScript("return redis.error_reply('NOPE no')")
	pings := 0
	replies := RunAll(t.Context(), c, []Call{
		{known, []string{"k1"}, []any{"a", &Sends{}}},
		{unknown, nil, []any{"x"}},
		{failing, nil, nil},
		{known, []string{"k2"}, []any{"c", &Sends{Before: true}}},
		{unknown, nil, []any{"y"}},
	}, func(p redis.Pipeliner) { pings++; p.Ping(t.Context()) })
	if got := fmt.Sprintf("%v %v %v %v", replies[0].Value, replies[1].Value, replies[3].Value, replies[4].Value); got != "[k1 a 0] x [k2 c 1] y" {
		t.Errorf("replies are %v", replies)
	}
	for i, r := range replies {
		if i == 2 && (r.Err == nil || !strings.HasPrefix(r.Err.Error(), "NOPE")) || i != 2 && r.Err != nil {
			t.Errorf("reply %d: error %v", i, r.Err)
		}
	}
	if pings != 2 {
		t.Errorf("what follows the pipeline was appended %d times, want once for each of 2", pings)
	}
}

func TestSendsCountsCopies(t *testing.T) {
	proxy := testbed.Redis(t).Proxy(t)
	c := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer c.Close()
	s := echo(t)
	if _, err := s.Run(t.Context(), c, []string{"k"}, "a", "b"); err != nil {
		t.Fatal(err)
	}
	proxy.FailReplies(1)
	start := time.Now()
	sends := &Sends{}
	v, err := s.Run(t.Context(), c, []string{"k"}, "a", sends)
	if err != nil || fmt.Sprint(v) != "[k a 1]" {
		t.Errorf("Run = %v, %v; want the argument of a later copy", v, err)
	}
	if sends.Count != 2 || !sends.Doubt() || !sends.Last.After(start) {
		t.Errorf("sends are %+v, want two", sends)
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	var calls Calls
	if err := calls.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	release := make(chan struct{})
	running := make(chan struct{})
	got := make(chan error)
	go func() { got <- calls.Go(ctx, func(context.Context) { close(running); <-release }) }()
	<-running
	cancel(cause)
	if err := <-got; err != cause {
		t.Errorf("a call that ignores its context: %v, want the cause of its end", err)
	}
	if err := calls.Go(ctx, func(context.Context) { t.Error("run although its context had ended") }); err != cause {
		t.Errorf("a call after the end: %v", err)
	}
	if err := calls.Wait(ctx); err != cause {
		t.Errorf("Wait while a call runs: %v", err)
	}
	ran := false
	if err := calls.Go(t.Context(), func(context.Context) { ran = true }); err != nil || !ran {
		t.Errorf("a call that ends: %v, ran: %t", err, ran)
	}
	close(release)
	if err := calls.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}
