package redlockbackend

import (
	"testing"
	"time"

	"example.com/distlock/internal/testbed"
)

func (r *rig) listen(name string) <-chan struct{} {
	r.t.Helper()
	hint, stop, err := r.Hints(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(stop)
	return hint
}

func wantHint(t testing.TB, hint <-chan struct{}) {
	t.Helper()
	select {
	case <-hint:
	case <-time.After(10 * time.Second):
		t.Fatal("no hint came")
	}
}

// wantNone checks that no hint for a came by the time that one for another name,
// caused later, has come.
func wantNone(t testing.TB, hint <-chan struct{}, why string) {
	t.Helper()
	select {
	case <-hint:
		t.Errorf("a hint came, but %s", why)
	default:
	}
}

func TestHints(t *testing.T) {
	r := nodes(t, 5)
	name := testbed.Name(t)
	hint := r.peer().listen(name)
	sibling := r.peer().listen(name + "-other")

	req := request(name)
	g := r.must(req)
	eventually(t, "all nodes have it", func() bool { return r.count(name, "") == 5 })
	r.release(g.Lease)
	wantHint(t, hint)

	// A release that only two nodes make frees no majority.
	for i := range 3 {
		r.occupy(i, name)
	}
	r.held(request(name)) // takes two nodes, and gives them back
	eventually(t, "the refused attempt is undone", func() bool { return r.count(name, "") == 3 })
	g = r.must(request(name + "-other"))
	r.release(g.Lease)
	wantHint(t, sibling)
	wantNone(t, hint, "only two nodes published")
}

// Undoing a failed attempt that had a majority wakes those it turned away.
func TestHintOfAbandon(t *testing.T) {
	r := nodes(t, 3)
	name := testbed.Name(t)
	hint := r.peer().listen(name)
	req := request(name)
	r.must(req)
	if err := r.Abandon(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	wantHint(t, hint)
}

// With a minority that cannot be heard hints go on; after a broken connection the
// waiters try, since they may have missed some.
func TestHintsSurvive(t *testing.T) {
	r, ps := proxied(t, 5, &Options{NodeTimeout: 200 * time.Millisecond})
	name := testbed.Name(t)
	ps[0].Refuse()
	ps[1].Cut()
	hint := r.listen(name)
	other := nodes(t, 5) // reaches all nodes
	other.layout = r.layout
	g := other.must(request(name))
	eventually(t, "all nodes have it", func() bool { return r.count(name, "") == 5 })
	other.release(g.Lease)
	wantHint(t, hint)

	ps[2].Reset()
	wantHint(t, hint)
}

// With a majority silent, Hints returns after the node timeout, and what it
// returned works when they are back.
func TestHintsWithoutMajority(t *testing.T) {
	r, ps := proxied(t, 3, &Options{NodeTimeout: 50 * time.Millisecond})
	ps[0].Refuse()
	ps[1].Refuse()
	hint := r.listen(testbed.Name(t))
	wantNone(t, hint, "nobody can be heard")
	ps[0].Heal()
	ps[1].Heal()
	wantHint(t, hint)
}

// Channels that nobody waits on are given up after a while.
func TestHintsLeave(t *testing.T) {
	t.Parallel()
	r := nodes(t, 3)
	name := testbed.Name(t)
	_, stop, err := r.Hints(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	subscribers := func() int64 {
		return r.raw[0].PubSubNumSub(t.Context(), r.layout.Hints(name)).Val()[r.layout.Hints(name)]
	}
	eventually(t, "the node has a subscriber", func() bool { return subscribers() == 1 })
	stop()
	stop()
	hint := r.listen(name) // meanwhile the channel is still there
	g := r.must(request(name))
	r.release(g.Lease)
	wantHint(t, hint)
	r.hints.mu.Lock()
	for _, ch := range r.hints.channels {
		clear(ch.waiters)
		ch.left = time.Now().Add(-2 * linger)
	}
	r.hints.mu.Unlock()
	eventually(t, "the node has no subscriber", func() bool { return subscribers() == 0 })
}
