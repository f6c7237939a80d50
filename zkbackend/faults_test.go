package zkbackend

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/internal/testbed"
)

// A tap sees what a driver sends, before it is sent.
type tap struct {
	mu     sync.Mutex
	before func(op int32, packet []byte) error // an error breaks the connection instead of sending
	hello  func(response []byte)               // may change the connect response
	sent   map[int32]int                       // packets by operation
}

const (
	opCreate       = 1
	opDelete       = 2
	opGetData      = 4
	opGetChildren2 = 12
	opAuth         = 100
)

func (p *tap) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &tapped{Conn: c, tap: p}, nil
}

// count is how many packets of an operation were sent.
func (p *tap) count(op int32) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent[op]
}

// on sets what happens before a packet is sent.
func (p *tap) on(f func(op int32, packet []byte) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = f
}

// once is on for the next packet of one operation only.
func (p *tap) once(op int32, f func() error) {
	var done atomic.Bool
	p.on(func(o int32, _ []byte) error {
		if o == op && done.CompareAndSwap(false, true) {
			return f()
		}
		return nil
	})
}

type tapped struct {
	net.Conn
	tap      *tap
	greeted  bool // the connect request was sent
	answered bool // and its response read
}

func (c *tapped) Write(p []byte) (int, error) {
	if !c.greeted {
		c.greeted = true
		return c.Conn.Write(p)
	}
	op := int32(binary.BigEndian.Uint32(p[8:]))
	c.tap.mu.Lock()
	before := c.tap.before
	if c.tap.sent == nil {
		c.tap.sent = make(map[int32]int)
	}
	c.tap.sent[op]++
	c.tap.mu.Unlock()
	if before != nil {
		if err := before(op, p); err != nil {
			c.Close()
			return 0, err
		}
	}
	return c.Conn.Write(p)
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.answered && n > 16 {
		c.answered = true
		c.tap.mu.Lock()
		hello := c.tap.hello
		c.tap.mu.Unlock()
		if hello != nil {
			hello(p[:n])
		}
	}
	return n, err
}

var errCut = errors.New("cut by the test")

// B33: the create was applied, its answer got lost, the session lives on.
func TestCreateReplyLost(t *testing.T) {
	for _, after := range []string{"the same attempt again", "giving up"} {
		t.Run(after, func(t *testing.T) {
			p, addr := proxied(t)
			d := newTestBackend(t, testRoot(t), p.Addr())
			c := admin(t, addr)
			mustRelease(t, mustAcquire(t, d, request("a", longTTL)).Lease) // the directory is there
			s := d.testSession()

			req := request("a", longTTL)
			p.FailReplies(1)
			if _, err := d.Acquire(soon(t), req); err == nil {
				t.Fatal("no error, though the answer was lost")
			}
			if n := len(entries(t, c, d, "a")); n != 1 {
				t.Fatalf("%d entries: the fault hit something else", n)
			}
			if after == "giving up" {
				if err := d.Abandon(soon(t), req); err != nil {
					t.Fatal(err)
				}
			} else {
				g := mustAcquire(t, d, req)
				if g.From.IsZero() {
					t.Error("granted without a proof")
				}
				if d.testSession() != s {
					t.Error("the session was replaced")
				}
				if n := len(entries(t, c, d, "a")); n != 1 {
					t.Errorf("%d entries", n)
				}
				mustRelease(t, g.Lease)
			}
			mustBeEmpty(t, c, d, "a")
			mustRelease(t, mustAcquire(t, d, request("a", longTTL)).Lease)
		})
	}
}

// A request whose caller has given up does no harm when it arrives late.
func TestCreateArrivesAfterTheCallerLeft(t *testing.T) {
	p, addr := proxied(t)
	d := newTestBackend(t, testRoot(t), p.Addr())
	c := admin(t, addr)
	mustRelease(t, mustAcquire(t, d, request("a", longTTL)).Lease)

	p.CutRequests()
	req := request("a", longTTL)
	if _, err := d.Acquire(within(t, 50*time.Millisecond), req); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Acquire: %v", err)
	}
	if err := d.Abandon(within(t, 50*time.Millisecond), req); err == nil {
		t.Fatal("Abandon succeeded while the create was under way")
	}
	p.Heal()
	if err := d.Abandon(soon(t), req); err != nil {
		t.Fatal(err)
	}
	mustBeEmpty(t, c, d, "a")
	if _, err := d.Acquire(soon(t), request("a", longTTL)); err != nil {
		t.Fatal(err)
	}
}

// B34: a node of the same attempt, but of another session, is not adopted.
func TestNodeOfAnotherSessionIsNotAdopted(t *testing.T) {
	p, addr := proxied(t)
	d := newTestBackend(t, testRoot(t), p.Addr())
	c := admin(t, addr)
	mustRelease(t, mustAcquire(t, d, request("a", longTTL)).Lease)

	req := request("a", longTTL)
	p.FailReplies(1)
	if _, err := d.Acquire(soon(t), req); err == nil {
		t.Fatal("no error, though the answer was lost")
	}
	p.Refuse()
	dir := d.layout.lock("a")
	if err := c.Delete(dir+"/"+entries(t, c, d, "a")[0], -1); err != nil {
		t.Fatal(err)
	}
	path, err := c.Create(dir+"/"+entryPrefix(req.Owner), nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
	if err != nil {
		t.Fatal(err)
	}
	_, st, err := c.Exists(path)
	if err != nil {
		t.Fatal(err)
	}
	p.Heal()
	g := mustAcquire(t, d, req)
	if g.Number <= uint64(st.Czxid) {
		t.Errorf("number %#x, the other session's node has %#x", g.Number, st.Czxid)
	}
	if n := entries(t, c, d, "a"); len(n) != 1 || dir+"/"+n[0] == path {
		t.Errorf("entries %q", n)
	}
}

// B35, B61: waits that end and tries that fail leave nothing.
func TestNothingIsLeftByThoseWhoDidNotGetIt(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	a, b := newTestBackend(t, root, addr), newTestBackend(t, root, addr)
	c := admin(t, addr)
	g := mustAcquire(t, a, request("a", longTTL))
	for range 50 {
		mustBeHeld(t, b, request("a", longTTL))
		tk := mustEnqueue(t, b, request("a", longTTL))
		if _, err := tk.Wait(within(t, 2*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if err := tk.Leave(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	if n := entries(t, c, a, "a"); len(n) != 1 {
		t.Errorf("entries %q", n)
	}
	b.mu.Lock()
	s := b.current
	if len(b.nodes) != 0 || len(s.nodes) != 0 || len(s.watches) > 1 {
		t.Errorf("remembered: %d attempts, %d nodes, %d watches", len(b.nodes), len(s.nodes), len(s.watches))
	}
	b.mu.Unlock()
	mustRelease(t, g.Lease)
	mustAcquire(t, b, request("a", longTTL))
}

// B36: the loser's removal is hit by a short loss of the connection.
func TestLoserIsRemovedAfterReconnect(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	p := new(tap)
	a := newTestBackend(t, root, addr)
	b := newTestBackendWith(t, &Options{Root: root, Dial: p.dial}, addr)
	c := admin(t, addr)
	g := mustAcquire(t, a, request("a", longTTL))
	p.once(opDelete, func() error { return errCut })
	req := request("a", longTTL)
	if _, err := b.Acquire(soon(t), req); errors.Is(err, driver.ErrHeld) || err == nil {
		t.Fatalf("Acquire: %v, though the removal failed", err)
	}
	// Nobody asks again: the session does it by itself.
	eventually(t, "the loser's entry is gone", func() bool { return len(entries(t, c, a, "a")) == 1 })
	mustBeHeld(t, b, req)
	mustRelease(t, g.Lease)
	mustAcquire(t, b, request("a", longTTL))
}

// B37: a waiter's session ends.
func TestSessionEndsWhileWaiting(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	a, b := newTestBackend(t, root, addr), newTestBackend(t, root, addr)
	g := mustAcquire(t, a, request("a", longTTL))
	tk := mustEnqueue(t, b, request("a", longTTL))
	w := waiting(t, soon(t), tk)
	s := b.testSession()
	expire(t, s, addr)
	if r := receive(t, w); !errors.Is(r.err, driver.ErrNotHeld) {
		t.Fatalf("Wait: %v", r.err)
	}
	if err := tk.Leave(soon(t)); err != nil && !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Leave: %v", err)
	}
	again := mustEnqueue(t, b, request("a", longTTL))
	if again.Keeper() == tk.Keeper() {
		t.Error("same session")
	}
	w = waiting(t, soon(t), again)
	mustRelease(t, g.Lease)
	if r := receive(t, w); r.err != nil {
		t.Fatal(r.err)
	}
}

// B38: the holder's session ends, and it is told.
func TestHolderIsToldThatItsSessionEnded(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	a, b := newTestBackend(t, root, addr), newTestBackend(t, root, addr)
	gone := make(chan error, 2)
	req := request("a", longTTL)
	req.Gone = func(err error) { gone <- err }
	g := mustAcquire(t, a, req)
	w := waiting(t, soon(t), mustEnqueue(t, b, request("a", longTTL)))
	expire(t, a.testSession(), addr)
	// A driver that has just taken the session back learns of the node first.
	if err := receive(t, gone); !errors.Is(err, zk.ErrSessionExpired) && !errors.Is(err, errNodeDeleted) {
		t.Errorf("Gone: %v", err)
	}
	r := receive(t, w)
	if r.err != nil {
		t.Fatal(r.err)
	}
	if cs := g.Lease.Keeper().Renew(soon(t), []driver.Kept{g.Lease}); len(cs) != 1 || !errors.Is(cs[0].Err, driver.ErrNotHeld) {
		t.Errorf("Renew: %+v", cs)
	}
	eventually(t, "the session is known to be over", func() bool {
		cs := g.Lease.Keeper().Renew(soon(t), nil)
		return len(cs) == 1 && errors.Is(cs[0].Err, driver.ErrNotHeld)
	})
	if err := g.Lease.Release(soon(t)); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release: %v", err)
	}
	mustBeHeld(t, a, request("a", longTTL)) // the rival's is untouched
	mustRelease(t, r.g.Lease)
	if len(gone) > 0 {
		t.Error("told twice")
	}
}

// B39: the predecessor leaves between the listing and the watch.
func TestPredecessorLeavesBeforeItIsWatched(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	p := new(tap)
	a := newTestBackend(t, root, addr)
	b := newTestBackendWith(t, &Options{Root: root, Dial: p.dial}, addr)
	for range 20 {
		g := mustAcquire(t, a, request("a", longTTL))
		tk := mustEnqueue(t, b, request("a", longTTL))
		p.once(opGetData, func() error { return g.Lease.Release(soon(t)) })
		mustRelease(t, mustWait(t, tk).Lease)
		p.on(nil)
	}
}

// As before, at random, with contention and a janitor that removes the directory
// whenever it is empty (B42). The counter shows exclusion.
func TestContentionWithJanitor(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	const workers, rounds = 4, 40
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	janitor := newTestBackend(t, root, addr)
	c := admin(t, addr)
	stop := make(chan struct{})
	var janitorDone, wg sync.WaitGroup
	janitorDone.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				c.Delete(janitor.layout.lock("a"), -1)
			}
		}
	})
	var inside atomic.Int32
	var last atomic.Uint64
	for range workers {
		d := newTestBackend(t, root, addr)
		wg.Go(func() {
			for range rounds {
				tk, err := d.Enqueue(ctx, request("a", longTTL))
				if err != nil {
					t.Errorf("Enqueue: %v", err)
					return
				}
				g, err := tk.Wait(ctx)
				if err != nil {
					t.Errorf("Wait: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				if before := last.Swap(g.Number); before >= g.Number {
					t.Errorf("number %d after %d", g.Number, before)
				}
				if rand.IntN(4) == 0 {
					time.Sleep(rand.N(time.Millisecond))
				}
				inside.Add(-1)
				if err := g.Lease.Release(ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	janitorDone.Wait()
}

// B40, B41: a wait costs a handful of requests and leaves no watch.
func TestWaitingCostsLittle(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	p := new(tap)
	a := newTestBackend(t, root, addr)
	b := newTestBackendWith(t, &Options{Root: root, Dial: p.dial}, addr)
	g := mustAcquire(t, a, request("a", longTTL)) // a fresh directory: number 0
	tk := mustEnqueue(t, b, request("a", longTTL))
	before := p.count(opGetData) + p.count(opGetChildren2)
	if _, err := tk.Wait(within(t, 300*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if n := p.count(opGetData) + p.count(opGetChildren2) - before; n > 2 {
		t.Errorf("%d reads in a wait that saw no change", n)
	}
	if err := tk.Leave(soon(t)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		tk := mustEnqueue(t, b, request("a", longTTL))
		tk.Wait(within(t, time.Millisecond))
		if err := tk.Leave(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	mustRelease(t, g.Lease)
	for range 100 {
		g := mustAcquire(t, a, request("a", longTTL))
		tk := mustEnqueue(t, b, request("a", longTTL))
		mustRelease(t, g.Lease)
		mustRelease(t, mustWait(t, tk).Lease)
	}
	eventually(t, "the server has no watch of this test", func() bool {
		return !strings.Contains(fourLetters(t, addr, "wchp"), root)
	})
}

// fourLetters asks a server one of its four-letter words.
func fourLetters(t testing.TB, addr, word string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte(word)); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String()
		}
	}
}

// B44: what others keep in a lock's directory is neither waited for nor removed.
func TestForeignChildren(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	a, b := newTestBackend(t, root, addr), newTestBackend(t, root, addr)
	c := admin(t, addr)
	g := mustAcquire(t, a, request("a", longTTL))
	foreign := []string{"config", "a-b-c", "123", "lock.", "lock-0000000000", "_c_0123456789abcdef0123456789abcdef-lock-0000000000"}
	for _, f := range foreign {
		if _, err := c.Create(a.layout.lock("a")+"/"+f, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	w := waiting(t, soon(t), mustEnqueue(t, b, request("a", longTTL)))
	mustRelease(t, g.Lease)
	r := receive(t, w)
	if r.err != nil {
		t.Fatal(r.err)
	}
	mustRelease(t, r.g.Lease)
	if n := entries(t, c, a, "a"); len(n) != len(foreign) {
		t.Errorf("left: %q", n)
	}
}

// B46: a release that could not be confirmed goes on by itself, and can be asked
// for again.
func TestReleaseDuringConnectionLoss(t *testing.T) {
	p, addr := proxied(t)
	root := testRoot(t)
	a, b := newTestBackend(t, root, p.Addr()), newTestBackend(t, root, addr)
	g := mustAcquire(t, a, request("a", longTTL))
	w := waiting(t, soon(t), mustEnqueue(t, b, request("a", longTTL)))
	p.Refuse()
	p.Reset()
	if err := g.Lease.Release(within(t, 100*time.Millisecond)); err == nil || errors.Is(err, driver.ErrNotHeld) {
		t.Fatalf("Release while disconnected: %v", err)
	}
	p.Heal()
	if r := receive(t, w); r.err != nil {
		t.Fatal(r.err)
	} else {
		mustRelease(t, r.g.Lease)
	}
	mustRelease(t, g.Lease)
	mustAcquire(t, a, request("a", longTTL))
}

// As before, when the delete was applied and its answer lost.
func TestReleaseReplyLost(t *testing.T) {
	p, addr := proxied(t)
	d := newTestBackend(t, testRoot(t), p.Addr())
	c := admin(t, addr)
	told := make(chan error, 1)
	req := request("a", longTTL)
	req.Gone = func(err error) { told <- err }
	g := mustAcquire(t, d, req)
	p.FailReplies(1)
	if err := g.Lease.Release(soon(t)); errors.Is(err, driver.ErrNotHeld) {
		t.Fatalf("Release: %v", err)
	}
	mustBeEmpty(t, c, d, "a")
	mustRelease(t, g.Lease)
	if len(told) > 0 {
		t.Errorf("a release was reported as a loss: %v", <-told)
	}
}

// B47: the session ends between create and listing.
func TestSessionEndsBeforeTheListing(t *testing.T) {
	addr := single(t)
	p := new(tap)
	d := newTestBackendWith(t, &Options{Root: testRoot(t), Dial: p.dial}, addr)
	mustRelease(t, mustAcquire(t, d, request("a", longTTL)).Lease)
	s := d.testSession()
	p.once(opGetChildren2, func() error { expire(t, s, addr); return nil })
	g, err := d.Acquire(soon(t), request("a", longTTL))
	if err == nil && g.Lease.Keeper() == driver.Keeper(s) {
		t.Error("granted on a session that is over")
	}
	if err == nil {
		mustRelease(t, g.Lease)
	}
}

func TestOwnEntryNotListed(t *testing.T) {
	d, err := newBackend([]string{"127.0.0.1:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{d: d}
	n := &node{d: d, s: s, dir: "/x", path: "/x/lock.me.0000000001", wake: make(chan struct{}, 1)}
	for _, es := range [][]entry{nil, {{node: "lock.you.0000000000", owner: "you"}}} {
		if err := n.place(t.Context(), s, nil, es); !errors.Is(err, errNodeDeleted) {
			t.Errorf("%v: %v", es, err)
		}
	}
}

// B48: credentials are sent on each connection, wrong ones end at once.
func TestCredentials(t *testing.T) {
	p, addr := proxied(t)
	root := testRoot(t)
	good := []Auth{{"digest", []byte("user:right")}}
	d := newTestBackendWith(t, &Options{Root: root, Auth: good}, p.Addr())
	if _, err := d.Capabilities(soon(t)); err != nil {
		t.Fatal(err)
	}
	g := mustAcquire(t, d, request("a", longTTL))
	p.Reset()
	eventually(t, "released through a new connection", func() bool { return g.Lease.Release(soon(t)) == nil })
	g = mustAcquire(t, d, request("a", longTTL))

	for name, auth := range map[string][]Auth{
		"none": nil, "wrong": {{"digest", []byte("user:wrong")}}, "unknown scheme": {{"nonsense", []byte("x")}},
	} {
		d := newTestBackendWith(t, &Options{Root: root, Auth: auth}, addr)
		start := time.Now()
		if _, err := d.Capabilities(soon(t)); !isPermanent(err) {
			t.Errorf("%s: Capabilities: %v", name, err)
		}
		if _, err := d.Acquire(soon(t), request("a", longTTL)); !isPermanent(err) {
			t.Errorf("%s: Acquire: %v", name, err)
		}
		if time.Since(start) > 5*time.Second {
			t.Errorf("%s: took %v", name, time.Since(start))
		}
	}
	mustRelease(t, g.Lease)
}

// B49: Close while others wait and the server is gone.
func TestCloseWhileTheServerIsGone(t *testing.T) {
	for _, how := range []string{"swallows", "refuses"} {
		t.Run(how, func(t *testing.T) {
			p, _ := proxied(t)
			d := newTestBackend(t, testRoot(t), p.Addr())
			mustAcquire(t, d, request("a", longTTL))
			var waits []<-chan waited
			for range 10 {
				waits = append(waits, waiting(t, soon(t), mustEnqueue(t, d, request("a", longTTL))))
			}
			if how == "swallows" {
				p.Cut()
			} else {
				p.Refuse()
				p.Reset()
			}
			start := time.Now()
			ctx := within(t, 5*time.Second)
			for range 2 {
				if err := d.Close(ctx); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("Close took %v", took)
			}
			for _, w := range waits {
				if r := receive(t, w); r.err == nil {
					t.Error("granted by Close")
				}
			}
			if _, err := d.Acquire(soon(t), request("a", longTTL)); err == nil {
				t.Error("Acquire after Close")
			}
		})
	}
}

// B50: nothing listens. The call ends with its context, and nothing of it
// arrives later.
func TestNoServer(t *testing.T) {
	p, addr := proxied(t)
	p.Refuse()
	d := newTestBackend(t, testRoot(t), p.Addr())
	c := admin(t, addr)
	start := time.Now()
	ctx := within(t, 300*time.Millisecond)
	_, err := d.Acquire(ctx, request("a", longTTL))
	if !errors.Is(err, context.DeadlineExceeded) || !mentions(err, "zookeeper", p.Addr()) {
		t.Errorf("Acquire: %v", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	p.Heal()
	if d.testSession() != nil {
		t.Error("a session was opened after all")
	}
	if n := p.Stats().ReplyBytes; n != 0 {
		t.Errorf("%d bytes came from the server", n)
	}
	mustBeEmpty(t, c, d, "a")
	mustAcquire(t, d, request("a", longTTL)) // directory and root are made on the way
}

// B58: two attempts on one session are two contenders.
func TestTwoAttemptsOnOneSession(t *testing.T) {
	d := newTestBackend(t, testRoot(t), single(t))
	g := mustAcquire(t, d, request("a", longTTL))
	mustBeHeld(t, d, request("a", longTTL))
	tk := mustEnqueue(t, d, request("a", longTTL))
	if tk.Keeper() != g.Lease.Keeper() {
		t.Error("two sessions")
	}
	w := waiting(t, soon(t), tk)
	other := mustAcquire(t, d, request("b", longTTL))
	mustRelease(t, other.Lease)
	select {
	case r := <-w:
		t.Fatalf("granted while held: %+v", r)
	default:
	}
	mustRelease(t, g.Lease)
	if r := receive(t, w); r.err != nil || r.g.Number <= g.Number {
		t.Fatalf("%+v", r)
	}
}

// B59: a partition without resets while waiting.
func TestSilentPartitionWhileWaiting(t *testing.T) {
	p, addr := proxied(t)
	root := testRoot(t)
	a, b := newTestBackend(t, root, addr), newTestBackend(t, root, p.Addr())
	g := mustAcquire(t, a, request("a", longTTL))
	tk := mustEnqueue(t, b, request("a", longTTL))
	p.Cut()
	mustRelease(t, g.Lease)
	if _, err := tk.Wait(within(t, 300*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait: %v", err)
	}
	if err := tk.Leave(within(t, 100*time.Millisecond)); err == nil {
		t.Error("Leave succeeded through a partition")
	}
	p.Heal()
	if err := tk.Leave(soon(t)); err != nil {
		t.Error(err)
	}
	mustAcquire(t, b, request("a", longTTL))
}

// B52: names that are prefixes of each other are different locks.
func TestNamesAreApart(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	a, b := newTestBackend(t, root, addr), newTestBackend(t, root, addr)
	for _, name := range []string{"job", "job1", "job/1", "jo", "job/1/", "//", ".", "..", "a b", "\x00\x7f", "größe", "https://x/?y=%2F", strings.Repeat("é", 256)} {
		g := mustAcquire(t, a, request(name, longTTL))
		mustBeHeld(t, b, request(name, longTTL))
		defer mustRelease(t, g.Lease)
	}
}

// An operator's delete ends the holding, also after somebody wrote on the node.
func TestNodeDeletedByAnOperator(t *testing.T) {
	for _, how := range []string{"plainly", "after a write", "while disconnected"} {
		t.Run(how, func(t *testing.T) {
			p, addr := proxied(t)
			d := newTestBackend(t, testRoot(t), p.Addr())
			c := admin(t, addr)
			gone := make(chan error, 1)
			req := request("a", longTTL)
			req.Gone = func(err error) { gone <- err }
			g := mustAcquire(t, d, req)
			other := mustAcquire(t, d, request("b", longTTL))
			path := d.layout.lock("a") + "/" + entries(t, c, d, "a")[0]
			switch how {
			case "after a write":
				n := g.Lease.(*lease).node
				if _, err := c.Set(path, []byte("x"), -1); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the node is watched again", func() bool {
					d.mu.Lock()
					defer d.mu.Unlock()
					w := n.s.watches[path]
					return n.watched && w != nil && w.on != nil
				})
			case "while disconnected":
				p.Refuse()
				p.Reset()
			}
			if err := c.Delete(path, -1); err != nil {
				t.Fatal(err)
			}
			p.Heal()
			if how == "while disconnected" {
				// The first answer after the reconnect already knows.
				eventually(t, "a heartbeat is confirmed", func() bool {
					cs := g.Lease.Keeper().Renew(soon(t), []driver.Kept{g.Lease, other.Lease})
					if cs[0].Err == nil {
						t.Fatalf("confirmed, though it is gone: %+v", cs)
					}
					return cs[1].Err == nil && errors.Is(cs[0].Err, driver.ErrNotHeld)
				})
			}
			receive(t, gone)
			if err := g.Lease.Release(soon(t)); !errors.Is(err, driver.ErrNotHeld) {
				t.Errorf("Release: %v", err)
			}
			mustRelease(t, other.Lease)
		})
	}
}

func TestRetire(t *testing.T) {
	for _, reach := range []bool{true, false} {
		t.Run(fmt.Sprintf("reachable=%t", reach), func(t *testing.T) {
			p, addr := proxied(t)
			d := newTestBackend(t, testRoot(t), p.Addr())
			c := admin(t, addr)
			g := mustAcquire(t, d, request("a", longTTL))
			tk := mustEnqueue(t, d, request("a", longTTL))
			w := waiting(t, soon(t), tk)
			k := g.Lease.Keeper()
			if !reach {
				p.Cut()
			}
			if err := k.Retire(soon(t)); err != nil {
				t.Fatal(err)
			}
			if r := receive(t, w); !errors.Is(r.err, driver.ErrNotHeld) {
				t.Errorf("Wait: %v", r.err)
			}
			if reach {
				mustBeEmpty(t, c, d, "a")
			}
			if got := p.Stats().Open; reach && got != 0 {
				t.Errorf("%d connections are open", got)
			}
			p.Heal()
			if cs := k.Renew(soon(t), nil); len(cs) != 1 || !errors.Is(cs[0].Err, driver.ErrNotHeld) {
				t.Errorf("Renew: %+v", cs)
			}
			if err := g.Lease.Release(soon(t)); err != nil && !errors.Is(err, driver.ErrNotHeld) {
				t.Errorf("Release: %v", err)
			}
			if err := tk.Leave(soon(t)); err != nil && !errors.Is(err, driver.ErrNotHeld) {
				t.Errorf("Leave: %v", err)
			}
			if g := mustAcquire(t, d, request("b", longTTL)); g.Lease.Keeper() == k {
				t.Error("granted on the retired session")
			}
		})
	}
}

func TestNegotiatedTimeout(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{100 * time.Millisecond: time.Second, 3 * time.Second: 3 * time.Second, time.Hour: 10 * time.Second} {
		d := newTestBackend(t, testRoot(t), single(t))
		g := mustAcquire(t, d, request("a", asked))
		if g.TTL != want || g.Lease.Keeper().Every() != want/6 {
			t.Errorf("asked for %v: TTL %v, want %v; every %v", asked, g.TTL, want, g.Lease.Keeper().Every())
		}
		if cs := g.Lease.Keeper().Renew(soon(t), nil); len(cs) != 1 || cs[0].Err != nil || cs[0].TTL != want || cs[0].From.Before(g.From) {
			t.Errorf("Renew: %+v", cs)
		}
	}
}

// A server that would cut the timeout when it takes the session over ends it.
func TestTimeoutCutOnReconnect(t *testing.T) {
	p, _ := proxied(t)
	tp := new(tap)
	d := newTestBackendWith(t, &Options{Root: testRoot(t), Dial: tp.dial}, p.Addr())
	gone := make(chan error, 1)
	req := request("a", longTTL)
	req.Gone = func(err error) { gone <- err }
	mustAcquire(t, d, req)
	tp.mu.Lock()
	tp.hello = func(r []byte) { binary.BigEndian.PutUint32(r[8:], 1000) }
	tp.mu.Unlock()
	p.Reset()
	if err := receive(t, gone); !mentions(err, "6s", "1s") {
		t.Errorf("Gone: %v", err)
	}
}

func TestHeartbeatsProve(t *testing.T) {
	addr := single(t)
	d := newTestBackend(t, testRoot(t), addr)
	g := mustAcquire(t, d, request("a", testTTL))
	k := g.Lease.Keeper()
	// Whoever writes the heartbeat node by itself proves nothing before the third.
	for i := range 2 {
		cs := k.Renew(soon(t), []driver.Kept{g.Lease})
		if len(cs) != 1 || cs[0].Err != nil || !cs[0].From.Equal(g.From) {
			t.Errorf("heartbeat %d: %+v, granted from %v", i, cs, g.From)
		}
	}
	// Nor does it prolong anything to take another lock.
	if g2 := mustAcquire(t, d, request("b", testTTL)); !g2.From.Equal(g.From) {
		t.Errorf("a second lock counts from %v after the session's proof", g2.From.Sub(g.From))
	}
	eventually(t, "heartbeats move From", func() bool {
		cs := k.Renew(soon(t), []driver.Kept{g.Lease})
		return cs[0].Err == nil && cs[0].From.After(g.From)
	})
	c := admin(t, addr)
	path := d.layout.heartbeat(d.testSession().id)
	_, st, err := c.Exists(path)
	if err != nil || st.EphemeralOwner != d.testSession().id {
		t.Errorf("%s: %+v %v", path, st, err)
	}
	if err := c.Delete(path, -1); err != nil { // it is made again
		t.Fatal(err)
	}
	if cs := k.Renew(soon(t), nil); cs[0].Err != nil {
		t.Error(cs[0].Err)
	}
}

// A session that nobody was told of ends by itself.
func TestUnknownSessionEnds(t *testing.T) {
	p := new(tap)
	d := newTestBackendWith(t, &Options{Root: testRoot(t), Dial: p.dial}, single(t))
	req := request("a", testTTL)
	p.once(opCreate, func() error { return errCut })
	if _, err := d.Acquire(soon(t), req); err == nil {
		t.Fatal("no error")
	}
	if err := d.Abandon(soon(t), req); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session has ended", func() bool { return d.testSession() == nil })
}

func TestRestart(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t, 1, testbed.Own()).Servers()[0]
	root := testRoot(t)
	a, b := newTestBackend(t, root, server.Addr()), newTestBackend(t, root, server.Addr())
	req := request("a", 10*time.Second)
	req.Gone = func(err error) { t.Errorf("Gone: %v", err) }
	g := mustAcquire(t, a, req)
	w := waiting(t, within(t, 60*time.Second), mustEnqueue(t, b, request("a", 10*time.Second)))
	server.Kill(t)
	server.Restart(t, true)
	ctx := within(t, 30*time.Second)
	if cs := g.Lease.Keeper().Renew(ctx, []driver.Kept{g.Lease}); cs[0].Err != nil {
		t.Fatalf("Renew: %v", cs[0].Err)
	}
	if err := g.Lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	r := receive(t, w)
	if r.err != nil || r.g.Number <= g.Number {
		t.Fatalf("%+v", r)
	}
}

// The client's server is cut off from the leader. It goes on answering pings and
// reads; only the heartbeat's silence shows it. With no other server to turn to
// the lock is lost, and before a rival gets it.
func TestFollowerCutOffFromTheLeader(t *testing.T) {
	t.Parallel()
	// With this tick the follower gives its client up after 4 s; by then the lock
	// of one that waited for that would be lost.
	cluster := testbed.ZooKeeper(t, 3, testbed.Own(), testbed.Tick(time.Second))
	follower, rest := pickFollower(t, cluster)
	root := testRoot(t)
	const ttl = 4 * time.Second
	open := func(addrs ...string) *distlock.Client {
		l, err := New(addrs, &Options{Root: root}, distlock.WithTTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	victim, rival := open(follower.Addr()), open(rest...)
	held, err := victim.Lock(within(t, 30*time.Second), "a")
	if err != nil {
		t.Fatal(err)
	}
	// The one that may go elsewhere keeps its lock.
	d, err := newBackend(append([]string{follower.Addr()}, rest...), &Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	d.server = 0
	mobile, err := distlock.New(d, distlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mobile.Close() })
	kept, err := mobile.Lock(within(t, 30*time.Second), "b")
	if err != nil {
		t.Fatal(err)
	}

	heal := cluster.Cut(t, follower)
	defer heal()
	cut := time.Now()
	eventually(t, "the client with other servers to turn to has done so", func() bool {
		l := d.testSession().testLink()
		return l != nil && l.addr != follower.Addr()
	})
	// Without its own patience it would notice when answers to pings, which queue
	// behind the heartbeat, have been missing for 2/3 of the timeout.
	if took := time.Since(cut); took > ttl*5/8 {
		t.Errorf("the client turned to another server after %v", took)
	}
	next, err := rival.Lock(within(t, 60*time.Second), "a")
	got := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-held.Lost():
	default:
		t.Fatal("a rival has the lock and the holder has not been told")
	}
	var lost *distlock.LostError
	if !errors.As(held.Err(), &lost) || !lost.At.Before(got) {
		t.Errorf("lost: %v", held.Err())
	}
	t.Logf("holder told %v before the rival's Lock returned", got.Sub(lost.At))
	if next.Token() == 0 {
		t.Error("no token")
	}
	time.Sleep(ttl) // the session that the cut left behind would be over, too
	if err := kept.Err(); err != nil {
		t.Errorf("the client with other servers to turn to lost its lock: %v", err)
	}
	if err := kept.Unlock(soon(t)); err != nil {
		t.Error(err)
	}
}

// The leader dies: what is held stays held, and numbers go on growing.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	cluster := testbed.ZooKeeper(t, 3, testbed.Own())
	root := testRoot(t)
	const ttl = 10 * time.Second
	a, b := newTestBackend(t, root, cluster.Addrs()...), newTestBackend(t, root, cluster.Addrs()...)
	req := request("a", ttl)
	req.Gone = func(err error) { t.Errorf("Gone: %v", err) }
	g, err := a.Acquire(within(t, 30*time.Second), req)
	if err != nil {
		t.Fatal(err)
	}
	beats(t, g.Lease.Keeper())
	ctx := within(t, 60*time.Second)
	tk, err := b.Enqueue(ctx, request("a", ttl))
	if err != nil {
		t.Fatal(err)
	}
	beats(t, tk.Keeper())
	w := waiting(t, ctx, tk)
	cluster.Leader(t).Kill(t)
	eventually(t, "heartbeats are confirmed again", func() bool {
		rctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		cs := g.Lease.Keeper().Renew(rctx, []driver.Kept{g.Lease})
		return cs[0].Err == nil && time.Since(cs[0].From) < ttl
	})
	select {
	case r := <-w:
		t.Fatalf("granted while held: %+v", r)
	default:
	}
	if err := g.Lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if r := receive(t, w); r.err != nil || r.g.Number <= g.Number {
		t.Fatalf("%+v after %d", r, g.Number)
	}
}

func pickFollower(t testing.TB, c *testbed.Cluster) (follower *testbed.Server, rest []string) {
	t.Helper()
	leader := c.Leader(t)
	for _, s := range c.Servers() {
		if s != leader && follower == nil {
			follower = s
		} else {
			rest = append(rest, s.Addr())
		}
	}
	return follower, rest
}

// What another version of distlock, or another program, keeps under the root is
// not touched.
func TestOtherLayoutVersion(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	c := admin(t, addr)
	for _, path := range []string{root, root + "/version"} {
		if _, err := c.Create(path, []byte("2"), zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	d := newTestBackend(t, root, addr)
	if _, err := d.Capabilities(soon(t)); !isPermanent(err) || !mentions(err, root+"/version", `"2"`) {
		t.Errorf("Capabilities: %v", err)
	}
}

// A root below a node that this identity may not write to.
func TestRootBelowWhatIsNotOurs(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	c := admin(t, addr)
	if _, err := c.Create(root, nil, zk.FlagPersistent, zk.WorldACL(zk.PermRead)); err != nil {
		t.Fatal(err)
	}
	d := newTestBackend(t, root+"/mine", addr)
	if _, err := d.Capabilities(soon(t)); !isPermanent(err) || !mentions(err, "permission", root+"/mine") {
		t.Errorf("Capabilities: %v", err)
	}
	if _, err := c.SetACL(root, zk.WorldACL(zk.PermAll), -1); err == nil {
		t.Fatal("the ACL does not bind")
	}
}

// An old server answers the request for a container node with the code for a
// request that it does not know. None can be had here, so the answer is taken
// from the client library alone.
func TestOldServerIsNamed(t *testing.T) {
	err := classify(fmt.Errorf("unknown error: %v", zk.ErrCode(-6)), "/distlock/locks")
	if !isPermanent(err) || !mentions(err, "3.5") {
		t.Error(err)
	}
}
