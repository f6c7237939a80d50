package redlockbackend

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestQuorum(t *testing.T) {
	for n, want := range []int{1, 1, 2, 2, 3, 3, 4, 4} {
		if got := quorum(n); got != want {
			t.Errorf("quorum(%d) = %d, want %d", n, got, want)
		}
	}
	for n := 1; n < 100; n++ {
		if 2*quorum(n) <= n || 2*(quorum(n)-1) > n {
			t.Errorf("quorum(%d) = %d is not the smallest majority", n, quorum(n))
		}
	}
}

func TestValidity(t *testing.T) {
	for _, c := range []struct{ ttl, elapsed, beforeDrift, want time.Duration }{
		// Five nodes, four of which answered, one after the other: 64 ms.
		{30 * time.Second, 64 * time.Millisecond, 29936 * time.Millisecond, 29634 * time.Millisecond},
		// The drift is taken off, never added.
		{time.Second, 100 * time.Millisecond, 900 * time.Millisecond, 888 * time.Millisecond},
		{time.Second, 988 * time.Millisecond, 12 * time.Millisecond, 0},
		{time.Second, 2 * time.Second, -time.Second, -1012 * time.Millisecond},
	} {
		if got := c.ttl - c.elapsed; got != c.beforeDrift {
			t.Errorf("ttl %v − elapsed %v = %v, want %v", c.ttl, c.elapsed, got, c.beforeDrift)
		}
		if got := validity(c.ttl, c.elapsed); got != c.want {
			t.Errorf("validity(%v, %v) = %v, want %v", c.ttl, c.elapsed, got, c.want)
		}
	}
}

func TestValidityProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := time.Duration(rapid.Int64Range(int64(minTTL), int64(maxTTL)).Draw(t, "ttl"))
		elapsed := time.Duration(rapid.Int64Range(0, int64(2*maxTTL)).Draw(t, "elapsed"))
		v := validity(ttl, elapsed)
		if v+elapsed+drift(ttl) != ttl {
			t.Fatalf("validity %v + elapsed %v + drift %v != ttl %v", v, elapsed, drift(ttl), ttl)
		}
		if v >= ttl-elapsed {
			t.Fatalf("validity %v is not shorter than what is left, %v", v, ttl-elapsed)
		}
	})
}
