package distlock

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"time"
	"unicode/utf8"

	"example.com/distlock/driver"
)

const (
	defaultTTL            = 30 * time.Second
	defaultReleaseTimeout = 5 * time.Second
	maxTryTimeout         = 5 * time.Second
	maxNameBytes          = 512
	maxMetadataBytes      = 1024
)

// config is what New was told. Its lockConfig holds the defaults of calls.
type config struct {
	lockConfig
	renewEvery     time.Duration // 0: TTL/3
	margin         time.Duration // 0: only the least, see marginFor
	releaseTimeout time.Duration
	tryTimeout     time.Duration // 0: min(TTL/3, 5 s)
	backoff        Backoff
	logger         *slog.Logger
	observer       Observer
	errs           []error
}

// lockConfig is what one call was told.
type lockConfig struct {
	ttl       time.Duration
	fixed     time.Duration // 0: renewed
	maxHold   time.Duration // 0: no limit
	metadata  string
	reentrant bool
	errs      []error
}

// Option configures a Locker.
type Option interface{ applyClient(*config) }

// LockOption configures one call of Lock or TryLock.
type LockOption interface{ applyLock(*lockConfig) }

// CommonOption may be given to New as a default and to Lock to override it.
type CommonOption interface {
	Option
	LockOption
}

type clientOption func(*config)

func (o clientOption) applyClient(c *config) { o(c) }

type lockOption func(*lockConfig)

func (o lockOption) applyLock(c *lockConfig) { o(c) }

type commonOption struct{ lockOption }

func (o commonOption) applyClient(c *config) { o.lockOption(&c.lockConfig) }

// Backoff returns the pause before poll n (from 0) of a contended lock, where
// the backend is polled. It is called by many goroutines at once.
type Backoff func(n int) time.Duration

// defaultBackoff doubles from 4 ms to 200 ms and takes a random part of the
// upper half, so that pollers that met once do not meet again.
func defaultBackoff(n int) time.Duration {
	d := 200 * time.Millisecond
	if n < 6 {
		d = min(d, 4*time.Millisecond<<n)
	}
	return d/2 + rand.N(d/2)
}

// WithTTL sets how long the lease lasts at the server when nothing renews it,
// and so the longest time for which a crashed holder blocks others. It is rounded
// up to the backend's quantum. Where one session carries all locks (ZooKeeper) it
// is the session timeout that New asks for, and the same for all calls; the
// server may answer with another, which then counts. The default is 30 s.
func WithTTL(d time.Duration) CommonOption {
	return commonOption{func(c *lockConfig) {
		c.ttl = d
		if d <= 0 {
			c.errs = append(c.errs, invalid("TTL", "must be positive, got %v", d))
		}
	}}
}

// WithRenewEvery sets the pause between renewals. It must be shorter than the
// TTL less the safety margin. The default is a third of the TTL.
func WithRenewEvery(d time.Duration) Option {
	return clientOption(func(c *config) {
		c.renewEvery = d
		c.positive("RenewEvery", d)
	})
}

// WithSafetyMargin sets how long before the lease's end at the server a holder
// counts as having lost it. It pays for clocks that run at different rates. What
// is less than the default is raised to it. The default is a hundredth of the
// TTL and 2 ms.
func WithSafetyMargin(d time.Duration) Option {
	return clientOption(func(c *config) {
		c.margin = d
		c.positive("SafetyMargin", d)
	})
}

// WithReleaseTimeout bounds the attempt that Unlock waits for, and Close as a
// whole. The default is 5 s.
func WithReleaseTimeout(d time.Duration) Option {
	return clientOption(func(c *config) {
		c.releaseTimeout = d
		c.positive("ReleaseTimeout", d)
	})
}

// WithTryTimeout bounds one attempt at the server: all of TryLock, and each
// attempt of Lock. The default is a third of the TTL, at most 5 s.
func WithTryTimeout(d time.Duration) Option {
	return clientOption(func(c *config) {
		c.tryTimeout = d
		c.positive("TryTimeout", d)
	})
}

// WithBackoff sets the pauses between polls, where a backend is polled. The
// default doubles from 4 ms to 200 ms, with jitter.
func WithBackoff(b Backoff) Option {
	return clientOption(func(c *config) {
		c.backoff = b
		if b == nil {
			c.errs = append(c.errs, invalid("Backoff", "must not be nil"))
		}
	})
}

// WithLogger sets where events are logged: at level Warn losses, failed renewals,
// unconfirmed releases, and calls that failed or wait because of the server; at
// level Debug all others. The default, and nil, is nowhere.
func WithLogger(l *slog.Logger) Option {
	return clientOption(func(c *config) { c.logger = l })
}

// WithObserver sets who is told of every event. The default, and nil, is nobody.
func WithObserver(o Observer) Option {
	return clientOption(func(c *config) { c.observer = o })
}

// WithFixedLease takes the lock for ttl and does not renew it: when that is
// over, the lock is lost with reason Expired. [Lock.Renew] starts the time anew.
//
// Where each lock has a lease of its own (Redis, Redlock, memory), ttl takes the
// place of WithTTL's: the server keeps the lock for ttl, also after a crash, and
// the holder has ttl less the safety margin. Where a session carries the locks
// (ZooKeeper, etcd), the session is renewed as ever, this process counts ttl from
// Lock's return, and after a crash the session's TTL decides, which may be
// shorter. The default is a lease that is renewed.
func WithFixedLease(ttl time.Duration) LockOption {
	return lockOption(func(c *lockConfig) {
		c.fixed = ttl
		if ttl <= 0 {
			c.errs = append(c.errs, invalid("FixedLease", "must be positive, got %v", ttl))
		}
	})
}

// WithMaxHold ends a holding that lasts longer than d: it is lost with reason
// MaxHold and released. The default is no limit.
func WithMaxHold(d time.Duration) CommonOption {
	return commonOption{func(c *lockConfig) {
		c.maxHold = d
		if d <= 0 {
			c.errs = append(c.errs, invalid("MaxHold", "must be positive, got %v", d))
		}
	}}
}

// WithMetadata stores s, valid UTF-8 of at most 1024 bytes, beside the lock for
// people who look for its holder. The default is the host's name and the
// process id.
func WithMetadata(s string) LockOption {
	return lockOption(func(c *lockConfig) {
		c.metadata = s
		if len(s) > maxMetadataBytes || !utf8.ValidString(s) {
			c.errs = append(c.errs, invalid("Metadata", "must be valid UTF-8 of at most %d bytes", maxMetadataBytes))
		}
	})
}

// Reentrant lets a call whose context already holds the lock return a second
// handle on the same holding, with the same token; the last Unlock releases it.
// The default is an error that matches ErrDeadlock and ErrHeld.
func Reentrant() LockOption {
	return lockOption(func(c *lockConfig) { c.reentrant = true })
}

func (c *config) positive(field string, d time.Duration) {
	if d <= 0 {
		c.errs = append(c.errs, invalid(field, "must be positive, got %v", d))
	}
}

func newConfig(opts []Option) (config, error) {
	c := config{
		lockConfig:     lockConfig{ttl: defaultTTL, metadata: defaultMetadata()},
		releaseTimeout: defaultReleaseTimeout,
		backoff:        defaultBackoff,
	}
	for _, o := range opts {
		if o == nil {
			return c, invalid("Option", "must not be nil")
		}
		o.applyClient(&c)
	}
	return c, errors.Join(append(c.errs, c.lockConfig.errs...)...)
}

func (c *config) forCall(opts []LockOption) (lockConfig, error) {
	lc := c.lockConfig
	for _, o := range opts {
		if o == nil {
			return lc, invalid("LockOption", "must not be nil")
		}
		o.applyLock(&lc)
	}
	return lc, errors.Join(lc.errs...)
}

// marginFor is taken off a lease of ttl to allow for the drift of clocks: the
// allowance that the Redlock article uses, unless the option says more.
func (c *config) marginFor(ttl time.Duration) time.Duration {
	return max(c.margin, ttl/100+2*time.Millisecond)
}

func (c *config) tryTimeoutFor(ttl time.Duration) time.Duration {
	if c.tryTimeout > 0 {
		return c.tryTimeout
	}
	return min(ttl/3, maxTryTimeout)
}

// leaseFor is the TTL to ask the server for, checked against what it can do.
func (c *config) leaseFor(lc lockConfig, caps driver.Capabilities) (time.Duration, error) {
	field, ttl := "TTL", lc.ttl
	if lc.fixed > 0 && !caps.SharedFate {
		field, ttl = "FixedLease", lc.fixed
	}
	if !caps.LockTTL && ttl != c.ttl {
		return 0, fmt.Errorf("%w: %s of %v per call: one session with a TTL of %v, set by New, carries all locks on %s",
			ErrUnsupported, field, ttl, c.ttl, caps.Backend)
	}
	if ttl < caps.MinTTL {
		return 0, invalid(field, "must be at least %v on %s, got %v", caps.MinTTL, caps.Backend, ttl)
	}
	if caps.MaxTTL > 0 && ttl > caps.MaxTTL {
		return 0, invalid(field, "must be at most %v on %s, got %v", caps.MaxTTL, caps.Backend, ttl)
	}
	if q := caps.TTLQuantum; q > 1 && ttl%q != 0 {
		if ttl > math.MaxInt64-q {
			return 0, invalid(field, "must be at most %v, got %v", math.MaxInt64-q, ttl)
		}
		ttl += q - ttl%q
	}
	if span := ttl - c.marginFor(ttl); span <= 0 {
		return 0, invalid(field, "must be longer than the safety margin of %v, got %v", c.marginFor(ttl), ttl)
	} else if c.renewEvery >= span {
		return 0, invalid("RenewEvery", "must be shorter than the %s less the safety margin, %v, got %v", field, span, c.renewEvery)
	}
	return ttl, nil
}

func checkName(field, name string) error {
	switch {
	case name == "":
		return invalid(field, "must not be empty")
	case len(name) > maxNameBytes:
		return invalid(field, "must have at most %d bytes, got %d", maxNameBytes, len(name))
	case !utf8.ValidString(name):
		return invalid(field, "must be valid UTF-8, got %q", name)
	}
	return nil
}

func defaultMetadata() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("host=%s pid=%d", host, os.Getpid())
}
