package redisbackend

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/internal/redisnode"
)

// Options configure New. The zero value and nil mean the defaults.
type Options struct {
	// Prefix begins every key and channel. Lockers exclude each other if they have
	// the same prefix on the same server. Valid UTF-8, 1 to 64 bytes, no braces.
	// Default "distlock".
	Prefix string

	// ReplicaAck makes a lock count only when replicas have confirmed it.
	// Default off.
	ReplicaAck ReplicaAck

	// Logger is told, once each, of server settings that endanger locks and of
	// notifications that the server refuses. Default none.
	Logger *slog.Logger
}

// ReplicaAck asks for the confirmation of N replicas within Timeout, for the
// acquire and for every renewal. An acquire that is not confirmed is undone and
// tried again; a renewal that is not confirmed does not count. It costs a round
// trip from the primary to its replicas, and the lock is not available while
// fewer than N of them answer.
//
// A replica that confirmed can still lose a failover to one that did not, so this
// makes the loss of a held lock rare where N is less than the number of replicas.
type ReplicaAck struct {
	N int // default 0: off

	// Timeout, in whole milliseconds, must be shorter than the client's
	// ReadTimeout, and should be well below a third of the TTL, which bounds one
	// attempt. Default 500 ms.
	Timeout time.Duration
}

const (
	defaultPrefix     = "distlock"
	defaultAckTimeout = 500 * time.Millisecond
)

// New returns a Locker on the server of c. It sends nothing: what is wrong with
// the server is told by the first Lock or TryLock. Close of the Locker leaves c
// open, and c must stay open until then.
//
// c's own retries are welcome: a request that the server meets twice takes the
// lock once. With ContextTimeoutEnabled set in c's options, less of a cancelled
// request stays behind.
//
// What is wrong with the arguments is an error that matches distlock.ErrInvalid.
func New(c redis.UniversalClient, o *Options, opts ...distlock.Option) (*distlock.Client, error) {
	d, err := newDriver(c, o)
	if err != nil {
		return nil, err
	}
	return distlock.New(d, opts...)
}

func newDriver(c redis.UniversalClient, o *Options) (*redisDriver, error) {
	var opt Options
	if o != nil {
		opt = *o
	}
	if err := redisnode.CheckClient(c); err != nil {
		return nil, fmt.Errorf("%w: redisbackend: client %w", distlock.ErrInvalid, err)
	}
	if opt.Prefix == "" {
		opt.Prefix = defaultPrefix
	}
	if err := (redisnode.Layout{Prefix: opt.Prefix}).Check(); err != nil {
		return nil, fmt.Errorf("%w: redisbackend: Options.Prefix %w", distlock.ErrInvalid, err)
	}
	if err := opt.ReplicaAck.check(c); err != nil {
		return nil, fmt.Errorf("%w: redisbackend: Options.ReplicaAck%w", distlock.ErrInvalid, err)
	}
	if opt.ReplicaAck.N > 0 && opt.ReplicaAck.Timeout == 0 {
		opt.ReplicaAck.Timeout = defaultAckTimeout
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	return makeDriver(c, opt), nil
}

func (a ReplicaAck) check(c redis.UniversalClient) error {
	switch {
	case a.N < 0:
		return fmt.Errorf(".N is %d; it must not be negative", a.N)
	case a.N == 0 && a.Timeout != 0:
		return fmt.Errorf(".Timeout is set, but .N is not")
	case a.Timeout < 0 || a.Timeout%time.Millisecond != 0:
		return fmt.Errorf(".Timeout is %v; it must be a positive number of whole milliseconds", a.Timeout)
	}
	if a.N == 0 {
		return nil
	}
	single, ok := c.(*redis.Client)
	if !ok {
		return fmt.Errorf(" needs a *redis.Client, not a %T", c)
	}
	timeout := a.Timeout
	if timeout == 0 {
		timeout = defaultAckTimeout
	}
	if rt := single.Options().ReadTimeout; rt > 0 && timeout >= rt {
		return fmt.Errorf(".Timeout is %v; it must be shorter than the client's ReadTimeout, %v", timeout, rt)
	}
	return nil
}
