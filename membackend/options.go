package membackend

import (
	"fmt"
	"time"

	"example.com/distlock"
	"example.com/distlock/driver"
)

// Options configure one Locker on a Store. Nil means the defaults: a FIFO queue
// at the Store and a TTL per lock.
type Options struct {
	// Name is what [Store.Partition], [Store.ExpireAll] and [Fault] call this
	// Locker. It need not be unique. Default "locker-1", "locker-2" and so on.
	Name string

	// Polling makes waiters try again, when hinted and from time to time, instead
	// of standing in a queue at the Store. Default false.
	Polling bool

	// Quiet keeps the Store from telling anything on its own: a polling waiter
	// gets no hints, and a holder hears of its loss from its next renewal only.
	// A queued waiter is still told when it is served. Default false.
	Quiet bool

	// SharedFate puts all locks of one TTL on one session, as etcd and ZooKeeper
	// do: they are renewed by one request and lost together. Default false.
	SharedFate bool

	// SingleTTL, with SharedFate, gives the Locker one session and so one TTL for
	// all its locks, as on ZooKeeper. Default false.
	SingleTTL bool

	// RenewWithin bounds the time between two renewals. Default 0: TTL/3.
	RenewWithin time.Duration

	// MinTTL is the shortest TTL taken. Default 10 ms.
	MinTTL time.Duration

	// MaxTTL is the longest TTL taken. Default 0: no limit.
	MaxTTL time.Duration

	// TTLQuantum is what TTLs are rounded up to a multiple of. Default 1 ms.
	TTLQuantum time.Duration
}

const (
	defaultMinTTL  = 10 * time.Millisecond
	defaultQuantum = time.Millisecond
)

// New returns a Locker on s. It sends nothing. Closing the Locker leaves the
// Store to the other Lockers.
func New(s *Store, o *Options, opts ...distlock.Option) (*distlock.Client, error) {
	d, err := NewDriver(s, o)
	if err != nil {
		return nil, err
	}
	return distlock.New(d, opts...)
}

// NewDriver returns the driver that New puts under a Locker, for tests of the
// driver interface itself. It is a driver.Queuer, or with Options.Polling a
// driver.Hinter, or with Options.Quiet too neither; always a driver.Inspector
// and driver.Forcer.
func NewDriver(s *Store, o *Options) (driver.Driver, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: membackend: nil Store", distlock.ErrInvalid)
	}
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.MinTTL == 0 {
		opts.MinTTL = defaultMinTTL
	}
	if opts.TTLQuantum == 0 {
		opts.TTLQuantum = defaultQuantum
	}
	for _, f := range []struct {
		field string
		d     time.Duration
	}{
		{"RenewWithin", opts.RenewWithin}, {"MinTTL", opts.MinTTL},
		{"MaxTTL", opts.MaxTTL}, {"TTLQuantum", opts.TTLQuantum},
	} {
		if f.d < 0 {
			return nil, fmt.Errorf("%w: membackend: Options.%s is negative: %v", distlock.ErrInvalid, f.field, f.d)
		}
	}
	if opts.MaxTTL != 0 && opts.MaxTTL < opts.MinTTL {
		return nil, fmt.Errorf("%w: membackend: Options.MaxTTL %v is below MinTTL %v", distlock.ErrInvalid, opts.MaxTTL, opts.MinTTL)
	}
	if opts.SingleTTL && !opts.SharedFate {
		return nil, fmt.Errorf("%w: membackend: Options.SingleTTL needs SharedFate", distlock.ErrInvalid)
	}
	b := newBase(s, opts)
	switch {
	case !opts.Polling:
		return queueing{b}, nil
	case !opts.Quiet:
		return polling{b}, nil
	}
	return b, nil
}
