package distlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// Rules of arguments: names, TTLs, options, tokens, namespaces.

func TestNamesAreAnyUTF8OfUpTo512Bytes(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		var locks []*distlock.Lock
		for _, name := range []string{
			"a", "a/b", "/", "a//b", "..", "%", "%2F", "a b", "\x00", "\n", "Ä", "日本", "🔒", strings.Repeat("x", 512), strings.Repeat("ü", 256),
		} {
			lk := e.lock(l, name)
			if lk.Name() != name {
				e.Errorf("name %q became %q", name, lk.Name())
			}
			locks = append(locks, lk)
		}
		for _, lk := range locks { // all of them are different locks
			e.held(lk)
			e.unlock(lk)
		}
		e.free()
	})
}

func TestBadNamesAreErrInvalidAndSendNothing(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		for _, name := range []string{"", strings.Repeat("x", 513), strings.Repeat("ü", 257), "\xff", "a\xc3"} {
			for _, lock := range []func() (*distlock.Lock, error){
				func() (*distlock.Lock, error) { return l.Lock(bg, name) },
				func() (*distlock.Lock, error) { return l.TryLock(bg, name) },
			} {
				_, err := lock()
				e.is(err, distlock.ErrInvalid)
				if err == nil || !strings.Contains(err.Error(), "Name") {
					e.Errorf("%q: %v does not name the field", name, err)
				}
			}
		}
		if n := e.s.Requests(); n != 0 {
			e.Errorf("%d requests", n)
		}
	})
}

func TestBadTTLsAreErrInvalidAndSendNothing(t *testing.T) {
	each(t, func(e *env) {
		e.o.MaxTTL = time.Hour
		l := e.locker("a")
		for _, d := range []time.Duration{0, -1, math.MinInt64, 1, 10*time.Millisecond - 1, time.Hour + 1, math.MaxInt64} {
			bad := map[string][]distlock.LockOption{"TTL": {distlock.WithTTL(d)}}
			if d <= 0 || !e.o.SharedFate {
				bad["FixedLease"] = []distlock.LockOption{distlock.WithFixedLease(d)}
			}
			if d <= 0 {
				bad["MaxHold"] = []distlock.LockOption{distlock.WithMaxHold(d)}
			}
			for field, opts := range bad {
				_, err := l.Lock(bg, "n", opts...)
				if e.o.SingleTTL && field == "TTL" && d > 0 {
					e.is(err, distlock.ErrUnsupported)
					continue
				}
				e.is(err, distlock.ErrInvalid)
				if err == nil || !strings.Contains(err.Error(), field) {
					e.Errorf("%v: %v does not name %s", d, err, field)
				}
			}
			o := e.o
			if _, err := membackend.New(e.s, &o, distlock.WithTTL(d)); !errors.Is(err, distlock.ErrInvalid) {
				e.Errorf("New with a TTL of %v: %v", d, err)
			}
		}
		if n := e.s.Requests(); n != 0 {
			e.Errorf("%d requests", n)
		}
		e.unlock(e.lock(l, "n"))
	})
}

func TestTTLsAreRoundedUpToTheQuantum(t *testing.T) {
	each(t, func(e *env) {
		e.o.TTLQuantum = time.Second
		for ask, want := range map[time.Duration]time.Duration{
			ttl:                                 ttl,
			ttl + 1:                             ttl + time.Second,
			ttl + time.Second - time.Nanosecond: ttl + time.Second,
		} {
			l := e.locker("a", distlock.WithTTL(ask))
			lk := e.lock(l, "n")
			if got := e.s.Inspect("n").Remaining; got != want {
				e.Errorf("%v became %v, want %v", ask, got, want)
			}
			e.unlock(lk)
			_ = l.Close()
		}
	})
}

func TestLongestTTLIsRefusedRatherThanWrappedAround(t *testing.T) {
	where(t, ownTTL, func(e *env) {
		e.o.TTLQuantum = time.Second
		l := e.locker("a")
		_, err := l.TryLock(bg, "n", distlock.WithTTL(math.MaxInt64))
		e.is(err, distlock.ErrInvalid)
		if strings.Contains(err.Error(), "-") {
			e.Errorf("wrapped around: %v", err)
		}
	})
}

func TestDefaultTTLIs30Seconds(t *testing.T) {
	each(t, func(e *env) {
		o := e.o
		l, err := membackend.New(e.s, &o)
		e.is(err, nil)
		defer l.Close()
		e.lock(l, "n")
		if got := e.s.Inspect("n").Remaining; got != 30*time.Second {
			e.Errorf("TTL %v", got)
		}
	})
}

func TestTTLOfOneCallDoesNotLeakIntoTheNext(t *testing.T) {
	where(t, func(o membackend.Options) bool { return !o.SingleTTL }, func(e *env) {
		l := e.locker("a")
		e.unlock(e.lock(l, "n", distlock.WithTTL(time.Hour), distlock.WithMaxHold(time.Second)))
		lk := e.lock(l, "n")
		if got := e.s.Inspect("n").Remaining; got != ttl {
			e.Errorf("TTL %v", got)
		}
		e.neverLost(lk, 2*time.Second)
	})
}

func TestBadOptionsAreErrInvalid(t *testing.T) {
	s := membackend.NewStore()
	for field, o := range map[string]distlock.Option{
		"TTL":            distlock.WithTTL(-1),
		"RenewEvery":     distlock.WithRenewEvery(0),
		"SafetyMargin":   distlock.WithSafetyMargin(-1),
		"ReleaseTimeout": distlock.WithReleaseTimeout(0),
		"TryTimeout":     distlock.WithTryTimeout(-1),
		"Backoff":        distlock.WithBackoff(nil),
		"MaxHold":        distlock.WithMaxHold(0),
		"Option":         nil,
	} {
		_, err := membackend.New(s, nil, o)
		if !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for what, opts := range map[string][]distlock.Option{
		"RenewEvery beyond the deadline": {distlock.WithTTL(ttl), distlock.WithRenewEvery(ttl)},
		"margin as long as the TTL":      {distlock.WithTTL(ttl), distlock.WithSafetyMargin(ttl)},
	} {
		if _, err := membackend.New(s, nil, opts...); !errors.Is(err, distlock.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := distlock.New(nil); !errors.Is(err, distlock.ErrInvalid) {
		t.Errorf("nil driver: %v", err)
	}
	bubble(t, membackend.Options{}, func(e *env) {
		l := e.locker("a")
		for what, o := range map[string]distlock.LockOption{
			"LockOption": nil,
			"Metadata":   distlock.WithMetadata("\xff"),
		} {
			_, err := l.Lock(bg, "n", o)
			if !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), what) {
				e.Errorf("%s: %v", what, err)
			}
		}
		_, err := l.Lock(bg, "n", distlock.WithMetadata(strings.Repeat("x", 1025)))
		e.is(err, distlock.ErrInvalid)
	})
}

func TestMetadataIsStoredBesideTheLock(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		e.lock(l, "n", distlock.WithMetadata("nightly report"))
		if m := e.s.Inspect("n").Metadata; m != "nightly report" {
			e.Errorf("metadata %q", m)
		}
		e.lock(l, "m")
		if m := e.s.Inspect("m").Metadata; !strings.Contains(m, "pid=") || !strings.Contains(m, "host=") {
			e.Errorf("default metadata %q", m)
		}
	})
}

func TestTokenIsTheNumberAndATurn(t *testing.T) {
	each(t, func(e *env) {
		lk := e.lock(e.locker("a"), "n")
		n := e.s.Inspect("n").Number
		if tok := lk.Token(); tok != distlock.Token(n<<5) || tok.Number() != n {
			e.Errorf("token %d of number %d", tok, n)
		}
	})
}

func TestTokensGrowFromHolderToHolder(t *testing.T) {
	each(t, func(e *env) {
		a, b := e.locker("a"), e.locker("b")
		var last distlock.Token
		for i := range 30 {
			l := []*distlock.Client{a, b}[i%2]
			lk := e.lock(l, "n")
			if lk.Token() <= last {
				e.Fatalf("token %v after %v", lk.Token(), last)
			}
			last = lk.Token()
			switch i % 3 {
			case 0:
				e.unlock(lk)
			case 1:
				e.s.Expire("n")
			case 2:
				heal := e.s.Partition(map[*distlock.Client]string{a: "a", b: "b"}[l])
				<-lk.Lost()
				time.Sleep(ttl)
				heal()
			}
		}
	})
}

func TestTokenIsADecimalStringInJSON(t *testing.T) {
	for _, tok := range []distlock.Token{0, 32, math.MaxUint64} {
		b, err := json.Marshal(tok)
		if want := `"` + tok.String() + `"`; err != nil || string(b) != want {
			t.Errorf("%s, %v; want %s", b, err, want)
		}
		var back distlock.Token
		if err := json.Unmarshal(b, &back); err != nil || back != tok {
			t.Errorf("%v came back as %v, %v", tok, back, err)
		}
	}
	for _, bad := range []string{`""`, `"-1"`, `"x"`, `"18446744073709551616"`} {
		var tok distlock.Token
		if err := json.Unmarshal([]byte(bad), &tok); err == nil {
			t.Errorf("%s was read as %v", bad, tok)
		}
	}
}

func TestNamespacesMapOneToOne(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a")
		seen := map[string]string{}
		for _, ns := range []string{"a", "a/b", "a%2Fb", "a%", "/", "%"} {
			for _, name := range []string{"c", "b/c", "/", "%"} {
				lk := e.lock(distlock.Namespaced(l, ns), name)
				pair := ns + " and " + name
				if other, ok := seen[lk.Name()]; ok {
					e.Errorf("%s meets %s", pair, other)
				}
				seen[lk.Name()] = pair
			}
		}
		if n := "a/c"; seen[n] == "" {
			e.Errorf("no lock is called %q", n)
		}
	})
}

func TestNamespacesInNamespaces(t *testing.T) {
	bubble(t, membackend.Options{}, func(e *env) {
		l := e.locker("a")
		inner := distlock.Namespaced(distlock.Namespaced(l, "a"), "b")
		lk := e.lock(inner, "c")
		_, err := l.TryLock(bg, lk.Name())
		e.is(err, distlock.ErrHeld)
		_, err = l.TryLock(lk.Context(), lk.Name())
		e.is(err, distlock.ErrDeadlock)
		e.is(inner.Close(), nil)
		e.is(lk.Err(), distlock.ErrLost)
	})
}

func TestBadNamespaceIsReportedWhenUsed(t *testing.T) {
	bubble(t, membackend.Options{}, func(e *env) {
		l := e.locker("a")
		for _, c := range []struct{ ns, name string }{
			{"", "n"}, {"\xff", "n"}, {strings.Repeat("x", 513), "n"}, {"ns", ""}, {"ns", "\xff"}, {strings.Repeat("x", 512), "n"},
		} {
			_, err := distlock.Namespaced(l, c.ns).Lock(bg, c.name)
			e.is(err, distlock.ErrInvalid)
			_, err = distlock.Namespaced(l, c.ns).TryLock(bg, c.name)
			e.is(err, distlock.ErrInvalid)
		}
		_, err := distlock.Namespaced(nil, "ns").Lock(bg, "n")
		e.is(err, distlock.ErrInvalid)
		if n := e.s.Requests(); n != 0 {
			e.Errorf("%d requests", n)
		}
	})
}

func TestErrorsReadWell(t *testing.T) {
	bubble(t, membackend.Options{}, func(e *env) {
		l, rival := e.locker("a"), e.locker("b")
		lk := e.lock(l, "n")
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		_, err := rival.Lock(ctx, "n")
		_, err2 := l.Lock(lk.Context(), "n")
		e.inject(membackend.Fault{Op: membackend.Acquire, Kind: membackend.HangRequest})
		_, err3 := rival.TryLock(bg, "m")
		for _, c := range []struct {
			err  error
			want string
		}{
			{err, `memory lock "n": context deadline exceeded while waiting: distlock: held by another owner`},
			{err2, `memory lock "n": distlock: context already holds this lock`},
			{err3, `memory trylock "m": context deadline exceeded`},
			{&distlock.LostError{Name: "n", Reason: distlock.Closed}, `distlock: lock "n" lost: closed`},
			{&distlock.LostError{Name: "n", Reason: distlock.MaxHold, Err: errors.New("boom")}, `distlock: lock "n" lost: max hold: boom`},
			{&distlock.LostError{Name: "n", Reason: 9}, `distlock: lock "n" lost: reason 9`},
		} {
			if c.err == nil || !strings.HasPrefix(c.err.Error(), c.want) {
				e.Errorf("%v\nwant %s", c.err, c.want)
			}
		}
		for kind, want := range map[distlock.EventKind]string{
			distlock.EventWaiting: "waiting", distlock.EventAcquired: "acquired", distlock.EventFailed: "failed", distlock.EventRenewed: "renewed",
			distlock.EventLost: "lost", distlock.EventReleased: "released", 99: "event 99",
		} {
			if kind.String() != want {
				e.Errorf("%v, want %s", kind, want)
			}
		}
	})
}
