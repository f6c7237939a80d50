package zkbackend

import (
	"context"
	"errors"
	"testing"
	"time"

	"example.com/distlock/driver"
)

func TestAcquireAndRelease(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	d, rival := newTestBackend(t, root, addr), newTestBackend(t, root, addr)
	c := admin(t, addr)

	if _, err := d.Capabilities(soon(t)); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	g := mustAcquire(t, d, request("a", longTTL))
	if g.Number == 0 || g.TTL != longTTL || g.From.Before(before) || g.From.After(time.Now()) {
		t.Errorf("grant %+v", g)
	}
	mustBeHeld(t, rival, request("a", longTTL))
	if n := len(entries(t, c, d, "a")); n != 1 {
		t.Errorf("%d entries after a failed try", n)
	}
	mustRelease(t, g.Lease)
	if err := g.Lease.Release(soon(t)); err != nil {
		t.Errorf("repeated Release: %v", err)
	}
	mustBeEmpty(t, c, d, "a")

	g2 := mustAcquire(t, rival, request("a", longTTL))
	if g2.Number <= g.Number {
		t.Errorf("number %d after %d", g2.Number, g.Number)
	}
	if err := g.Lease.Release(soon(t)); errors.Is(err, driver.ErrHeld) {
		t.Error(err)
	}
	mustBeHeld(t, d, request("a", longTTL))
	mustRelease(t, g2.Lease)
}

func TestAcquireAgainWithTheSameOwner(t *testing.T) {
	addr := single(t)
	d := newTestBackend(t, testRoot(t), addr)
	req := request("a", longTTL)
	g := mustAcquire(t, d, req)
	again := mustAcquire(t, d, req)
	if again.Number != g.Number || again.Lease.Keeper() != g.Lease.Keeper() {
		t.Errorf("granted %+v, then %+v", g, again)
	}
	if err := d.Abandon(soon(t), req); err != nil {
		t.Fatal(err)
	}
	mustBeEmpty(t, admin(t, addr), d, "a")
}

func TestQueue(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	const n = 8
	var tickets []driver.Ticket
	for range n {
		tickets = append(tickets, mustEnqueue(t, newTestBackend(t, root, addr), request("a", longTTL)))
	}
	var waits []<-chan waited
	for _, tk := range tickets {
		waits = append(waits, waiting(t, soon(t), tk))
	}
	var last uint64
	for i, w := range waits {
		r := <-w
		if r.err != nil {
			t.Fatalf("%d: %v", i, r.err)
		}
		if r.g.Number <= last {
			t.Errorf("%d: number %d after %d", i, r.g.Number, last)
		}
		last = r.g.Number
		for j := i + 1; j < n; j++ {
			select {
			case r := <-waits[j]:
				t.Fatalf("%d was granted while %d held: %+v", j, i, r)
			default:
			}
		}
		mustRelease(t, r.g.Lease)
	}
}

// A waiter that gives up leaves nothing, and does not hold up who is behind it.
func TestLeave(t *testing.T) {
	addr := single(t)
	root := testRoot(t)
	a, b, c := newTestBackend(t, root, addr), newTestBackend(t, root, addr), newTestBackend(t, root, addr)
	g := mustAcquire(t, a, request("a", longTTL))
	tb := mustEnqueue(t, b, request("a", longTTL))
	tc := mustEnqueue(t, c, request("a", longTTL))

	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("enough"))
	defer cancel()
	if _, err := tb.Wait(ctx); err == nil || err.Error() != "enough" {
		t.Fatalf("Wait: %v, want the context's cause", err)
	}
	w := waiting(t, soon(t), tc)
	if err := tb.Leave(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := tb.Leave(soon(t)); err != nil {
		t.Errorf("repeated Leave: %v", err)
	}
	if _, err := tb.Wait(soon(t)); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Wait after Leave: %v", err)
	}
	mustRelease(t, g.Lease)
	r := <-w
	if r.err != nil {
		t.Fatal(r.err)
	}
	if err := tc.Leave(soon(t)); err != nil { // granted: gives the lock up
		t.Fatal(err)
	}
	mustBeEmpty(t, admin(t, addr), a, "a")
}
