package zkbackend

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"example.com/distlock/driver"
	"example.com/distlock/internal/faultproxy"
	"example.com/distlock/internal/testbed"
)

// testTTL is the shortest session timeout that the test servers grant: two ticks
// of 500 ms. Longer ones are used where nothing may expire.
const (
	testTTL = time.Second
	longTTL = 6 * time.Second
)

// newTestBackend makes a driver with a root of the test's own, closed at its end.
func newTestBackend(t testing.TB, root string, addrs ...string) *backend {
	t.Helper()
	return newTestBackendWith(t, &Options{Root: root}, addrs...)
}

func newTestBackendWith(t testing.TB, o *Options, addrs ...string) *backend {
	t.Helper()
	d, err := newBackend(addrs, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

// testRoot is a path that no other test uses.
func testRoot(t testing.TB) string { return "/" + testbed.Name(t) }

func owner() string { return rand.Text()[:22] }

func request(name string, ttl time.Duration) driver.Request {
	return driver.Request{Name: name, Owner: owner(), TTL: ttl}
}

// within is a context for what must not hang.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func soon(t testing.TB) context.Context { t.Helper(); return within(t, 10*time.Second) }

func mustAcquire(t testing.TB, d *backend, req driver.Request) driver.Grant {
	t.Helper()
	g, err := d.Acquire(soon(t), req)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

func mustRelease(t testing.TB, l driver.Lease) {
	t.Helper()
	if err := l.Release(soon(t)); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func mustBeHeld(t testing.TB, d *backend, req driver.Request) {
	t.Helper()
	_, err := d.Acquire(soon(t), req)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("Acquire of a taken lock: %v", err)
	}
	if held.Keeper == nil {
		t.Fatal("HeldError without the session's Keeper")
	}
}

func mustEnqueue(t testing.TB, d *backend, req driver.Request) driver.Ticket {
	t.Helper()
	tk, err := d.Enqueue(soon(t), req)
	if err != nil {
		t.Fatalf("Enqueue: %v", err)
	}
	return tk
}

func mustWait(t testing.TB, tk driver.Ticket) driver.Grant {
	t.Helper()
	g, err := tk.Wait(soon(t))
	if err != nil {
		t.Fatalf("Wait: %v", err)
	}
	return g
}

// waiting runs Wait in the background.
func waiting(t testing.TB, ctx context.Context, tk driver.Ticket) <-chan waited {
	t.Helper()
	ch := make(chan waited, 1)
	go func() {
		g, err := tk.Wait(ctx)
		ch <- waited{g, err}
	}()
	return ch
}

type waited struct {
	g   driver.Grant
	err error
}

// receive waits for a value that must come.
func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(60 * time.Second):
		t.Fatal("nothing came within 60 s")
		panic("unreachable")
	}
}

// beats does what the core does for a Keeper: Renew at Every, until the test ends.
func beats(t testing.TB, k driver.Keeper) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(k.Every()):
			}
			rctx, stop := context.WithTimeout(ctx, k.Every())
			k.Renew(rctx, nil)
			stop()
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// admin is a connection of the test's own.
func admin(t testing.TB, addrs ...string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect(addrs, 5*time.Second, zk.WithLogger(noLog{}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// entries lists what stands in a lock's directory.
func entries(t testing.TB, c *zk.Conn, d *backend, name string) []string {
	t.Helper()
	dir := d.layout.lock(name)
	if _, err := c.Sync(dir); err != nil {
		t.Fatal(err)
	}
	children, _, err := c.Children(dir)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	slices.Sort(children)
	return children
}

func mustBeEmpty(t testing.TB, c *zk.Conn, d *backend, name string) {
	t.Helper()
	if left := entries(t, c, d, name); len(left) > 0 {
		t.Fatalf("left in the queue of %q: %q", name, left)
	}
}

// expire ends a session at the server, as if its time had run out: another
// connection takes it over and closes it. The driver takes it back meanwhile, so
// that can need more than one try.
func expire(t testing.TB, s *session, addr string) {
	t.Helper()
	ctx := soon(t)
	for {
		l, _, err := dialLink(ctx, new(net.Dialer).DialContext, addr, hello{id: s.id, timeout: s.ttl, passwd: s.passwd}, 0, "/", func(zk.Event) {})
		switch {
		case l != nil:
			l.close(ctx)
		case err == nil:
			return // it has expired, says the server
		case ctx.Err() != nil:
			t.Fatalf("ending the session: %v", err)
		}
	}
}

// eventually waits for what has no event to wait for.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func single(t testing.TB) string { t.Helper(); return testbed.ZooKeeper(t, 1).Addrs()[0] }

// proxied puts a fault proxy before the server.
func proxied(t testing.TB) (*faultproxy.Proxy, string) {
	t.Helper()
	s := testbed.ZooKeeper(t, 1).Servers()[0]
	return s.Proxy(t), s.Addr()
}

// link returns the session's present connection.
func (s *session) testLink() *link {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.link
}

// testSession returns the driver's present session.
func (d *backend) testSession() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

// mentions reports whether err's text has all of parts.
func mentions(err error, parts ...string) bool {
	return err != nil && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(err.Error(), p) })
}

func canceled(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
