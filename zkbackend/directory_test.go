package zkbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"example.com/distlock"
	"example.com/distlock/driver"
)

const opCreateContainer = 19

// neverUsed lists the directories that have had no child, which the server never removes.
func neverUsed(t testing.TB, c *zk.Conn, l layout) (dirs []string) {
	t.Helper()
	if _, err := c.Sync(l.locks()); err != nil {
		t.Fatal(err)
	}
	children, _, err := c.Children(l.locks())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range children {
		there, st, err := c.Exists(l.locks() + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if there && st.Cversion == 0 {
			dirs = append(dirs, name)
		}
	}
	return dirs
}

// giveUpWithDir makes an attempt that ends when its directory is being made, and
// returns when that is there.
func giveUpWithDir(t testing.TB, d *backend, p *tap, c *zk.Conn, req driver.Request) {
	t.Helper()
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	p.once(opCreateContainer, func() error { cancel(); return nil })
	if _, err := d.Acquire(ctx, req); !errors.Is(err, context.Canceled) {
		t.Fatalf("Acquire: %v", err)
	}
	eventually(t, "the directory is there", func() bool {
		there, _, err := c.Exists(d.layout.lock(req.Name))
		return there && err == nil
	})
}

// Attempts that end between the directory and the node in it leave no directory.
func TestGivingUpLeavesNoDirectory(t *testing.T) {
	setUp := func(t *testing.T) (*backend, *tap, *zk.Conn) {
		p, addr := new(tap), single(t)
		d := newTestBackendWith(t, &Options{Root: testRoot(t), Dial: p.dial}, addr)
		mustAcquire(t, d, request("keep", longTTL))
		return d, p, admin(t, addr)
	}
	check := func(t *testing.T, d *backend, c *zk.Conn) {
		t.Helper()
		if left := neverUsed(t, c, d.layout); len(left) > 0 {
			t.Errorf("%d directories are left for ever, such as %q", len(left), left[0])
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.nodes) != 1 || len(d.current.nodes) != 1 {
			t.Errorf("remembered: %d attempts, %d nodes", len(d.nodes), len(d.current.nodes))
		}
	}

	t.Run("abandoned", func(t *testing.T) {
		d, p, c := setUp(t)
		for i := range 100 {
			req := request(fmt.Sprint("order-", i), longTTL)
			giveUpWithDir(t, d, p, c, req)
			if err := d.Abandon(soon(t), req); err != nil {
				t.Fatal(err)
			}
		}
		check(t, d, c)
	})
	t.Run("the answer to the making is lost", func(t *testing.T) {
		px, addr := proxied(t)
		p, c := new(tap), admin(t, addr)
		d := newTestBackendWith(t, &Options{Root: testRoot(t), Dial: p.dial}, px.Addr())
		mustAcquire(t, d, request("keep", longTTL))
		s := d.testSession()
		req := request("order", longTTL)
		p.once(opCreateContainer, func() error { px.FailReplies(1); return nil })
		if _, err := d.Acquire(soon(t), req); !errors.Is(err, errLinkLost) {
			t.Fatalf("Acquire: %v", err)
		}
		if left := neverUsed(t, c, d.layout); len(left) != 1 {
			t.Fatalf("directories %q: the fault hit something else", left)
		}
		if err := d.Abandon(soon(t), req); err != nil {
			t.Fatal(err)
		}
		if d.testSession() != s {
			t.Error("the session was replaced")
		}
		check(t, d, c)
	})
	t.Run("the connection ends with the removal", func(t *testing.T) {
		d, p, c := setUp(t)
		req := request("order", longTTL)
		giveUpWithDir(t, d, p, c, req)
		p.once(opDelete, func() error { return errCut })
		if err := d.Abandon(soon(t), req); !errors.Is(err, errLinkLost) {
			t.Fatalf("Abandon: %v", err)
		}
		// Nobody asks again: the session does it by itself.
		eventually(t, "the directory is gone", func() bool { return len(neverUsed(t, c, d.layout)) == 0 })
		if err := d.Abandon(soon(t), req); err != nil {
			t.Fatal(err)
		}
		check(t, d, c)
	})
	t.Run("at any moment", func(t *testing.T) {
		root, addr := testRoot(t), single(t)
		c, err := New([]string{addr}, &Options{Root: root}, distlock.WithTTL(longTTL))
		if err != nil {
			t.Fatal(err)
		}
		keep, err := c.Lock(soon(t), "keep")
		if err != nil {
			t.Fatal(err)
		}
		gaveUp := 0
		for i := range 400 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(2500))*time.Microsecond)
			l, err := c.Lock(ctx, fmt.Sprint("order-", i))
			cancel()
			if err != nil {
				gaveUp++
			} else if err := l.Unlock(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
		if err := keep.Unlock(soon(t)); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil { // it waits for what is being undone
			t.Fatal(err)
		}
		if left := neverUsed(t, admin(t, addr), layout{root}); len(left) > 0 {
			t.Errorf("of %d that gave up %d left their directories for ever", gaveUp, len(left))
		}
	})
}

// B42: who removes a directory that it made takes it from under no rival.
func TestDirectoryIsRemovedUnderARival(t *testing.T) {
	addr, root := single(t), testRoot(t)
	pa, pb := new(tap), new(tap)
	a := newTestBackendWith(t, &Options{Root: root, Dial: pa.dial}, addr)
	b := newTestBackendWith(t, &Options{Root: root, Dial: pb.dial}, addr)
	c := admin(t, addr)
	mustAcquire(t, a, request("keep", longTTL))
	mustAcquire(t, b, request("keep too", longTTL))

	t.Run("before its node is made", func(t *testing.T) {
		req := request("a", longTTL)
		giveUpWithDir(t, a, pa, c, req)
		creates := pb.count(opCreate)
		pb.once(opCreate, func() error { return a.Abandon(soon(t), req) })
		g := mustAcquire(t, b, request("a", longTTL))
		if n := pb.count(opCreate) - creates; n != 2 {
			t.Errorf("%d creates: the removal came at another moment", n)
		}
		mustBeHeld(t, a, request("a", longTTL))
		mustRelease(t, g.Lease)
	})
	t.Run("when its node is there", func(t *testing.T) {
		req := request("b", longTTL)
		giveUpWithDir(t, a, pa, c, req)
		g := mustAcquire(t, b, request("b", longTTL))
		if err := a.Abandon(soon(t), req); err != nil {
			t.Fatal(err)
		}
		if n := entries(t, c, b, "b"); len(n) != 1 {
			t.Fatalf("entries %q", n)
		}
		mustBeHeld(t, a, request("b", longTTL))
		mustRelease(t, g.Lease)
	})
	t.Run("at any moment", func(t *testing.T) {
		pa.on(nil)
		pb.on(nil)
		for i := range 200 {
			name := fmt.Sprint("c", i)
			var wg sync.WaitGroup
			wg.Go(func() {
				req := request(name, longTTL)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(2000))*time.Microsecond)
				defer cancel()
				_, _ = a.Acquire(ctx, req)
				if err := a.Abandon(soon(t), req); err != nil {
					t.Error(err)
				}
			})
			tk := mustEnqueue(t, b, request(name, longTTL))
			mustRelease(t, mustWait(t, tk).Lease)
			wg.Wait()
		}
		if left := neverUsed(t, c, a.layout); len(left) > 0 {
			t.Errorf("left for ever: %q", left)
		}
	})
}

// What was never sent is given up without a request, and without a server.
func TestAbandonOfWhatWasNeverSent(t *testing.T) {
	s := newTestBackendWith(t, &Options{Root: testRoot(t), Dial: new(tap).dial}, "127.0.0.1:1")
	unreached := request("a", longTTL)
	if _, err := s.Acquire(within(t, 50*time.Millisecond), unreached); err == nil {
		t.Fatal("acquired without a server")
	}
	if err := s.Abandon(canceled(t), unreached); err != nil {
		t.Errorf("Abandon of what had no session: %v", err)
	}
	if len(s.nodes) != 0 {
		t.Error("the attempt is remembered")
	}

	px, _ := proxied(t)
	p := new(tap)
	d := newTestBackendWith(t, &Options{Root: testRoot(t), Dial: p.dial}, px.Addr())
	mustAcquire(t, d, request("keep", longTTL))
	sent := func() (n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for op, k := range p.sent {
			if op > 0 && op < opAuth { // not pings
				n += k
			}
		}
		return n
	}
	before := sent()
	if err := d.Abandon(canceled(t), request("never heard of", longTTL)); err != nil {
		t.Error(err)
	}
	onSession := request("b", longTTL)
	n, err := d.enroll(soon(t), onSession)
	if err == nil {
		err = n.attach(d.testSession())
	}
	if err != nil {
		t.Fatal(err)
	}
	px.Refuse()
	px.Reset()
	eventually(t, "the connection is gone", func() bool { return d.testSession().testLink() == nil })
	if err := d.Abandon(canceled(t), onSession); err != nil {
		t.Errorf("Abandon of what was on the session only: %v", err)
	}
	px.Heal()
	if n := sent() - before; n > 0 {
		t.Errorf("%d requests", n)
	}
}
