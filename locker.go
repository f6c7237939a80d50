// Package distlock provides named locks shared between processes.
package distlock

import (
	"context"
	"time"

	"example.com/distlock/driver"
)

// Locker acquires named locks. Every backend provides one; it is safe for
// concurrent use.
type Locker interface {
	// Lock waits until it holds name or ctx is done. ctx bounds the wait only.
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	// TryLock makes one full attempt; the error matches ErrHeld if the lock is taken.
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	// Close releases the locks still held (their loss says Closed), ends waits
	// with ErrClosed, and returns when nothing of this Locker runs any more.
	Close() error
}

// Client is the Locker over a driver.Driver. Programs get one from a backend.
type Client struct{ d driver.Driver }

var _ Locker = (*Client)(nil)

func New(d driver.Driver, opts ...Option) (*Client, error) { panic("sketch") }

func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	panic("sketch")
}
func (c *Client) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	panic("sketch")
}
func (c *Client) Close() error { panic("sketch") }

// Do runs fn while it holds name. fn's context ends with ctx or with the lock;
// Do waits for fn, releases, and joins the errors: a loss matches ErrLost.
func Do(ctx context.Context, l Locker, name string, fn func(ctx context.Context, lk *Lock) error, opts ...LockOption) error {
	panic("sketch")
}

// Namespaced returns l with every name put under ns, one to one. A bad ns is
// reported by Lock and TryLock as ErrInvalid.
func Namespaced(l Locker, ns string) Locker { panic("sketch") }

// Token is a fencing token: it grows each time a lock changes hands. 0 is no token.
type Token uint64

// Lock is one holding of a lock. Its methods are safe for concurrent use, and a
// nil or zero Lock holds nothing.
type Lock struct{}

func (l *Lock) Name() string             { panic("sketch") }
func (l *Lock) Token() Token             { panic("sketch") } // 0 once the holding has ended
func (l *Lock) ValidUntil() time.Time    { panic("sketch") } // moved forward by renewal
func (l *Lock) Context() context.Context { panic("sketch") } // ends with the holding; Cause says why
func (l *Lock) Lost() <-chan struct{}    { panic("sketch") } // closed by a loss, never by Unlock
func (l *Lock) Err() error               { panic("sketch") } // nil while held; checks the clock itself

// Renew asks for a renewal now.
func (l *Lock) Renew(ctx context.Context) error { panic("sketch") }

// Unlock ends the holding at its first call and releases the lock; the attempt
// is made even if ctx is done. After a transport error it can be called again
// and reports that same release. ErrLost after a loss; ErrNotHeld if never held
// or already released.
func (l *Lock) Unlock(ctx context.Context) error { panic("sketch") }
