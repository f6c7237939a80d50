package distlock

import (
	"log/slog"
	"time"
)

type (
	config     struct{}
	lockConfig struct{}
)

// Option configures a Locker, LockOption one call; a CommonOption may be given
// to New as a default and to Lock to override it.
type (
	Option       interface{ applyClient(*config) }
	LockOption   interface{ applyLock(*lockConfig) }
	CommonOption interface {
		Option
		LockOption
	}
)

// Backoff returns the pause before poll n (from 0) of a contended lock.
type Backoff func(n int) time.Duration

func WithTTL(d time.Duration) CommonOption        { panic("sketch") } // default 30 s
func WithRenewEvery(d time.Duration) Option       { panic("sketch") } // default TTL/3
func WithSafetyMargin(d time.Duration) Option     { panic("sketch") } // default TTL/100 + 2 ms
func WithReleaseTimeout(d time.Duration) Option   { panic("sketch") } // default 5 s
func WithTryTimeout(d time.Duration) Option       { panic("sketch") } // default min(TTL/3, 5 s)
func WithBackoff(b Backoff) Option                { panic("sketch") }
func WithLogger(l *slog.Logger) Option            { panic("sketch") } // default none
func WithObserver(o Observer) Option              { panic("sketch") } // default none
func WithFixedLease(ttl time.Duration) LockOption { panic("sketch") } // no renewal
func WithMaxHold(d time.Duration) CommonOption    { panic("sketch") } // default no limit
func WithMetadata(s string) LockOption            { panic("sketch") } // default host, pid
func Reentrant() LockOption                       { panic("sketch") }
