package membackend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"example.com/distlock"
	"example.com/distlock/driver"
	"example.com/distlock/membackend"
)

const ttl = 3 * time.Second

var bg = context.Background()

func newDriver(t *testing.T, s *membackend.Store, o *membackend.Options) driver.Driver {
	t.Helper()
	d, err := membackend.NewDriver(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(bg); err != nil {
			t.Error(err)
		}
	})
	return d
}

func strictStore(t *testing.T) *membackend.Store {
	return membackend.NewStore(membackend.Strict(func(v string) { t.Error("contract broken:", v) }))
}

var owners int

func request(name string) driver.Request {
	owners++
	return driver.Request{Name: name, Owner: fmt.Sprintf("owner-%d", owners), TTL: ttl}
}

func acquire(t *testing.T, d driver.Driver, name string) driver.Grant {
	t.Helper()
	g, err := d.Acquire(bg, request(name))
	if err != nil {
		t.Fatalf("Acquire(%q): %v", name, err)
	}
	return g
}

func enqueue(t *testing.T, d driver.Driver, name string) driver.Ticket {
	t.Helper()
	tk, err := d.(driver.Queuer).Enqueue(bg, request(name))
	if err != nil {
		t.Fatalf("Enqueue(%q): %v", name, err)
	}
	return tk
}

func taken(t *testing.T, d driver.Driver, name string) *driver.HeldError {
	t.Helper()
	g, err := d.Acquire(bg, request(name))
	var he *driver.HeldError
	if !errors.As(err, &he) || !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire(%q) = %v, %v; want a HeldError", name, g.Number, err)
	}
	return he
}

func release(t *testing.T, g driver.Grant) {
	t.Helper()
	if err := g.Lease.Release(bg); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func renew(k driver.Keeper, ks ...driver.Kept) []error {
	var errs []error
	for _, c := range k.Renew(bg, ks) {
		errs = append(errs, c.Err)
	}
	return errs
}

func empty(t *testing.T, s *membackend.Store) {
	t.Helper()
	if left := s.Leftovers(); len(left) > 0 {
		t.Errorf("left at the Store: %q", left)
	}
}

func want(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("error %v, want %v", got, want)
	}
}

func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

func TestOptionsAreChecked(t *testing.T) {
	s := membackend.NewStore()
	for name, o := range map[string]*membackend.Options{
		"negative RenewWithin":        {RenewWithin: -1},
		"negative MinTTL":             {MinTTL: -1},
		"negative MaxTTL":             {MaxTTL: -1},
		"negative TTLQuantum":         {TTLQuantum: -1},
		"MaxTTL below MinTTL":         {MaxTTL: 1},
		"SingleTTL without its needs": {SingleTTL: true},
	} {
		if _, err := membackend.NewDriver(s, o); !errors.Is(err, distlock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := membackend.New(nil, nil); !errors.Is(err, distlock.ErrInvalid) {
		t.Errorf("nil Store: %v, want ErrInvalid", err)
	}
	if n := s.Requests(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestCapabilitiesFollowOptions(t *testing.T) {
	s := membackend.NewStore()
	for _, c := range []struct {
		o    membackend.Options
		want driver.Capabilities
	}{
		{membackend.Options{}, driver.Capabilities{FIFO: true, LockTTL: true, Push: true}},
		{membackend.Options{Quiet: true}, driver.Capabilities{FIFO: true, LockTTL: true, Push: true}},
		{membackend.Options{Polling: true}, driver.Capabilities{LockTTL: true, Push: true}},
		{membackend.Options{Polling: true, Quiet: true}, driver.Capabilities{LockTTL: true}},
		{membackend.Options{SharedFate: true}, driver.Capabilities{FIFO: true, SharedFate: true, LockTTL: true, Push: true}},
		{membackend.Options{SharedFate: true, SingleTTL: true}, driver.Capabilities{FIFO: true, SharedFate: true, Push: true}},
	} {
		d := newDriver(t, s, &c.o)
		c.want.Backend, c.want.Fencing, c.want.NumberKind = "memory", true, "counter"
		c.want.MinTTL, c.want.TTLQuantum = 10*time.Millisecond, time.Millisecond
		if got, err := d.Capabilities(bg); err != nil || got != c.want {
			t.Errorf("%+v:\n got %+v, %v\nwant %+v", c.o, got, err, c.want)
		}
		_, queuer := d.(driver.Queuer)
		_, hinter := d.(driver.Hinter)
		if queuer != c.want.FIFO || hinter != (c.o.Polling && c.want.Push) {
			t.Errorf("%+v: Queuer %v, Hinter %v", c.o, queuer, hinter)
		}
	}
}

func TestDeadContextSendsNothing(t *testing.T) {
	s := strictStore(t)
	d := newDriver(t, s, nil)
	g := acquire(t, d, "n")
	n := s.Requests()
	ctx, cancel := context.WithCancelCause(bg)
	cause := errors.New("cause")
	cancel(cause)
	caps, err := d.Capabilities(ctx)
	if want(t, err, cause); caps.Backend != "memory" || !caps.LockTTL {
		t.Errorf("what needs no server: %+v", caps)
	}
	_, err = d.Acquire(ctx, request("m"))
	want(t, err, cause)
	want(t, g.Lease.Keeper().Renew(ctx, []driver.Kept{g.Lease})[0].Err, cause)
	want(t, g.Lease.Release(ctx), cause)
	if s.Requests() != n {
		t.Error("something was sent")
	}
}

func TestLeaseEndsExactlyAtItsTTL(t *testing.T) {
	for name, o := range map[string]membackend.Options{"own TTL": {}, "session": {SharedFate: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := strictStore(t)
				a, b := newDriver(t, s, &o), newDriver(t, s, &o)
				start := time.Now()
				g := acquire(t, a, "n")
				if g.From != start || g.TTL != ttl {
					t.Errorf("From %v, TTL %v", g.From.Sub(start), g.TTL)
				}
				time.Sleep(ttl - 1)
				if he := taken(t, b, "n"); he.Remaining != 1 {
					t.Errorf("remaining %v, want 1ns", he.Remaining)
				}
				time.Sleep(time.Nanosecond)
				g2 := acquire(t, b, "n")
				if g2.Number <= g.Number {
					t.Errorf("number %d after %d", g2.Number, g.Number)
				}
				want(t, renew(g.Lease.Keeper(), g.Lease)[0], driver.ErrNotHeld)
				want(t, g.Lease.Release(bg), driver.ErrNotHeld)
				if !s.Inspect("n").Held {
					t.Error("a stale release freed the lock of another")
				}
				release(t, g2)
			})
		})
	}
}

func TestRenewalStartsTheCountdownAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		a, b := newDriver(t, s, nil), newDriver(t, s, nil)
		g := acquire(t, a, "n")
		time.Sleep(2 * time.Second)
		sent := time.Now()
		if c := g.Lease.Keeper().Renew(bg, []driver.Kept{g.Lease})[0]; c.Err != nil || c.From != sent || c.TTL != ttl {
			t.Errorf("Confirm %+v", c)
		}
		time.Sleep(ttl - 1)
		taken(t, b, "n")
		time.Sleep(time.Nanosecond)
		release(t, acquire(t, b, "n"))
		empty(t, s)
	})
}

func TestQueueServesInOrderOfArrival(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, nil)
		poller := newDriver(t, s, &membackend.Options{Polling: true})
		g := acquire(t, d, "n")
		tickets := []driver.Ticket{enqueue(t, d, "n"), enqueue(t, d, "n"), enqueue(t, d, "n"), enqueue(t, d, "n")}
		if err := tickets[1].Leave(bg); err != nil {
			t.Fatal(err)
		}
		_, err := tickets[1].Wait(bg)
		want(t, err, driver.ErrNotHeld)
		if w := taken(t, poller, "n").Waiters; w != 3 {
			t.Errorf("%d waiters, want 3", w)
		}
		last := g
		for _, i := range []int{0, 2, 3} {
			release(t, last)
			taken(t, poller, "n") // the queue goes before those who poll
			g, err := tickets[i].Wait(bg)
			if err != nil || g.Number <= last.Number {
				t.Fatalf("ticket %d: number %d after %d, %v", i, g.Number, last.Number, err)
			}
			last = g
		}
		release(t, last)
		empty(t, s)
	})
}

func TestPlaceInQueueLapsesUnlessRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, nil)
		g := acquire(t, d, "n")
		dead, silent, live := enqueue(t, d, "n"), enqueue(t, d, "n"), enqueue(t, d, "n")
		k := g.Lease.Keeper()
		if k != live.Keeper() {
			t.Error("a ticket and a lease of one Locker have different Keepers")
		}
		var sent time.Time
		for range 3 {
			time.Sleep(2 * time.Second)
			sent = time.Now()
			if errs := renew(k, g.Lease, live); errs[0] != nil || errs[1] != nil {
				t.Fatal(errs)
			}
		}
		want(t, renew(k, dead)[0], driver.ErrNotHeld)
		time.Sleep(time.Second)
		release(t, g)
		start := time.Now()
		g2, err := live.Wait(bg)
		if err != nil || time.Since(start) != 0 {
			t.Fatalf("%v after %v: the dead are served first", err, time.Since(start))
		}
		if g2.From != sent {
			t.Errorf("From is %v after the last answer about the place, want 0", g2.From.Sub(sent))
		}
		for _, tk := range []driver.Ticket{dead, silent} {
			_, err = tk.Wait(bg)
			want(t, err, driver.ErrNotHeld)
		}
		release(t, g2)
		empty(t, s)
	})
}

func TestWaitEndsWithItsContextAndKeepsThePlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, nil)
		g := acquire(t, d, "n")
		tk := enqueue(t, d, "n")
		cause := errors.New("cause")
		ctx, cancel := context.WithTimeoutCause(bg, time.Second, cause)
		defer cancel()
		_, err := tk.Wait(ctx)
		want(t, err, cause)
		release(t, g)
		g, err = tk.Wait(bg)
		if err != nil {
			t.Fatal(err)
		}
		if err := tk.Leave(bg); err != nil { // a Leave gives up the lock, too
			t.Fatal(err)
		}
		want(t, g.Lease.Release(bg), driver.ErrNotHeld)
		empty(t, s)
	})
}

func TestSameOwnerIsGrantedAgainWithItsFullTTL(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, nil)
		req := request("n")
		g, err := d.Acquire(bg, req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		again, err := d.Acquire(bg, req)
		if err != nil || again.Number != g.Number || again.From != g.From.Add(time.Second) {
			t.Errorf("%+v, %v", again, err)
		}
		if r := s.Inspect("n").Remaining; r != ttl {
			t.Errorf("%v remain, want %v", r, ttl)
		}
		release(t, again)
		want(t, g.Lease.Release(bg), driver.ErrNotHeld)
	})
}

func TestNumbersGrowWhateverEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := membackend.NewStore(membackend.FirstNumber(1000))
		var last uint64 = 999
		for i, o := range []membackend.Options{{}, {SharedFate: true}, {Polling: true}, {Quiet: true}} {
			o.Name = "a"
			for j, end := range []func(driver.Driver, driver.Grant){
				func(_ driver.Driver, g driver.Grant) { release(t, g) },
				func(driver.Driver, driver.Grant) { time.Sleep(ttl) },
				func(driver.Driver, driver.Grant) { s.Expire("n") },
				func(driver.Driver, driver.Grant) { s.ExpireAll("a") },
				func(d driver.Driver, g driver.Grant) { _ = d.(driver.Forcer).Force(bg, "n", g.Number) },
			} {
				d := newDriver(t, s, &o)
				g := acquire(t, d, "n")
				if g.Number != last+1 {
					t.Errorf("%d.%d: number %d after %d", i, j, g.Number, last)
				}
				last = g.Number
				end(d, g)
			}
		}
	})
}

func TestAbandonRefusesWhatIsStillOnItsWay(t *testing.T) {
	for _, kind := range []membackend.Kind{membackend.Late, membackend.HangRequest} {
		bubble(t, func(t *testing.T) {
			s := strictStore(t)
			d := newDriver(t, s, nil)
			f := s.Inject(membackend.Fault{Op: membackend.Acquire, Kind: kind})
			req := request("n")
			done := make(chan error, 1)
			go func() { _, err := d.Acquire(bg, req); done <- err }()
			<-f.Reached()
			if err := d.Abandon(bg, req); err != nil {
				t.Fatal(err)
			}
			f.Resume()
			if err := <-done; err == nil {
				t.Error("an abandoned attempt was granted")
			}
			empty(t, s)
		})
	}
}

func TestAbandonUndoesWhatWasApplied(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, nil)
		s.Inject(membackend.Fault{Op: membackend.Acquire, Kind: membackend.LoseReply})
		s.Inject(membackend.Fault{Op: membackend.Enqueue, Kind: membackend.LoseReply})
		first, second := request("n"), request("n")
		_, err := d.Acquire(bg, first)
		want(t, err, membackend.ErrInjected)
		_, err = d.(driver.Queuer).Enqueue(bg, second)
		want(t, err, membackend.ErrInjected)
		if info := s.Inspect("n"); info.Owner != first.Owner || len(info.Waiters) != 1 {
			t.Errorf("%+v", info)
		}
		for _, r := range []driver.Request{first, second, second} {
			want(t, d.Abandon(bg, r), nil)
		}
		empty(t, s)
	})
}

func TestReleaseIsRepeatableAfterALostReply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, nil)
		g := acquire(t, d, "n")
		s.Inject(membackend.Fault{Op: membackend.Release, Kind: membackend.LoseReply})
		want(t, g.Lease.Release(bg), membackend.ErrInjected)
		if err := g.Lease.Release(bg); err != nil {
			t.Errorf("repeated: %v", err)
		}
		want(t, g.Lease.Release(bg), driver.ErrNotHeld)
	})
}

func TestLateReleaseFreesNobodyElse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		a, b := newDriver(t, s, nil), newDriver(t, s, nil)
		g := acquire(t, a, "n")
		f := s.Inject(membackend.Fault{Op: membackend.Release, Kind: membackend.Late})
		want(t, g.Lease.Release(bg), membackend.ErrInjected)
		time.Sleep(ttl)
		g2 := acquire(t, b, "n")
		f.Resume()
		if err := g2.Lease.Release(bg); err != nil {
			t.Error(err)
		}
	})
}

func TestSharedFate(t *testing.T) {
	shared := &membackend.Options{Name: "a", SharedFate: true}
	t.Run("one renewal keeps all, an acquire none", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := strictStore(t)
			d := newDriver(t, s, shared)
			start := time.Now()
			g1 := acquire(t, d, "1")
			time.Sleep(2 * time.Second)
			g2 := acquire(t, d, "2")
			if g1.Lease.Keeper() != g2.Lease.Keeper() || g2.From != start {
				t.Errorf("From is %v after the session's start", g2.From.Sub(start))
			}
			if he := taken(t, d, "2"); he.Remaining != time.Second || he.Keeper != g1.Lease.Keeper() {
				t.Errorf("HeldError %+v", he)
			}
			k := g1.Lease.Keeper()
			if c := k.Renew(bg, nil); len(c) != 1 || c[0].Err != nil || c[0].From != time.Now() || c[0].TTL != ttl {
				t.Errorf("Renew(nil) = %+v", c)
			}
			time.Sleep(ttl - 1)
			if g3 := acquire(t, d, "3"); g3.From != start.Add(2*time.Second) {
				t.Errorf("From is %v after the session's start", g3.From.Sub(start))
			}
			time.Sleep(time.Nanosecond)
			empty(t, s)
			for _, err := range renew(k, g1.Lease, g2.Lease) {
				want(t, err, driver.ErrNotHeld)
			}
		})
	})
	t.Run("one session for each TTL", func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, shared)
		long := request("long")
		long.TTL = time.Hour
		g, err := d.Acquire(bg, long)
		if err != nil || g.TTL != time.Hour || g.Lease.Keeper() == acquire(t, d, "short").Lease.Keeper() {
			t.Errorf("%+v, %v", g, err)
		}
	})
	t.Run("a key is lost alone", func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, shared)
		g1, g2 := acquire(t, d, "1"), acquire(t, d, "2")
		if !s.Expire("1") {
			t.Error("nothing to expire")
		}
		errs := renew(g1.Lease.Keeper(), g1.Lease, g2.Lease)
		want(t, errs[0], driver.ErrNotHeld)
		want(t, errs[1], nil)
	})
	t.Run("a retired session is gone", func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, shared)
		g := acquire(t, d, "1")
		tk := enqueue(t, d, "1")
		k := g.Lease.Keeper()
		if err := k.Retire(bg); err != nil {
			t.Fatal(err)
		}
		empty(t, s)
		_, err := tk.Wait(bg)
		for _, err := range append(renew(k), err, g.Lease.Release(bg), tk.Leave(bg)) {
			want(t, err, driver.ErrNotHeld)
		}
		if acquire(t, d, "1").Lease.Keeper() == k {
			t.Error("granted on a retired session")
		}
	})
	t.Run("a session retired out of reach lives for its TTL", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := strictStore(t)
			a, b := newDriver(t, s, shared), newDriver(t, s, nil)
			g := acquire(t, a, "1")
			heal := s.Partition("a")
			defer heal()
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			want(t, g.Lease.Keeper().Retire(ctx), context.DeadlineExceeded)
			n := s.Requests()
			want(t, renew(g.Lease.Keeper())[0], driver.ErrNotHeld)
			want(t, g.Lease.Release(bg), driver.ErrNotHeld)
			if s.Requests() != n {
				t.Error("something was sent for a retired session")
			}
			taken(t, b, "1")
			time.Sleep(2 * time.Second)
			release(t, acquire(t, b, "1"))
			heal()
		})
	})
	t.Run("Close ends it", func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, shared)
		acquire(t, d, "1")
		if err := d.Close(bg); err != nil {
			t.Fatal(err)
		}
		empty(t, s)
	})
}

func TestGoneTellsALossOnceAndNeverARelease(t *testing.T) {
	for _, c := range []struct {
		what string
		o    membackend.Options
		end  func(*membackend.Store, driver.Driver, driver.Grant)
		want int
	}{
		{"removed", membackend.Options{}, func(s *membackend.Store, _ driver.Driver, _ driver.Grant) { s.Expire("n") }, 1},
		{"expired", membackend.Options{}, func(*membackend.Store, driver.Driver, driver.Grant) { time.Sleep(ttl) }, 1},
		{"session expired", membackend.Options{SharedFate: true}, func(*membackend.Store, driver.Driver, driver.Grant) { time.Sleep(ttl) }, 1},
		{"session ended", membackend.Options{Name: "a", SharedFate: true}, func(s *membackend.Store, _ driver.Driver, _ driver.Grant) { s.ExpireAll("a") }, 1},
		{"quiet", membackend.Options{Quiet: true}, func(s *membackend.Store, _ driver.Driver, _ driver.Grant) { s.Expire("n") }, 0},
		{"released", membackend.Options{}, func(_ *membackend.Store, _ driver.Driver, g driver.Grant) { _ = g.Lease.Release(bg) }, 0},
		{"retired", membackend.Options{SharedFate: true}, func(_ *membackend.Store, _ driver.Driver, g driver.Grant) { _ = g.Lease.Keeper().Retire(bg) }, 0},
		{"forced", membackend.Options{}, func(_ *membackend.Store, d driver.Driver, _ driver.Grant) {
			_ = d.(driver.Forcer).Force(bg, "n", 0)
		}, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := strictStore(t)
				d := newDriver(t, s, &c.o)
				n := 0
				req := request("n")
				req.Gone = func(reason error) {
					if n++; reason == nil {
						t.Error("no reason")
					}
				}
				g, err := d.Acquire(bg, req)
				if err != nil {
					t.Fatal(err)
				}
				c.end(s, d, g)
				synctest.Wait()
				s.Expire("n")
				if n != c.want {
					t.Errorf("told %d times, want %d", n, c.want)
				}
			})
		})
	}
}

func TestPartitionHoldsRequestsAndNewsBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		a := newDriver(t, s, &membackend.Options{Name: "a", Polling: true})
		b := newDriver(t, s, &membackend.Options{Name: "b"})
		gone := make(chan error, 1)
		req := request("n")
		req.Gone = func(err error) { gone <- err }
		g, err := a.Acquire(bg, req)
		if err != nil {
			t.Fatal(err)
		}
		hints, stop, err := a.(driver.Hinter).Hints(bg, "n")
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		heal := s.Partition("a")
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		for _, c := range g.Lease.Keeper().Renew(ctx, []driver.Kept{g.Lease}) {
			want(t, c.Err, context.DeadlineExceeded)
		}
		late := make(chan error, 1)
		go func() { late <- renew(g.Lease.Keeper(), g.Lease)[0] }()
		time.Sleep(2 * time.Second)
		release(t, acquire(t, b, "n"))
		synctest.Wait()
		if len(gone) != 0 || len(late) != 0 || len(hints) != 0 {
			t.Error("something got through")
		}
		heal()
		heal()
		synctest.Wait()
		if len(gone) != 1 || len(hints) != 1 {
			t.Error("news was lost")
		}
		want(t, <-late, driver.ErrNotHeld)
	})
}

func TestHintsTellOfEveryEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := strictStore(t)
		d := newDriver(t, s, &membackend.Options{Polling: true})
		hints, stop, err := d.(driver.Hinter).Hints(bg, "n")
		if err != nil {
			t.Fatal(err)
		}
		hinted := func() bool {
			synctest.Wait()
			select {
			case <-hints:
				return true
			default:
				return false
			}
		}
		release(t, acquire(t, d, "n"))
		if !hinted() {
			t.Error("no hint of a release")
		}
		acquire(t, d, "n")
		time.Sleep(ttl)
		if !hinted() {
			t.Error("no hint of an expiry")
		}
		release(t, acquire(t, d, "other"))
		if hinted() {
			t.Error("hint of another lock")
		}
		stop()
		stop()
		release(t, acquire(t, d, "n"))
		if hinted() {
			t.Error("hint after stop")
		}
	})
}

func TestInspectAndForce(t *testing.T) {
	s := strictStore(t)
	d := newDriver(t, s, nil)
	i, f := d.(driver.Inspector), d.(driver.Forcer)
	if info, err := i.Inspect(bg, "n"); err != nil || info.Held {
		t.Errorf("%+v, %v", info, err)
	}
	want(t, f.Force(bg, "n", 0), driver.ErrNotHeld)
	req := request("n")
	req.Metadata = "who"
	g, err := d.Acquire(bg, req)
	want(t, err, nil)
	waiter := request("n")
	_, err = d.(driver.Queuer).Enqueue(bg, waiter)
	want(t, err, nil)
	info, err := i.Inspect(bg, "n")
	if err != nil || !info.Held || info.Owner != req.Owner || info.Metadata != "who" || info.Number != g.Number ||
		info.Since.IsZero() || info.Remaining <= 0 || !slices.Equal(info.Waiters, []string{waiter.Owner}) {
		t.Errorf("%+v, %v", info, err)
	}
	want(t, f.Force(bg, "n", g.Number+1), driver.ErrNotHeld)
	want(t, f.Force(bg, "n", g.Number), nil)
	if info := s.Inspect("n"); info.Owner != waiter.Owner {
		t.Errorf("%+v: the next in the queue has it now", info)
	}
	s.Inject(membackend.Fault{Op: membackend.Inspect, Kind: membackend.FailBefore})
	_, err = i.Inspect(bg, "n")
	want(t, err, membackend.ErrInjected)
}

func TestFaultKinds(t *testing.T) {
	const delay = time.Second
	boom := errors.New("boom")
	for _, c := range []struct {
		f       membackend.Fault
		err     error         // of an Acquire with 500 ms of patience
		took    time.Duration // by it
		applied time.Duration // after its start; -1 never
	}{
		{membackend.Fault{Kind: membackend.FailBefore, Err: boom}, boom, 0, -1},
		{membackend.Fault{Kind: membackend.LoseReply}, membackend.ErrInjected, 0, 0},
		{membackend.Fault{Kind: membackend.Late, Delay: delay}, membackend.ErrInjected, 0, delay},
		{membackend.Fault{Kind: membackend.HangRequest, Delay: delay}, nil, delay, delay},
		{membackend.Fault{Kind: membackend.HangReply, Delay: delay}, nil, delay, 0},
		{membackend.Fault{Kind: membackend.SlowRequest, Delay: delay}, context.DeadlineExceeded, delay / 2, -1},
		{membackend.Fault{Kind: membackend.SlowReply, Delay: delay}, context.DeadlineExceeded, delay / 2, 0},
		{membackend.Fault{Kind: membackend.SlowRequest, Delay: delay / 4}, nil, delay / 4, delay / 4},
		{membackend.Fault{Kind: membackend.SlowReply, Delay: delay / 4}, nil, delay / 4, 0},
	} {
		t.Run(fmt.Sprint(c.f.Kind, c.f.Delay), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := strictStore(t)
				d := newDriver(t, s, nil)
				c.f.Op = membackend.Acquire
				f := s.Inject(c.f)
				ctx, cancel := context.WithTimeout(bg, delay/2)
				defer cancel()
				start := time.Now()
				_, err := d.Acquire(ctx, request("n"))
				want(t, err, c.err)
				if took := time.Since(start); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				time.Sleep(2*delay - time.Since(start))
				applied := time.Duration(-1)
				if i := s.Inspect("n"); i.Held {
					applied = i.Since.Sub(start)
				}
				if applied != c.applied {
					t.Errorf("applied at %v, want %v", applied, c.applied)
				}
				if f.Hits() != 1 || s.Requests(membackend.Acquire) != 1 || s.Requests() != 1 {
					t.Errorf("%d hits, %d requests", f.Hits(), s.Requests())
				}
			})
		})
	}
}

func TestFaultChoosesItsRequests(t *testing.T) {
	s := strictStore(t)
	a, b := newDriver(t, s, &membackend.Options{Name: "a"}), newDriver(t, s, &membackend.Options{Name: "b"})
	f := s.Inject(membackend.Fault{Op: membackend.Acquire, Locker: "a", Lock: "x", Skip: 1, Times: 2, Kind: membackend.FailBefore})
	all := s.Inject(membackend.Fault{Op: membackend.Abandon, Times: -1, Kind: membackend.FailBefore})
	var got []bool
	for _, c := range []struct {
		d    driver.Driver
		name string
	}{{b, "x"}, {a, "y"}, {a, "x"}, {a, "x"}, {b, "x"}, {a, "x"}, {a, "x"}} {
		_, err := c.d.Acquire(bg, request(c.name))
		got = append(got, errors.Is(err, membackend.ErrInjected))
		want(t, c.d.Abandon(bg, request(c.name)), membackend.ErrInjected)
	}
	if w := []bool{false, false, false, true, false, true, false}; !slices.Equal(got, w) || f.Hits() != 2 {
		t.Errorf("hit %v, want %v", got, w)
	}
	all.Remove()
	want(t, a.Abandon(bg, request("x")), nil)

	g1, g2 := acquire(t, a, "1"), acquire(t, a, "2")
	k := g1.Lease.Keeper()
	s.Inject(membackend.Fault{Op: membackend.Renew, Lock: "2", Kind: membackend.FailBefore})
	if errs := renew(k, g1.Lease, g2.Lease); errs[0] != nil || !errors.Is(errs[1], membackend.ErrInjected) {
		t.Errorf("only one renewal should fail: %v", errs)
	}
	s.Inject(membackend.Fault{Op: membackend.Renew, Kind: membackend.LoseReply})
	for _, err := range renew(k, g1.Lease, g2.Lease) {
		want(t, err, membackend.ErrInjected)
	}
}

func TestLateRenewalStillExtends(t *testing.T) {
	for _, lock := range []string{"", "n"} {
		bubble(t, func(t *testing.T) {
			s := strictStore(t)
			d := newDriver(t, s, nil)
			g := acquire(t, d, "n")
			f := s.Inject(membackend.Fault{Op: membackend.Renew, Lock: lock, Kind: membackend.Late})
			want(t, renew(g.Lease.Keeper(), g.Lease)[0], membackend.ErrInjected)
			time.Sleep(2 * time.Second)
			f.Resume()
			if r := s.Inspect("n").Remaining; r != ttl {
				t.Errorf("%v remain, want %v", r, ttl)
			}
		})
	}
}

func TestStrictReportsBrokenContracts(t *testing.T) {
	var got []string
	s := membackend.NewStore(membackend.Strict(func(v string) { got = append(got, v) }))
	d := newDriver(t, s, &membackend.Options{SharedFate: true, SingleTTL: true})
	reported := func(what string, n int) {
		t.Helper()
		if len(got) != n {
			t.Errorf("%s: %d reports %q, want %d", what, len(got), got, n)
		}
		got = nil
	}
	req, held, abandoned, left := request("n"), request("n"), request("n"), request("n")
	g, _ := d.Acquire(bg, req)
	_, _ = d.Acquire(bg, held)
	_ = d.Abandon(bg, abandoned)
	tk, _ := d.(driver.Queuer).Enqueue(bg, left)
	_ = tk.Leave(bg)
	_ = g.Lease.Release(bg)
	reported("right use", 0)
	for _, r := range []driver.Request{req, held, abandoned, left} {
		_, _ = d.Acquire(bg, r)
		reported("dead owner", 1)
	}
	other := request("other")
	_, _ = d.Acquire(bg, other)
	other.Name = "another"
	_, _ = d.Acquire(bg, other)
	reported("owner of another lock", 1)
	long := request("long")
	long.TTL = time.Hour
	_, _ = d.Acquire(bg, long)
	reported("second TTL", 1)
	_ = d.Close(bg)
	_, err := d.Acquire(bg, request("n"))
	if err == nil {
		t.Error("a closed driver granted")
	}
	reported("after Close", 1)
}
