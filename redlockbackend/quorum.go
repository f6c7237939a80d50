package redlockbackend

import "time"

// quorum is how many of n nodes make a majority: any two majorities share a node.
func quorum(n int) int { return n/2 + 1 }

// drift is the allowance for clocks of nodes and client that run at different
// speeds, and for the millisecond that Redis rounds expiry by.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// validity is how long a lock taken with ttl may be used when the attempt that
// took it has lasted elapsed so far. Zero or less means that it was not taken.
func validity(ttl, elapsed time.Duration) time.Duration { return ttl - elapsed - drift(ttl) }
