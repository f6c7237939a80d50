package etcdbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"example.com/distlock/driver"
	"example.com/distlock/internal/faultproxy"
	"example.com/distlock/internal/testbed"
)

// isAcquire recognizes the transaction of enter.
func isAcquire(req any) bool {
	tx, ok := req.(*etcdserverpb.TxnRequest)
	return ok && len(tx.Success) > 0 && tx.Success[0].GetRequestPut() != nil && len(tx.Failure) == 3
}

// onAcquire applies f to the next acquire transaction.
func (tp *tap) onAcquire(f fault) {
	tp.set(func(_ string, req any) fault {
		if !isAcquire(req) {
			return fault{}
		}
		tp.hook = nil
		return f
	})
}

// attempt enqueues or acquires.
func (r *rig) attempt(req driver.Request, queue bool) (end func(context.Context) error, err error) {
	if queue {
		tk, err := r.Enqueue(bounded(r.t), req)
		if err != nil {
			return nil, err
		}
		return tk.Leave, nil
	}
	g, err := r.Acquire(bounded(r.t), req)
	if err != nil {
		return nil, err
	}
	return g.Lease.Release, nil
}

// lateAttempt makes an attempt that fails and whose transaction is still on its
// way; arrive delivers it.
func (r *rig) lateAttempt(req driver.Request, queue bool) (arrive func()) {
	r.t.Helper()
	hold, done := make(chan struct{}), make(chan struct{})
	r.tap.onAcquire(fault{kind: lateRequest, wait: hold, done: done})
	if _, err := r.attempt(req, queue); err == nil {
		r.t.Fatal("the attempt should have failed")
	}
	return func() { close(hold); <-done }
}

// loseAcquires loses all acquire transactions from now on.
func (tp *tap) loseAcquires() {
	tp.set(func(_ string, req any) fault {
		if isAcquire(req) {
			return fault{kind: loseRequest}
		}
		return fault{}
	})
}

// giveUp makes an attempt at name that is lost, and abandons it.
func (r *rig) giveUp(name string) {
	r.t.Helper()
	req := request(name, long)
	r.tap.onAcquire(fault{kind: loseRequest})
	if _, err := r.Acquire(bounded(r.t), req); err == nil {
		r.t.Fatal("the attempt should have failed")
	}
	if err := r.Abandon(bounded(r.t), req); err != nil {
		r.t.Fatal(err)
	}
}

// neighbour returns a name that shares name's abort key.
func neighbour(name string) string {
	for i := 0; ; i++ {
		if n := fmt.Sprint(name, i); bucketOf(n) == bucketOf(name) {
			return n
		}
	}
}

// An acquire transaction that reaches the server after its attempt was given up
// takes nothing and leaves nothing, though its lease lives.
func TestLateTransactionIsRefused(t *testing.T) {
	for _, queue := range []bool{false, true} {
		kind := map[bool]string{false: "try", true: "queue"}[queue]
		check := func(what string, f func(t *testing.T, r *rig, req driver.Request) (wantKeys int)) {
			t.Run(kind+"/"+what, func(t *testing.T) {
				r := newRig(t)
				r.release(r.take(request("a", long)).Lease) // the lease is there
				want := f(t, r, request("a", long))
				if keys := r.entries("a"); len(keys) != want {
					t.Fatalf("%d entries, want %d: %v", len(keys), want, keys)
				}
				if want == 0 {
					r.release(r.take(request("a", long)).Lease)
				}
			})
		}
		check("without abandon it takes effect", func(t *testing.T, r *rig, req driver.Request) int {
			r.lateAttempt(req, queue)()
			return 1
		})
		check("after abandon", func(t *testing.T, r *rig, req driver.Request) int {
			arrive := r.lateAttempt(req, queue)
			if err := r.Abandon(bounded(t), req); err != nil {
				t.Fatal(err)
			}
			arrive()
			return 0
		})
		check("after the second abandon of the name", func(t *testing.T, r *rig, req driver.Request) int {
			other := request("a", long)
			arrive := r.lateAttempt(other, queue)
			if err := r.Abandon(bounded(t), other); err != nil {
				t.Fatal(err)
			}
			again := r.lateAttempt(req, queue)
			if err := r.Abandon(bounded(t), req); err != nil {
				t.Fatal(err)
			}
			arrive()
			again()
			return 0
		})
		check("after abandon, between those of another name", func(t *testing.T, r *rig, req driver.Request) int {
			r.giveUp(neighbour("a"))
			arrive := r.lateAttempt(req, queue)
			r.giveUp(neighbour("a"))
			if err := r.Abandon(bounded(t), req); err != nil {
				t.Fatal(err)
			}
			r.giveUp(neighbour("a"))
			r.release(r.take(request(neighbour("a"), long)).Lease)
			arrive()
			return 0
		})
		check("after another sending was released", func(t *testing.T, r *rig, req driver.Request) int {
			arrive := r.lateAttempt(req, queue)
			end, err := r.attempt(req, queue)
			if err != nil {
				t.Fatal(err)
			}
			if err := end(bounded(t)); err != nil {
				t.Fatal(err)
			}
			arrive()
			return 0
		})
	}
	t.Run("try/after another sending found it held", func(t *testing.T) {
		r := newRig(t)
		p := r.peer()
		g := p.take(request("a", long))
		req := request("a", long)
		arrive := r.lateAttempt(req, false)
		_, err := r.Acquire(bounded(t), req)
		wantErr(t, "second sending", err, driver.ErrHeld)
		p.release(g.Lease)
		arrive()
		if keys := r.entries("a"); len(keys) != 0 {
			t.Fatalf("entries: %v", keys)
		}
	})
}

// An abort fails no one else's attempt: it costs one more transaction where the
// abort key's revision was not known.
func TestAbortCostsOthersOneTransaction(t *testing.T) {
	r := newRig(t)
	r.giveUp("a")
	for _, known := range []bool{true, false} {
		if !known {
			r.lease(long).aborts = [buckets]int64{}
		}
		r.tap.reset()
		g := r.take(request("a", long))
		if n, want := r.tap.counts()["Txn"], map[bool]int{true: 1, false: 2}[known]; n != want {
			t.Errorf("revision known: %t: %d transactions, want %d", known, n, want)
		}
		r.release(g.Lease)
	}
	// Nor does an abort key that somebody has deleted stop anyone.
	r.remove(r.abort(r.lease(long).id, bucketOf("a")))
	r.release(r.take(request("a", long)).Lease)

	// Another name with the same abort key is given up while the transaction is
	// under way; then one with another abort key.
	for _, other := range []string{neighbour("a"), "b"} {
		for _, queue := range []bool{false, true} {
			r.tap.reset()
			giveUp := fault{kind: slowRequest, between: func() { r.giveUp(other) }}
			r.tap.onAcquire(giveUp)
			end, err := r.attempt(request("a", long), queue)
			if err != nil {
				t.Fatal(err)
			}
			// Two of them are the other's: its attempt and its abort.
			want := 3
			if bucketOf(other) == bucketOf("a") {
				want = 4
			}
			if n := r.tap.counts()["Txn"]; n != want {
				t.Errorf("%s given up, queue: %t: %d transactions, want %d", other, queue, n, want)
			}
			if !queue {
				r.tap.onAcquire(giveUp)
				_, err := r.Acquire(bounded(t), request("a", long))
				wantErr(t, "Acquire while held", err, driver.ErrHeld)
			}
			if err := end(bounded(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A Locker that gives up more and more names, as those made of ids, leaves a
// bounded number of keys; none after the lease.
func TestAbortKeysAreBounded(t *testing.T) {
	r := newRig(t)
	r.tap.loseAcquires()
	for i := range 3 * buckets {
		req := request(fmt.Sprint("order-", i), long)
		if _, err := r.Acquire(bounded(t), req); err == nil {
			t.Fatal("the attempt should have failed")
		}
		if err := r.Abandon(bounded(t), req); err != nil {
			t.Fatal(err)
		}
	}
	count := func() int64 {
		resp, err := r.cli.Get(bounded(t), r.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return resp.Count
	}
	if n := count(); n == 0 || n > buckets {
		t.Errorf("%d keys after %d aborts, want 1 to %d", n, 3*buckets, buckets)
	}
	if err := r.lease(long).Retire(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d keys after the lease, want 0", n)
	}
}

// A lease that ends while an attempt is under way on it costs the attempt a new
// lease, even if it was retired here and the server learns of that only later:
// what the attempt had put on the old one does not stand in its way.
func TestRetiredUnderAnAttempt(t *testing.T) {
	ends := map[string]func(*testing.T, *session){
		"retired here": func(_ *testing.T, s *session) { s.end(errRetired) },
		"retired": func(t *testing.T, s *session) {
			if err := s.Retire(bounded(t)); err != nil {
				t.Error(err)
			}
		},
		"revoked": func(t *testing.T, s *session) {
			if err := s.b.revoke(bounded(t), s.id); err != nil {
				t.Error(err)
			}
			wantErr(t, "keepalive", s.keepalive(bounded(t)).Err, driver.ErrNotHeld)
		},
	}
	for _, queue := range []bool{false, true} {
		for _, kind := range []faultKind{slowRequest, slowReply} {
			for how, end := range ends {
				t.Run(fmt.Sprintf("queue=%t/reply=%t/%s", queue, kind == slowReply, how), func(t *testing.T) {
					r := newRig(t)
					r.release(r.take(request("a", long)).Lease)
					old := r.lease(long)
					r.tap.onAcquire(fault{kind: kind, between: func() { end(t, old) }})
					var g driver.Grant
					if req := request("a", long); queue {
						g = granted(t, await(t, r.queue(req)), soon)
					} else {
						g = r.take(req)
					}
					if g.Lease.Keeper() == driver.Keeper(old) {
						t.Error("granted on a retired lease")
					}
					r.release(g.Lease)
				})
			}
		}
	}
	t.Run("out of reach", func(t *testing.T) {
		r := newRig(t)
		r.release(r.take(request("a", long)).Lease)
		old := r.lease(long)
		r.tap.onAcquire(fault{kind: slowRequest, between: func() {
			r.tap.once("LeaseRevoke", fault{kind: loseRequest})
			if err := old.Retire(bounded(t)); err == nil {
				t.Error("Retire should have failed")
			}
			r.tap.once("LeaseRevoke", fault{kind: loseRequest})
		}})
		req := request("a", long)
		_, err := r.Acquire(bounded(t), req)
		var fatal *driver.PermanentError
		if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrNotHeld) || errors.As(err, &fatal) {
			t.Errorf("Acquire: %v, want an error that is worth another try", err)
		}
		if g := r.take(request("b", long)); g.Lease.Keeper() == driver.Keeper(old) {
			t.Error("granted on a retired lease")
		}
	})
}

func TestAbandonOfWhatWasNeverSent(t *testing.T) {
	r := newRigOn(t, []string{"127.0.0.1:1"}, "x/")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	req := request("a", long)
	if _, err := r.Acquire(ctx, req); err == nil || errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire: %v", err)
	}
	if err := r.Abandon(ctx, req); err != nil {
		t.Errorf("Abandon: %v", err)
	}
	if _, err := r.Capabilities(ctx); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Capabilities: %v, want the address in it", err)
	}
}

// The same request again, after its reply was lost, is the same entry.
func TestReplyOfAcquireLost(t *testing.T) {
	for _, queue := range []bool{false, true} {
		r := newRig(t)
		req := request("a", long)
		r.tap.onAcquire(fault{kind: loseReply})
		if _, err := r.attempt(req, queue); err == nil {
			t.Fatal("the attempt should have failed")
		}
		var g driver.Grant
		if queue {
			g = granted(t, await(t, r.queue(req)), soon)
		} else {
			g = r.take(req)
		}
		resp, err := r.cli.Get(bounded(t), r.dir("a"), clientv3.WithPrefix())
		if err != nil || len(resp.Kvs) != 1 || uint64(resp.Kvs[0].CreateRevision) != g.Number {
			t.Fatalf("number %d, stored %v, %v", g.Number, resp, err)
		}
		r.release(g.Lease)
	}
}

// A place whose reply was lost is found again, with the lock held by another.
func TestReplyOfEnqueueLostWhileHeld(t *testing.T) {
	r := newRig(t)
	p := r.peer()
	g := p.take(request("a", long))
	req := request("a", long)
	r.tap.onAcquire(fault{kind: loseReply})
	if _, err := r.Enqueue(bounded(t), req); err == nil {
		t.Fatal("the attempt should have failed")
	}
	w := await(t, r.queue(req))
	waiting(t, w)
	if keys := r.entries("a"); len(keys) != 2 {
		t.Fatalf("entries: %v", keys)
	}
	p.release(g.Lease)
	granted(t, w, soon)
}

func TestReplyOfReleaseLost(t *testing.T) {
	r := newRig(t)
	g := r.take(request("a", long))
	r.tap.once("Txn", fault{kind: loseReply})
	if err := g.Lease.Release(bounded(t)); err == nil || errors.Is(err, driver.ErrNotHeld) {
		t.Fatalf("Release without reply: %v", err)
	}
	if err := g.Lease.Release(bounded(t)); err != nil {
		t.Errorf("repeated Release: %v", err)
	}
	wantErr(t, "Release once more", g.Lease.Release(bounded(t)), driver.ErrNotHeld)
}

// A lease whose grant had no reply is the one that is used, and its time counts
// from what confirmed it.
func TestReplyOfGrantLost(t *testing.T) {
	r := newRig(t)
	r.tap.once("LeaseGrant", fault{kind: loseReply})
	if _, err := r.Acquire(bounded(t), request("a", long)); err == nil {
		t.Fatal("the attempt should have failed")
	}
	id := r.slots[long].pending
	before := time.Now()
	g := r.take(request("a", long))
	if s := r.lease(long); s.id != id || g.TTL != long || g.From.Before(before) {
		t.Errorf("lease %x, was %x; TTL %v; From %v before the second attempt", s.id, id, g.TTL, before.Sub(g.From))
	}
	// Given up, it is revoked by Close.
	p := r.peer()
	p.tap.once("LeaseGrant", fault{kind: loseReply})
	if _, err := p.Acquire(bounded(t), request("b", long)); err == nil {
		t.Fatal("the attempt should have failed")
	}
	id = p.slots[long].pending
	if err := p.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if ttl, err := r.cli.TimeToLive(bounded(t), clientv3.LeaseID(id)); err != nil || ttl.TTL != -1 {
		t.Errorf("lease %x: %+v, %v", id, ttl, err)
	}
}

// proxied returns a rig behind a proxy, and a peer that is not.
func proxied(t *testing.T) (*rig, *rig, *faultproxy.Proxy) {
	t.Helper()
	p := newRig(t)
	px, err := faultproxy.New(p.cli.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { px.Close() })
	return newRigOn(t, []string{px.Addr()}, p.prefix), p, px
}

// One keepalive that fails, by silence or by a reset, ends nothing, and does not
// move From.
func TestKeepaliveFails(t *testing.T) {
	r, _, px := proxied(t)
	g := r.take(request("a", long))
	k := g.Lease.Keeper()
	renew := func() driver.Confirm { return k.Renew(bounded(t), []driver.Kept{g.Lease})[0] }
	if c := renew(); c.Err != nil {
		t.Fatal(c.Err)
	}
	px.CutReplies()
	from := r.lease(long).confirmed()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	began := time.Now()
	c := k.Renew(ctx, nil)[0]
	cancel()
	if c.Err == nil || errors.Is(c.Err, driver.ErrNotHeld) || time.Since(began) > time.Second {
		t.Errorf("silence: %v after %v", c.Err, time.Since(began))
	}
	if now := r.lease(long).confirmed(); !now.Equal(from) {
		t.Error("an unanswered keepalive moved From")
	}
	px.Heal()
	// The answer that was held back arrives now, and is not taken for this one's.
	before := time.Now()
	if c := renew(); c.Err != nil || c.From.Before(before) {
		t.Errorf("after silence: %+v", c)
	}
	px.Reset()
	eventually(t, soon, "renewed after a reset", func() bool { return renew().Err == nil })
}

// A waiter that is cut off while the lock is released, and while the history
// with the release in it is compacted, gets the lock when it is connected again,
// though it would look by itself only after 20 s.
func TestWatchIsInterrupted(t *testing.T) {
	r, p, px := proxied(t)
	g := p.take(request("a", long))
	held := make(chan error, 1)
	req := request("b", long)
	req.Gone = func(err error) { held <- err }
	r.take(req)
	w := await(t, r.queue(request("a", long)))
	waiting(t, w)
	eventually(t, soon, "both names are watched", func() bool {
		r.hub.mu.Lock()
		defer r.hub.mu.Unlock()
		return len(r.hub.names) == 2 && r.hub.names[r.dir("b")].live
	})
	px.Refuse()
	px.Reset()
	p.release(g.Lease)
	p.remove(p.entry("b", r.lease(long).id, req.Owner))
	resp, err := p.cli.Put(bounded(t), p.prefix+"version", layoutVersion)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.cli.Compact(bounded(t), resp.Header.Revision); err != nil {
		t.Fatal(err)
	}
	waiting(t, w)
	px.Heal()
	granted(t, w, 2*soon)
	select {
	case <-held:
	case <-time.After(2 * soon):
		t.Error("the holder of the key that was deleted meanwhile is not told")
	}
}

// The predecessor's key is deleted after the transaction or the read that showed
// it, and before the waiter knows that answer. The waiter would look by itself
// only after 20 s.
func TestPredecessorGoneBeforeTheAnswer(t *testing.T) {
	for _, warm := range []bool{false, true} {
		for _, method := range []string{"Txn", "Range"} {
			t.Run(fmt.Sprintf("%s/warm=%t", method, warm), func(t *testing.T) {
				r := newRig(t)
				p := r.peer()
				p.release(p.take(request("other", long)).Lease)
				if warm {
					g := p.take(request("a", long))
					w := await(t, r.queue(request("a", long)))
					waiting(t, w)
					p.release(g.Lease)
					r.release(granted(t, w, soon).Lease)
				}
				g := p.take(request("a", long))
				var middle driver.Ticket
				if method == "Range" { // a place in the middle, given up, makes the waiter read
					middle = p.queue(request("a", long))
				}
				armed := make(chan struct{})
				r.tap.set(func(m string, req any) fault {
					if m != method || method == "Txn" && !isAcquire(req) {
						return fault{}
					}
					select {
					case <-armed:
					default:
						if method == "Range" {
							return fault{}
						}
					}
					r.tap.hook = nil
					return fault{kind: slowReply, between: func() {
						p.release(g.Lease)
						time.Sleep(50 * time.Millisecond) // the watch tells of it meanwhile
					}}
				})
				w := await(t, r.queue(request("a", long)))
				if method == "Range" {
					waiting(t, w)
					close(armed)
					if err := middle.Leave(bounded(t)); err != nil {
						t.Fatal(err)
					}
				}
				granted(t, w, soon)
			})
		}
	}
}

// Time counts from before the request is sent, however late the reply comes.
func TestFromIsBeforeTheRequest(t *testing.T) {
	r, _, px := proxied(t)
	const delay = 100 * time.Millisecond // each way
	check := func(what string, began, from time.Time) {
		t.Helper()
		if took := time.Since(began); took < 2*delay || from.Before(began) || from.Sub(began) >= delay {
			t.Errorf("%s took %v and counts from %v after its start", what, took, from.Sub(began))
		}
	}
	if err := r.probe(bounded(t)); err != nil { // connected
		t.Fatal(err)
	}
	px.Delay(delay)
	began := time.Now()
	g := r.take(request("a", long))
	check("a grant", began, g.From)
	for range 2 { // opens the stream, and uses it again
		began = time.Now()
		c := g.Lease.Keeper().Renew(bounded(t), nil)[0]
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		check("a keepalive", began, c.From)
	}
}

// The lease ends while its waiter is cut off: when the lock is released the
// waiter does not take itself for the first.
func TestLeaseEndsWhileWaiting(t *testing.T) {
	for what, cut := range map[string]func(*faultproxy.Proxy){
		"silence":       func(px *faultproxy.Proxy) { px.Cut() },                // the watch tells of it afterwards
		"no connection": func(px *faultproxy.Proxy) { px.Refuse(); px.Reset() }, // it does not
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, p, px := proxied(t)
			g := p.take(request("a", long))
			w := await(t, r.queue(request("a", short)))
			waiting(t, w)
			cut(px)
			eventually(t, 10*time.Second, "the waiter's lease has ended", func() bool { return len(p.entries("a")) == 1 })
			p.release(g.Lease)
			h := p.take(request("a", long))
			px.Heal()
			select {
			case res := <-w:
				wantErr(t, "Wait", res.err, driver.ErrNotHeld)
			case <-time.After(2 * soon):
				t.Fatal("still waiting")
			}
			p.release(h.Lease)
		})
	}
}

// A connection that goes silent ends no wait by itself and hangs none beyond its ctx.
func TestSilenceWhileWaiting(t *testing.T) {
	r, p, px := proxied(t)
	g := p.take(request("a", long))
	tk := r.queue(request("a", long))
	px.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	p.release(g.Lease)
	began := time.Now()
	_, err := tk.Wait(ctx)
	wantErr(t, "Wait", err, context.DeadlineExceeded)
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("ended after %v", d)
	}
	px.Heal()
	granted(t, await(t, tk), soon) // the place is still there
}

// A watch stream that has gone silent while everything else works is replaced
// before the waiter would look by itself.
func TestMuteWatchIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	g := p.take(request("a", long))
	r.tap.mute.Store(true)
	w := await(t, r.queue(request("a", long)))
	waiting(t, w)
	r.tap.mute.Store(false)
	p.release(g.Lease)
	began := time.Now()
	granted(t, w, long/3)
	if d := time.Since(began); d > 3*pulse {
		t.Errorf("granted after %v", d)
	}
}

// With all servers gone every call ends with its ctx.
func TestServerGone(t *testing.T) {
	t.Parallel()
	c := testbed.Etcd(t, 1, testbed.Own())
	s := c.Servers()[0]
	r := newRigOn(t, c.Addrs(), "test/")
	g := r.take(request("a", long))
	p := r.peer()
	w := await(t, p.queue(request("a", long)))
	waiting(t, w)
	s.Pause(t) // connections stay, nobody answers
	eventually(t, soon, "the signal has arrived", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := p.Capabilities(ctx)
		return err != nil
	})
	timed := func(what string, f func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := f(ctx)
		if !strings.Contains(fmt.Sprint(err), c.Addrs()[0]) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the address and the reason in it", what, err)
		}
		if d := time.Since(began); err == nil || d > 2*time.Second {
			t.Errorf("%s: %v after %v", what, err, d)
		}
	}
	timed("Acquire", func(ctx context.Context) error { _, err := r.Acquire(ctx, request("b", long)); return err })
	timed("Enqueue", func(ctx context.Context) error { _, err := r.Enqueue(ctx, request("b", long)); return err })
	timed("Acquire with a new lease", func(ctx context.Context) error {
		_, err := r.Acquire(ctx, request("b", long+time.Second))
		return err
	})
	timed("Capabilities", func(ctx context.Context) error { _, err := r.Capabilities(ctx); return err })
	timed("Renew", func(ctx context.Context) error { return g.Lease.Keeper().Renew(ctx, nil)[0].Err })
	timed("Release", g.Lease.Release)
	timed("Retire", r.lease(long).Retire)
	timed("Close", p.Close)
	select {
	case res := <-w:
		wantErr(t, "Wait after Close", res.err, driver.ErrNotHeld)
	case <-time.After(soon):
		t.Error("still waiting after Close")
	}
	if err := p.hub.close(bounded(t)); err != nil {
		t.Errorf("the watch's goroutines run after Close: %v", err)
	}
	s.Resume(t)
}

// What a member cut off from the others is asked fails in time, and a client
// that knows the others goes on with them. Then the leader dies, then the quorum.
func TestClusterFaults(t *testing.T) {
	t.Parallel()
	c := testbed.Etcd(t, 3, testbed.Own())
	const ttl = 10 * time.Second
	r := newRigOn(t, c.Addrs(), "test/")
	p := r.peer()
	// confirm renews as the core would: again and again until the deadline.
	confirm := func(what string, k driver.Keeper) {
		t.Helper()
		deadline := time.Now().Add(ttl)
		for {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			cf := k.Renew(ctx, nil)[0]
			cancel()
			if cf.Err == nil {
				return
			}
			if errors.Is(cf.Err, driver.ErrNotHeld) || time.Now().After(deadline) {
				t.Fatalf("%s: not renewed: %v", what, cf.Err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	handOver := func(what string, fault func()) {
		t.Helper()
		g := r.take(request(what, ttl))
		tk := p.queue(request(what, ttl))
		w := await(t, tk)
		waiting(t, w)
		fault()
		confirm(what, g.Lease.Keeper())
		confirm(what, tk.Keeper())
		eventually(t, ttl, "released", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return g.Lease.Release(ctx) == nil
		})
		h := granted(t, w, ttl) // at the latest by the floor
		if h.Number <= g.Number {
			t.Errorf("%s: numbers %d, %d", what, g.Number, h.Number)
		}
		eventually(t, ttl, "released", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return h.Lease.Release(ctx) == nil
		})
	}

	leader := c.Leader(t)
	var follower *testbed.Server
	for _, s := range c.Servers() {
		if s != leader {
			follower = s
		}
	}
	pinned := newRigOn(t, []string{follower.Addr()}, "test/")
	g := pinned.take(request("pinned", ttl))
	tk := pinned.queue(request("pinned", ttl))
	heal := c.Cut(t, follower)
	eventually(t, ttl, "the member knows that it has no leader", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return g.Lease.Keeper().Renew(ctx, nil)[0].Err != nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	began := time.Now()
	if _, err := pinned.Acquire(ctx, request("b", ttl)); err == nil || time.Since(began) > 2*time.Second {
		t.Errorf("a member without a leader: %v after %v", err, time.Since(began))
	}
	if _, err := tk.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait on a member without a leader: %v", err)
	}
	cancel()
	handOver("isolated", func() {})
	heal()

	handOver("leader killed", func() { c.Leader(t).Kill(t) })
}

// After the death of a holder and a change of the leader, which gives the lease
// its full time again, the next gets the lock without an error.
func TestLeaderChangeExtendsADeadHoldersLease(t *testing.T) {
	t.Parallel()
	c := testbed.Etcd(t, 3, testbed.Own())
	const ttl = 4 * time.Second
	r := newRigOn(t, c.Addrs(), "test/")
	r.take(request("a", ttl)) // and never renewed
	p := r.peer()
	tk := p.queue(request("a", long))
	w := await(t, tk)
	time.Sleep(ttl / 2)
	c.Leader(t).Kill(t)
	g := granted(t, w, 2*ttl+long/3)
	if d := time.Since(g.From); d > long {
		t.Errorf("the waiter's own lease is %v old", d)
	}
}

func TestPermanentErrors(t *testing.T) {
	t.Parallel()
	c := testbed.Etcd(t, 1, testbed.Own())
	root := connect(t, c.Addrs(), nil)
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(root.RoleAdd(ctx, "root"))
	must(root.UserAdd(ctx, "root", "pw"))
	must(root.UserGrantRole(ctx, "root", "root"))
	must(root.UserAdd(ctx, "weak", "pw"))
	must(root.RoleAdd(ctx, "locks"))
	must(root.RoleGrantPermission(ctx, "locks", "good/", clientv3.GetPrefixRangeEnd("good/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(root.UserGrantRole(ctx, "weak", "locks"))
	must(root.AuthEnable(ctx))

	as := func(user, prefix string) *rig {
		tp := &tap{}
		r := &rig{t: t, tap: tp, cli: connect(t, c.Addrs(), tp, func(cfg *clientv3.Config) {
			if user != "" {
				cfg.Username, cfg.Password = user, "pw"
			}
		})}
		var err error
		if r.backend, err = newBackend(r.cli, &Options{Prefix: prefix}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close(context.WithoutCancel(ctx)) })
		return r
	}
	for what, r := range map[string]*rig{"no user": as("", "good/"), "no permission": as("weak", "bad/")} {
		var fatal *driver.PermanentError
		if _, err := r.Capabilities(bounded(t)); !errors.As(err, &fatal) {
			t.Errorf("%s: Capabilities: %v", what, err)
		} else {
			t.Logf("%s: %v", what, err)
		}
		req := request("a", long)
		if _, err := r.Acquire(bounded(t), req); !errors.As(err, &fatal) {
			t.Errorf("%s: Acquire: %v", what, err)
		}
		// Refused means not sent: there is nothing to undo.
		if err := r.Abandon(bounded(t), req); err != nil {
			t.Errorf("%s: Abandon: %v", what, err)
		}
	}
	r, p := as("weak", "good/"), as("root", "good/")
	if _, err := r.Capabilities(bounded(t)); err != nil {
		t.Fatal(err)
	}
	g := p.take(request("a", long))
	w := await(t, r.queue(request("a", long)))
	waiting(t, w)
	p.release(g.Lease)
	h := granted(t, w, soon)
	if c := h.Lease.Keeper().Renew(bounded(t), nil)[0]; c.Err != nil {
		t.Error(c.Err)
	}
	r.release(h.Lease)
}

func TestClientClosedByItsOwner(t *testing.T) {
	r := newRig(t)
	_ = r.cli.Close()
	var fatal *driver.PermanentError
	if _, err := r.Acquire(bounded(t), request("a", long)); !errors.As(err, &fatal) {
		t.Errorf("Acquire: %v", err)
	}
}

// oldServer answers as an etcd does that is too old. It is a fake, since no such
// server is at hand.
type oldServer struct {
	etcdserverpb.UnimplementedMaintenanceServer
}

func (*oldServer) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Version: "3.5.12"}, nil
}

func TestOldServerIsNamed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(s, &oldServer{})
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(s.Stop)
	r := newRigOn(t, []string{ln.Addr().String()}, "x/")
	_, err = r.Capabilities(bounded(t))
	var fatal *driver.PermanentError
	if !errors.As(err, &fatal) || !strings.Contains(err.Error(), "3.5.12") {
		t.Errorf("%v", err)
	}
	// And what is no etcd at all.
	if _, err := r.Acquire(bounded(t), request("a", long)); !errors.As(err, &fatal) {
		t.Errorf("Acquire: %v", err)
	}
}

// Contenders with leases of their own, whose requests and replies get lost or
// come late, whose waits end at random: never two holders, numbers rise from
// holder to holder, and nothing is left.
func TestRandomFaults(t *testing.T) {
	r := newRig(t)
	var inside, violations, grants, abandons atomic.Int64
	var last atomic.Uint64
	var lost sync.Map
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	persist := func(f func(context.Context) error) {
		for range 100 {
			err := f(t.Context())
			if err == nil {
				return
			}
			if errors.Is(err, driver.ErrNotHeld) {
				t.Errorf("undoing: %v", err)
				return
			}
		}
		t.Error("undoing: no success in 100 attempts")
	}
	use := func(l driver.Lease, number uint64) {
		if inside.Add(1) != 1 || last.Swap(number) >= number {
			violations.Add(1)
		}
		grants.Add(1)
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		inside.Add(-1)
		persist(l.Release)
	}
	contend := func(b *rig) {
		for ctx.Err() == nil {
			req := request("a", long)
			req.Gone = func(err error) { lost.Store(req.Owner, err) }
			undo := func() {
				abandons.Add(1)
				persist(func(ctx context.Context) error { return b.Abandon(ctx, req) })
			}
			actx, acancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20)+1)*time.Millisecond)
			if rand.IntN(4) == 0 {
				g, err := b.Acquire(actx, req)
				if err == nil {
					use(g.Lease, g.Number)
				} else if !errors.Is(err, driver.ErrHeld) {
					undo()
				}
				acancel()
				continue
			}
			tk, err := b.Enqueue(actx, req)
			if err != nil && actx.Err() == nil && rand.IntN(2) == 0 {
				tk, err = b.Enqueue(actx, req) // the same once more
			}
			if err != nil {
				undo()
				acancel()
				continue
			}
			g, err := tk.Wait(actx)
			acancel()
			if err == nil {
				use(g.Lease, g.Number)
				continue
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait: %v", err)
			}
			persist(tk.Leave)
		}
	}
	beside := neighbour("a")
	disturb := func(b *rig) { // moves the abort key that "a" has too
		for ctx.Err() == nil {
			req := request(beside, long)
			actx, acancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(5)+1)*time.Millisecond)
			if g, err := b.Acquire(actx, req); err == nil {
				persist(g.Lease.Release)
			} else if !errors.Is(err, driver.ErrHeld) {
				persist(func(ctx context.Context) error { return b.Abandon(ctx, req) })
			}
			acancel()
		}
	}
	var wg sync.WaitGroup
	rigs := []*rig{r, r.peer(), r.peer(), r.peer()}
	for _, b := range rigs {
		b.tap.set(func(method string, req any) fault {
			if method != "Txn" || ctx.Err() != nil {
				return fault{}
			}
			switch rand.IntN(12) {
			case 0:
				return fault{kind: loseRequest}
			case 1:
				return fault{kind: loseReply}
			case 2:
				if isAcquire(req) {
					arrive := make(chan struct{})
					time.AfterFunc(time.Duration(rand.IntN(100))*time.Millisecond, func() { close(arrive) })
					return fault{kind: lateRequest, wait: arrive, done: make(chan struct{})}
				}
			}
			return fault{}
		})
		for range 2 {
			wg.Go(func() { contend(b) })
		}
		wg.Go(func() { disturb(b) })
	}
	wg.Wait()
	for _, b := range rigs {
		b.tap.late.Wait()
	}
	lost.Range(func(owner, err any) bool {
		t.Errorf("owner %v was told %v", owner, err)
		return true
	})
	t.Logf("%d grants, %d abandoned", grants.Load(), abandons.Load())
	if v := violations.Load(); v > 0 || grants.Load() == 0 || abandons.Load() == 0 {
		t.Errorf("%d violations in %d grants, %d abandoned", v, grants.Load(), abandons.Load())
	}
	for _, name := range []string{"a", beside} {
		if keys := r.entries(name); len(keys) > 0 {
			t.Errorf("left: %v", slices.Sorted(slices.Values(keys)))
		}
	}
	for _, b := range rigs {
		if n := len(b.lease(long).owners); n != 0 {
			t.Errorf("%d owners are remembered", n)
		}
	}
}

// BenchmarkHandover: eight contenders, each with a lease and a connection of its
// own, pass one lock around.
func BenchmarkHandover(b *testing.B) {
	r := newRig(b)
	rigs := []*rig{r}
	for len(rigs) < 8 {
		rigs = append(rigs, r.peer())
	}
	for _, c := range rigs { // leases and connections are there
		c.release(c.take(request("warm-up", long)).Lease)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, c := range rigs {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				tk, err := c.Enqueue(b.Context(), request("a", long))
				if err != nil {
					b.Error(err)
					return
				}
				g, err := tk.Wait(b.Context())
				if err != nil {
					b.Error(err)
					return
				}
				if err := g.Lease.Release(b.Context()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "hand-overs/s")
}

func BenchmarkCycle(b *testing.B) {
	r := newRig(b)
	r.release(r.take(request("a", long)).Lease)
	for b.Loop() {
		r.release(r.take(request("a", long)).Lease)
	}
}

func BenchmarkKeepalive(b *testing.B) {
	r := newRig(b)
	k := r.take(request("a", long)).Lease.Keeper()
	for _, once := range []bool{false, true} {
		b.Run(map[bool]string{false: "stream=kept", true: "stream=each"}[once], func(b *testing.B) {
			for b.Loop() {
				var err error
				if once {
					_, err = r.cli.KeepAliveOnce(b.Context(), clientv3.LeaseID(r.lease(long).id))
				} else {
					err = k.Renew(b.Context(), nil)[0].Err
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
