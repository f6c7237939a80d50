package redisbackend

import (
	"fmt"
	"time"

	"example.com/distlock/internal/redisnode"
)

// Permanent (Lock returns at once): wrong or missing credentials, a missing
// permission, scripts that are not there, keys that hold foreign data, a server
// that the probe refuses, a client that its owner closed. Everything else is
// transient (Lock goes on, renewals are tried again): broken connections and
// timeouts, and READONLY, LOADING, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, MOVED, ASK,
// BUSY, OOM, MISCONF, which failovers, resharding and operators pass through.
func classify(err error) error { return redisnode.Classify(err) }

// errUnacked is an acquire or renewal that too few replicas confirmed.
type errUnacked struct {
	got, want int
	within    time.Duration
}

func (e *errUnacked) Error() string {
	return fmt.Sprintf("%d of %d replicas confirmed the write within %v", e.got, e.want, e.within)
}
