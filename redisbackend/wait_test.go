package redisbackend

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/internal/testbed"
)

// logRecorder is a slog.Handler that remembers messages.
type logRecorder struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *logRecorder) Enabled(context.Context, slog.Level) bool { return true }
func (l *logRecorder) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logRecorder) WithGroup(string) slog.Handler            { return l }
func (l *logRecorder) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.WriteString(r.Message + "\n")
	return nil
}

func (l *logRecorder) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

const patience = 30 * time.Second

func (n *node) listen(name string) (hint <-chan struct{}, stop func()) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	hint, stop, err := n.Hints(ctx, name)
	if err != nil {
		n.t.Fatalf("Hints(%q): %v", name, err)
	}
	return hint, stop
}

func wantHint(t testing.TB, hint <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-hint:
	case <-time.After(patience):
		t.Fatalf("no hint %s", what)
	}
}

// fresh takes the hint that a new subscription gives away.
func fresh(hint <-chan struct{}) {
	select {
	case <-hint:
	default:
	}
}

func TestHintAtRelease(t *testing.T) {
	addr := testbed.Redis(t).Addr()
	holder := open(t, addr, nil)
	waiter := open(t, addr, &Options{Prefix: holder.opt.Prefix})
	other := sameBucket("n")
	g, g2 := holder.must(request("n")), holder.must(request(other))
	hint, stop := waiter.listen("n")
	defer stop()
	otherHint, stopOther := waiter.listen(other)
	defer stopOther()
	fresh(hint)
	fresh(otherHint)

	if err := g.Lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHint(t, hint, "at the release")
	if len(otherHint) != 0 {
		t.Error("a name of the same bucket was woken, too")
	}
	if err := g2.Lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHint(t, otherHint, "for the other name")
	if len(hint) != 0 {
		t.Error("the first name was woken by the second")
	}

	// An attempt that is given up frees the lock as well.
	req := request("n")
	holder.must(req)
	if err := holder.Abandon(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	wantHint(t, hint, "at the end of an abandoned attempt")
}

// subscribers is how many connections of the server subscribe to name's channel.
func (n *node) subscribers(name string) int64 {
	n.t.Helper()
	ch := n.layout.Hints(name)
	m, err := n.raw.PubSubNumSub(n.t.Context(), ch).Result()
	if err != nil {
		n.t.Fatal(err)
	}
	return m[ch]
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s", patience, what)
		}
	}
}

func TestOneConnectionForAllWaiters(t *testing.T) {
	proxy := testbed.Redis(t).Proxy(t)
	n := open(t, proxy.Addr(), nil)
	n.must(request("warm up"))
	n.subscribers("a") // n.raw has its connection, too
	before := proxy.Stats().Open
	var stops []func()
	for _, name := range []string{"a", "b", "c", "a", sameBucket("a")} {
		_, stop := n.listen(name)
		stops = append(stops, stop)
	}
	if open := proxy.Stats().Open - before; open != 1 {
		t.Errorf("%d more connections for five waiters, want 1", open)
	}
	for _, stop := range stops {
		stop()
		stop() // harmless
	}
	n.hints.mu.Lock()
	for _, ch := range n.hints.channels {
		if ch.timer == nil || len(ch.waiters) > 0 {
			t.Errorf("channel %s: waiters %v, timer %v", ch.name, ch.waiters, ch.timer)
		}
		ch.timer.Reset(0) // not to wait for linger
	}
	n.hints.mu.Unlock()
	eventually(t, "the channels and the connection are closed", func() bool {
		return n.subscribers("a") == 0 && proxy.Stats().Open == before
	})
	hint, stop := n.listen("a") // and opened again
	defer stop()
	fresh(hint)
	g := n.must(request("a"))
	if err := g.Lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHint(t, hint, "after a new subscription")
}

// A channel that is wanted again while it is being unsubscribed stays subscribed.
func TestUnsubscribeRace(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	_, keep := n.listen("keeps the connection")
	defer keep()
	for range 100 {
		_, stop := n.listen("n")
		stop()
		n.hints.mu.Lock()
		n.hints.channels[n.layout.Hints("n")].timer.Reset(0)
		n.hints.mu.Unlock()
		hint, stop := n.listen("n")
		fresh(hint)
		g := n.must(request("n"))
		if err := g.Lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantHint(t, hint, "after a race of unsubscribe and subscribe")
		stop()
	}
}

// The same, made sure of: the end of a subscription that is wanted begins another.
func TestUnsubscribedWhileWanted(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	hint, stop := n.listen("n")
	defer stop()
	fresh(hint)
	name := n.layout.Hints("n")
	n.hints.mu.Lock()
	ps := n.hints.channels[name].conn.ps
	n.hints.mu.Unlock()
	if err := ps.Unsubscribe(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	wantHint(t, hint, "when the channel was subscribed again")
	g := n.must(request("n"))
	if err := g.Lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHint(t, hint, "at the release")
}

// What was released while nobody listened was not heard, so whoever waits is told
// to look.
func TestHintsAfterALostConnection(t *testing.T) {
	srv := testbed.Redis(t)
	proxy := srv.Proxy(t)
	n := open(t, proxy.Addr(), nil)
	hint, stop := n.listen("n")
	defer stop()
	hint2, stop2 := n.listen("m")
	defer stop2()
	fresh(hint)
	fresh(hint2)
	proxy.Reset()
	wantHint(t, hint, "after a reset")
	wantHint(t, hint2, "after a reset")
	eventually(t, "both channels are subscribed again", func() bool {
		return n.subscribers("n") == 1 && n.subscribers("m") == 1
	})

	// During an outage waiters look from time to time.
	proxy.Refuse()
	proxy.Reset()
	for range 4 {
		wantHint(t, hint, "during an outage")
	}
	proxy.Heal()
	eventually(t, "the channel is subscribed again", func() bool { return n.subscribers("n") == 1 })
	n.hints.mu.Lock()
	cn := n.hints.channels[n.layout.Hints("n")].conn
	n.hints.mu.Unlock()
	fresh(hint)
	n.hints.confirmed(cn, n.layout.Hints("n")) // as at each new subscription
	wantHint(t, hint, "at a new subscription")
	holder := open(t, srv.Addr(), &Options{Prefix: n.opt.Prefix})
	g := holder.must(request("n"))
	if err := g.Lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHint(t, hint, "after the outage")
}

// A connection on which nothing comes any more and nothing fails either.
func TestHintsOverASilentConnection(t *testing.T) {
	proxy := testbed.Redis(t).Proxy(t)
	n := open(t, proxy.Addr(), nil, hasty)
	n.hints.idle = 50 * time.Millisecond
	hint, stop := n.listen("n")
	defer stop()
	fresh(hint)
	proxy.SwallowReplies(1) // the answer to the next ping, and all that follows it
	wantHint(t, hint, "after a connection went silent")
}

func TestHintsRefused(t *testing.T) {
	srv := testbed.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer admin.Close()
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "mute", "reset", "on", ">pw", "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	defer admin.Do(context.Background(), "ACL", "DELUSER", "mute")
	var log logRecorder
	proxy := srv.Proxy(t)
	n := open(t, proxy.Addr(), &Options{Logger: slog.New(&log)}, func(o *redis.Options) { o.Username, o.Password = "mute", "pw" })
	conns := 0
	for i := range 3 {
		if i == 1 {
			eventually(t, "the refused connection is given up", func() bool { return proxy.Stats().Open == 0 })
			conns = proxy.Stats().Conns
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, _, err := n.Hints(ctx, "n")
		cancel()
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "NOPERM") {
			t.Fatalf("Hints: %v, want the server's refusal", err)
		}
	}
	if got := proxy.Stats().Conns; got != conns {
		t.Errorf("%d connections after %d, want no new one for what was refused before", got, conns)
	}
	eventually(t, "the refusal is logged", func() bool { return log.text() != "" })
	if got := strings.Count(log.text(), "refused"); got != 1 {
		t.Errorf("logged %d times: %q", got, log.text())
	}
	// A refused publication does not keep a lock from being released.
	g := n.must(request("n"))
	if err := g.Lease.Release(t.Context()); err != nil || n.exists(n.layout.Lock("n")) {
		t.Errorf("release: %v", err)
	}
}

func TestHintsAfterClose(t *testing.T) {
	n := open(t, testbed.Redis(t).Addr(), nil)
	_, stop := n.listen("n")
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, _, err := n.Hints(t.Context(), "n"); err == nil {
		t.Error("Hints after Close succeeded")
	}
	if got := n.subscribers("n"); got != 0 {
		t.Errorf("%d subscriptions are left", got)
	}
}
