package etcdbackend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"google.golang.org/grpc/connectivity"

	"example.com/distlock"
	"example.com/distlock/driver"
)

func TestNewChecksItsArguments(t *testing.T) {
	cli := connect(t, []string{"127.0.0.1:1"}, nil)
	for what, err := range map[string]error{
		"nil client":    func() error { _, err := New(nil, nil); return err }(),
		"no slash":      func() error { _, err := New(cli, &Options{Prefix: "locks"}); return err }(),
		"invalid UTF-8": func() error { _, err := New(cli, &Options{Prefix: "\xff/"}); return err }(),
		"too long a prefix": func() error {
			_, err := New(cli, &Options{Prefix: strings.Repeat("a", 512) + "/"})
			return err
		}(),
	} {
		if !errors.Is(err, distlock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
}

// The first lock on a lease costs a grant; each cycle after that one transaction
// to take the lock and one to release it, whether it is tried or waited for.
func TestUncontendedCycleIsTwoTransactions(t *testing.T) {
	r := newRig(t)
	r.release(r.take(request("a", long)).Lease)
	r.tap.reset()
	r.release(r.take(request("a", long)).Lease)
	if got := fmt.Sprint(r.tap.counts()); got != "map[Txn:2]" {
		t.Errorf("Acquire and Release sent %s", got)
	}
	r.tap.reset()
	g, err := r.queue(request("b", long)).Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.release(g.Lease)
	if got := fmt.Sprint(r.tap.counts()); got != "map[Txn:2]" {
		t.Errorf("Enqueue, Wait and Release sent %s", got)
	}
}

func TestGrantIsTheCreateRevision(t *testing.T) {
	r := newRig(t)
	before := time.Now()
	g := r.take(request("a", 24*time.Hour))
	resp, err := r.cli.Get(t.Context(), r.dir("a"), clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	kv := resp.Kvs[0]
	if uint64(kv.CreateRevision) != g.Number || string(kv.Value) != "test" {
		t.Errorf("number %d, stored %v", g.Number, kv)
	}
	if g.From.Before(before) || g.From.After(time.Now()) || g.TTL != 24*time.Hour {
		t.Errorf("from %v after the start, TTL %v", g.From.Sub(before), g.TTL)
	}
	ttl, err := r.cli.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease))
	if err != nil || ttl.GrantedTTL != 86400 {
		t.Errorf("lease %+v, %v", ttl, err)
	}
}

// The deadline counts from the lease's last confirmation, not from the acquire.
func TestFromIsTheLeasesNotTheAcquires(t *testing.T) {
	r := newRig(t)
	g := r.take(request("a", long))
	time.Sleep(50 * time.Millisecond)
	h := r.take(request("b", long))
	if !h.From.Equal(g.From) {
		t.Errorf("an acquire moved From by %v", h.From.Sub(g.From))
	}
	c := g.Lease.Keeper().Renew(t.Context(), nil)
	if len(c) != 1 || c[0].Err != nil || !c[0].From.After(g.From) || c[0].TTL != long {
		t.Fatalf("Renew: %+v", c)
	}
	if i := r.take(request("c", long)); !i.From.Equal(c[0].From) {
		t.Errorf("a grant does not count from the last confirmation")
	}
	if g.Lease.Keeper() != h.Lease.Keeper() {
		t.Error("one TTL, two leases")
	}
	if other := r.take(request("d", long+time.Second)); other.Lease.Keeper() == g.Lease.Keeper() || other.TTL != long+time.Second {
		t.Error("two TTLs, one lease")
	}
}

func TestMaxTTLIsGranted(t *testing.T) {
	r := newRig(t)
	if g := r.take(request("a", maxTTL)); g.TTL != maxTTL {
		t.Errorf("granted %v", g.TTL)
	}
	_, err := r.peer().Acquire(bounded(t), request("a", short))
	wantErr(t, "second", err, driver.ErrHeld)
}

func TestFailedTryLeavesNoTrace(t *testing.T) {
	r := newRig(t)
	p := r.peer()
	g := r.take(request("a", long))
	w := r.queue(request("a", long))
	before := r.entries("a")
	for range 3 {
		_, err := p.Acquire(bounded(t), request("a", long))
		var held *driver.HeldError
		if !errors.As(err, &held) || held.Waiters != 1 || held.Keeper != driver.Keeper(p.lease(long)) {
			t.Fatalf("%#v", err)
		}
	}
	if after := r.entries("a"); !slices.Equal(before, after) {
		t.Errorf("the queue was %v, is %v", before, after)
	}
	if n := len(p.lease(long).owners); n != 0 {
		t.Errorf("%d owners are remembered", n)
	}
	r.release(g.Lease)
	// The waiter has it now: a try does not overtake it.
	_, err := p.Acquire(bounded(t), request("a", long))
	wantErr(t, "try behind a waiter", err, driver.ErrHeld)
	if err := w.Leave(bounded(t)); err != nil {
		t.Fatal(err)
	}
	p.release(p.take(request("a", long)).Lease)
}

// Two contenders on one lease are two entries.
func TestOneLeaseTwoContenders(t *testing.T) {
	r := newRig(t)
	g := r.take(request("a", long))
	_, err := r.Acquire(bounded(t), request("a", long))
	wantErr(t, "second try", err, driver.ErrHeld)
	w := await(t, r.queue(request("a", long)))
	waiting(t, w)
	r.release(g.Lease)
	if h := granted(t, w, soon); h.Number <= g.Number {
		t.Errorf("numbers %d, %d", g.Number, h.Number)
	}
}

func TestNamesDoNotTouch(t *testing.T) {
	r := newRig(t)
	// A user's own key at the bare path of a queue is not an entry.
	bare := strings.TrimSuffix(r.dir("job"), "/")
	if _, err := r.cli.Put(t.Context(), bare, "user's"); err != nil {
		t.Fatal(err)
	}
	var grants []driver.Grant
	for _, name := range []string{"job", "job1", "job/1", "jo", "JOB", "job%2F1", ".", "..", "/", "//", "\x00", "é", "e\u0301", strings.Repeat("%", 512)} {
		grants = append(grants, r.take(request(name, long)))
	}
	for _, g := range grants {
		r.release(g.Lease)
	}
	if resp, err := r.cli.Get(t.Context(), bare); err != nil || resp.Count != 1 {
		t.Errorf("the user's key is gone: %v, %v", resp, err)
	}
}

func TestQueueIsServedInOrder(t *testing.T) {
	r := newRig(t)
	g := r.take(request("a", long))
	var ws []<-chan result
	for range 5 {
		ws = append(ws, await(t, r.peer().queue(request("a", long))))
	}
	last := g.Number
	r.release(g.Lease)
	for i, w := range ws {
		g := granted(t, w, soon)
		if g.Number <= last {
			t.Errorf("number %d after %d", g.Number, last)
		}
		last = g.Number
		for _, later := range ws[i+1:] {
			select {
			case r := <-later:
				t.Fatalf("out of order: %+v", r)
			default:
			}
		}
		r.release(g.Lease)
	}
	if left := r.entries("a"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A place given up in the middle wakes the one behind it, and does not give it
// the lock.
func TestPredecessorGoneIsNotBeingFirst(t *testing.T) {
	r := newRig(t)
	g := r.take(request("a", long))
	middle := r.queue(request("a", long))
	last := await(t, r.peer().queue(request("a", long)))
	waiting(t, last)
	if err := middle.Leave(bounded(t)); err != nil {
		t.Fatal(err)
	}
	waiting(t, last)
	r.release(g.Lease)
	granted(t, last, soon)
}

// Each way in which a holder's key goes wakes the next: long before a third of
// its TTL, after which it would look by itself.
func TestEveryKindOfRemovalWakes(t *testing.T) {
	for what, gone := range map[string]func(h *rig, key string){
		"delete": (*rig).remove,
		"guarded delete": func(h *rig, key string) {
			resp, err := h.cli.Txn(t.Context()).If(clientv3.Compare(clientv3.CreateRevision(key), ">", 0)).Then(clientv3.OpDelete(key)).Commit()
			if err != nil || !resp.Succeeded {
				t.Fatal(resp, err)
			}
		},
		"revoke": func(h *rig, _ string) { h.revokeLease(short) },
		"expiry": func(h *rig, _ string) {},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			h := r.peer()
			h.take(request("a", short))
			key := h.entries("a")[0]
			w := await(t, r.queue(request("a", long)))
			if what != "expiry" {
				waiting(t, w)
			}
			gone(h, key)
			granted(t, w, 2*soon)
		})
	}
}

func TestOwnKeyDeletedWhileWaiting(t *testing.T) {
	r := newRig(t)
	r.take(request("a", long))
	p := r.peer()
	req := request("a", long)
	w := await(t, p.queue(req))
	waiting(t, w)
	p.remove(p.entry("a", p.lease(long).id, req.Owner))
	select {
	case res := <-w:
		wantErr(t, "Wait", res.err, driver.ErrNotHeld)
	case <-time.After(soon):
		t.Fatal("still waiting")
	}
	if n := len(p.lease(long).owners); n != 0 {
		t.Errorf("%d owners are remembered", n)
	}
}

func TestOwnKeyDeletedWhileHeld(t *testing.T) {
	r := newRig(t)
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprintf("watched=%t", watched), func(t *testing.T) {
			name := fmt.Sprint("a", watched)
			var before driver.Grant
			if watched {
				before = r.take(request(name, long))
			}
			gone := make(chan error, 2)
			req := request(name, long)
			req.Gone = func(err error) { gone <- err }
			tk := r.queue(req)
			w := await(t, tk)
			if watched {
				waiting(t, w)
				r.release(before.Lease)
			}
			g := granted(t, w, soon)
			other := r.take(request("other"+name, long))
			r.remove(r.entry(name, r.lease(long).id, req.Owner))
			began := time.Now()
			select {
			case err := <-gone:
				t.Logf("told after %v: %v", time.Since(began), err)
			case <-time.After(soon):
				t.Fatal("not told")
			}
			c := g.Lease.Keeper().Renew(t.Context(), []driver.Kept{other.Lease, g.Lease})
			if c[0].Err != nil || !errors.Is(c[1].Err, driver.ErrNotHeld) {
				t.Errorf("Renew: %+v", c)
			}
			wantErr(t, "Release", g.Lease.Release(bounded(t)), driver.ErrNotHeld)
			time.Sleep(100 * time.Millisecond)
			if len(gone) != 0 {
				t.Error("told twice")
			}
		})
	}
}

// Release is no news to who releases.
func TestReleaseIsNotReportedAsGone(t *testing.T) {
	r := newRig(t)
	req := request("a", long)
	req.Gone = func(err error) { t.Errorf("Gone: %v", err) }
	g := r.take(req)
	h := r.hub
	eventually(t, soon, "the lock is watched", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		nw := h.names[r.dir("a")]
		return nw != nil && nw.live
	})
	r.release(g.Lease)
	wantErr(t, "second Release", g.Lease.Release(bounded(t)), driver.ErrNotHeld)
	r.release(r.take(request("a", long)).Lease) // its deletion passes by the same watch
}

func TestRevokedLeaseEndsEverything(t *testing.T) {
	r := newRig(t)
	gone := make(chan error, 1)
	req := request("a", long)
	req.Gone = func(err error) { gone <- err }
	g := r.take(req)
	r.peer().take(request("b", long))
	tk := r.queue(request("b", long))
	w := await(t, tk)
	waiting(t, w)
	r.revokeLease(long)
	select {
	case <-gone:
	case <-time.After(soon):
		t.Error("the holder is not told")
	}
	select {
	case res := <-w:
		wantErr(t, "Wait", res.err, driver.ErrNotHeld)
	case <-time.After(soon):
		t.Error("still waiting")
	}
	k := g.Lease.Keeper()
	for range 2 { // final, and asked of the server once only
		if c := k.Renew(bounded(t), nil); !errors.Is(c[0].Err, driver.ErrNotHeld) {
			t.Errorf("Renew: %+v", c)
		}
	}
	// The next lock has a new lease.
	if h := r.take(request("a", long)); h.Lease.Keeper() == k {
		t.Error("a grant on a lease that is gone")
	}
}

// A lease that is gone without the driver knowing costs the next attempt nothing
// but a new lease.
func TestLeaseGoneAtAcquire(t *testing.T) {
	r := newRig(t)
	r.release(r.take(request("a", long)).Lease)
	old := r.lease(long)
	r.revokeLease(long)
	if g := r.take(request("a", long)); g.Lease.Keeper() == driver.Keeper(old) {
		t.Error("a grant on a lease that is gone")
	}
	if old.err() == nil {
		t.Error("the old lease still counts")
	}
}

func TestRetire(t *testing.T) {
	r := newRig(t)
	g := r.take(request("a", long))
	r.peer().take(request("b", long))
	w := await(t, r.queue(request("b", long)))
	s := r.lease(long)
	if err := s.Retire(bounded(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case res := <-w:
		wantErr(t, "Wait", res.err, driver.ErrNotHeld)
	case <-time.After(soon):
		t.Fatal("still waiting")
	}
	r.tap.reset()
	if c := s.Renew(bounded(t), []driver.Kept{g.Lease}); !errors.Is(c[0].Err, driver.ErrNotHeld) {
		t.Errorf("Renew: %+v", c)
	}
	wantErr(t, "Release", g.Lease.Release(bounded(t)), driver.ErrNotHeld)
	if n := r.tap.counts(); len(n) > 0 {
		t.Errorf("sent after the end: %v", n)
	}
	if keys := r.entries("a"); len(keys) > 0 {
		t.Errorf("left: %v", keys)
	}
	if err := s.Retire(bounded(t)); err != nil {
		t.Errorf("second Retire: %v", err)
	}
	if g := r.take(request("a", long)); g.Lease.Keeper() == driver.Keeper(s) {
		t.Error("granted on a retired lease")
	}
}

// One release wakes one waiter, and a place given up in the middle one as well,
// whatever the number of waiters.
func TestOneReleaseWakesOne(t *testing.T) {
	r := newRig(t)
	p := r.peer()
	g := r.take(request("a", long))
	const n = 100
	var tks []driver.Ticket
	var ws []<-chan result
	for range n {
		tk := p.queue(request("a", long))
		tks, ws = append(tks, tk), append(ws, await(t, tk))
	}
	waiting(t, ws[0])
	// Those that queued before the watch was confirmed have read once more by now.
	p.tap.reset()
	if err := tks[n/2].Leave(bounded(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the next has looked", func() bool { return p.tap.counts()["Range"] > 0 })
	r.release(g.Lease)
	granted(t, ws[0], soon)
	time.Sleep(200 * time.Millisecond)
	if c := p.tap.counts(); c["Range"] != 2 || c["Txn"] != 1 {
		t.Errorf("two removals caused %v, want 2 reads beside the Txn of Leave", c)
	}
}

// A wait for a name that was waited for shortly before opens no watch, and reads
// once: when its turn has come.
func TestWatchStaysWarm(t *testing.T) {
	r := newRig(t)
	p := r.peer()
	round := func() {
		g := r.take(request("a", long))
		w := await(t, p.queue(request("a", long)))
		waiting(t, w)
		r.release(g.Lease)
		p.release(granted(t, w, soon).Lease)
	}
	round()
	p.tap.reset()
	round()
	c := p.tap.counts()
	delete(c, "send WatchRequest") // a sign of life may have been asked for
	if c["Range"] != 1 || c["Watch"] != 0 || c["Txn"] != 2 {
		t.Errorf("a wait on a warm watch sent %v", c)
	}
	// When it has been warm for long enough the watch closes, and then the stream.
	h := p.hub
	h.mu.Lock()
	for _, nw := range h.names {
		nw.until = time.Now()
	}
	h.mu.Unlock()
	poke(h.kick)
	eventually(t, 3*pulse, "the stream is closed", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.stream == nil && len(h.names) == 0
	})
	round()
}

func TestClientWithNamespaceWrappers(t *testing.T) {
	r := newRig(t)
	p := r.peer()
	p.cli.KV = namespace.NewKV(p.cli.KV, "elsewhere/")
	p.cli.Watcher = namespace.NewWatcher(p.cli.Watcher, "elsewhere/")
	p.cli.Lease = namespace.NewLease(p.cli.Lease, "elsewhere/")
	g := r.take(request("a", long))
	_, err := p.Acquire(bounded(t), request("a", long))
	wantErr(t, "second", err, driver.ErrHeld)
	w := await(t, p.queue(request("a", long)))
	waiting(t, w)
	r.release(g.Lease)
	granted(t, w, soon)
}

func TestCapabilities(t *testing.T) {
	r := newRig(t)
	for range 2 {
		c, err := r.Capabilities(bounded(t))
		if err != nil || c.Backend != "etcd" || c.MinTTL != 2*time.Second {
			t.Fatal(c, err)
		}
	}
	if _, err := r.cli.Put(t.Context(), r.version(), "2"); err != nil {
		t.Fatal(err)
	}
	_, err := r.Capabilities(bounded(t))
	var fatal *driver.PermanentError
	if !errors.As(err, &fatal) || !strings.Contains(err.Error(), `"2"`) {
		t.Errorf("another layout: %v", err)
	}
}

// New's caller learns what needs no server, and no server is asked.
func TestCapabilitiesWithoutServer(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err := r.Capabilities(ctx)
	if err == nil || c != capabilities {
		t.Errorf("%+v, %v", c, err)
	}
	if st := r.cli.ActiveConnection().GetState(); st != connectivity.Idle {
		t.Errorf("the connection is %v", st)
	}
	if n := r.tap.counts(); len(n) > 0 {
		t.Errorf("sent: %v", n)
	}
}

func TestTooOld(t *testing.T) {
	for v, want := range map[string]bool{
		"3.7.3": false, "3.6.0": false, "3.5.13": false, "3.5.12": true, "3.4.39": true,
		"2.3.8": true, "4.0.0": false, "3.6.0-rc.1": false, "unknown": false,
	} {
		if tooOld(v) != want {
			t.Errorf("tooOld(%q) = %t", v, !want)
		}
	}
}

// 100 waits that end without the lock and 100 failed tries leave one lease, and
// neither keys nor goroutines.
func TestFailuresLeaveNothing(t *testing.T) {
	r := newRig(t)
	p := r.peer()
	r.take(request("a", long))
	p.take(request("b", long)) // now p has its lease
	leases := func() int {
		resp, err := r.cli.Leases(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.Leases)
	}
	fail := func() {
		tk := p.queue(request("a", long))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := tk.Wait(ctx)
		cancel()
		wantErr(t, "Wait", err, context.DeadlineExceeded)
		if err := tk.Leave(bounded(t)); err != nil {
			t.Fatal(err)
		}
		_, err = p.Acquire(bounded(t), request("a", long))
		wantErr(t, "Acquire", err, driver.ErrHeld)
	}
	fail()
	l, n := leases(), goroutines()
	for range 100 {
		fail()
	}
	if now := leases(); now > l { // other tests' leases may have ended
		t.Errorf("%d leases, then %d", l, now)
	}
	eventually(t, soon, "goroutines are back at the baseline", func() bool { return goroutines() <= n+5 })
	if keys := r.entries("a"); len(keys) != 1 {
		t.Errorf("entries: %v", keys)
	}
	if n := len(p.lease(long).owners); n != 1 {
		t.Errorf("%d owners are remembered", n)
	}
}

func TestCloseRevokesTheLeases(t *testing.T) {
	r := newRig(t)
	p := r.peer()
	p.take(request("a", long))
	p.take(request("b", long+time.Second))
	ids := []int64{p.lease(long).id, p.lease(long + time.Second).id}
	if err := p.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if ttl, err := r.cli.TimeToLive(t.Context(), clientv3.LeaseID(id)); err != nil || ttl.TTL != -1 {
			t.Errorf("lease %x: %+v, %v", id, ttl, err)
		}
	}
	if _, err := p.Acquire(bounded(t), request("a", long)); err == nil {
		t.Error("granted after Close")
	}
	if err := p.Close(bounded(t)); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
