// Package driver defines what a lock backend implements.
//
// Programs use package distlock. A driver knows one kind of server: it sends
// requests, says what they confirmed and since when, and keeps what belongs to
// a connection or session (a subscription, a watch). Waiting, renewal,
// deadlines, loss, local queueing, re-entry, undoing, events and error wrapping
// are written once, in package distlock, on top of these interfaces.
//
// A driver may run goroutines per connection or session, none per lock or per
// waiter, and Close ends them all. Every method honours ctx even if the client
// library does not: it returns when ctx is done, and what comes back later is
// read and undone by the driver.
package driver

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrHeld says that another owner has the lock. HeldError wraps it.
	ErrHeld = errors.New("distlock: held by another owner")

	// ErrNotHeld says that, by the server's word, the caller does not hold the
	// lock (any more). Never for an error of communication.
	ErrNotHeld = errors.New("distlock: not held")
)

// A HeldError reports a taken lock and what the server told about it.
type HeldError struct {
	Remaining time.Duration // until the holder's lease ends if not renewed; 0 unknown
	Waiters   int           // -1 unknown

	// Keeper is the shared session that the attempt was made on, or nil where
	// nothing is shared. It lets the caller keep a session on which nothing was
	// granted yet, and retire it when it stays idle.
	Keeper Keeper
}

func (e *HeldError) Error() string { return ErrHeld.Error() }
func (e *HeldError) Unwrap() error { return ErrHeld }

// A PermanentError wraps an error that trying again does not mend: wrong
// credentials, a missing permission, forbidden scripts, a read-only replica, a
// server older than supported. Its text names what is wrong. Lock returns it at
// once instead of waiting for ctx to end. For a lock that is already held it is
// an error like any other: renewal is tried again until the deadline.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }
func (e *PermanentError) Unwrap() error { return e.Err }

// Capabilities describes what a backend guarantees. The conformance suite tests
// each claim, and fails a backend that claims less than it does.
type Capabilities struct {
	Backend    string        // "redis", "redlock", "zookeeper", "etcd", "memory"
	Fencing    bool          // numbers strictly increase from holder to holder
	FIFO       bool          // contenders (one per Locker and name) are served in order of arrival; only a Queuer can claim it
	Replicated bool          // exclusion survives the loss of a minority of servers
	SharedFate bool          // one session carries many locks: they are lost together
	LockTTL    bool          // each lock may have a TTL of its own
	Push       bool          // waiters are woken by the server; a Queuer or Hinter can claim it
	MinTTL     time.Duration // shorter TTLs are refused
	MaxTTL     time.Duration // longer TTLs are refused; 0 means no limit
	TTLQuantum time.Duration // TTLs are rounded up to a multiple
	NumberKind string        // for people: "hybrid clock (10 µs)", "czxid", "create revision"
}

// Request is one attempt to take a lock.
type Request struct {
	Name     string        // valid UTF-8, 1 to 512 bytes; drivers escape, never reject
	Owner    string        // unique per attempt; may be sent again only after an unclear error, and only until the first Abandon, Release or Leave for it
	TTL      time.Duration // checked by the caller against Capabilities
	Metadata string        // stored beside the lock for people to read

	// Gone, if set, is called at most once, and must not block, when the server
	// tells on its own that this holding has ended (session expired, key
	// deleted). A driver without such news never calls it.
	Gone func(reason error)
}

// Driver takes locks from one backend. Methods are safe for concurrent use.
type Driver interface {
	// Capabilities connects if it must, checks that the server can be used, and
	// is constant after its first success. With an error it returns what is known
	// without a server (at least Backend, LockTTL, SharedFate and the limits of
	// TTLs), and with a ctx that is done it sends nothing: so New learns them.
	Capabilities(ctx context.Context) (Capabilities, error)

	// Acquire sends one attempt and waits for no holder. A *HeldError means that
	// nothing of req is left. An Owner that already holds is granted again, with
	// its full TTL and the same number or a larger one. Any other error leaves the
	// outcome open: see Abandon.
	Acquire(ctx context.Context, req Request) (Grant, error)

	// Abandon undoes attempts with req.Owner, those still on their way included:
	// after nil nothing of it is there and nothing sent earlier can take effect.
	// Where only a TTL can bound that (Redis), a request that arrives later still
	// can at most block the name for one TTL.
	Abandon(ctx context.Context, req Request) error

	Close(ctx context.Context) error
}

// A Grant is what the server gave.
type Grant struct {
	Lease  Lease
	Number uint64        // 1 to 1<<58-1; distlock makes the fencing token from it; 0 is for drivers without Fencing
	From   time.Time     // local time before the request was sent from which TTL surely runs
	TTL    time.Duration // what the server keeps, at least, counted from From
}

// A Lease is one granted lock.
type Lease interface {
	Kept
	// Release gives the lock up if it is still this owner's: nil then, and also
	// when repeated after a lost reply (the Lease remembers that one is missing);
	// ErrNotHeld if it was not there to release. Repeated after nil it answers
	// either, and harms nobody.
	Release(ctx context.Context) error
}

// A Keeper renews leases (and keeps places in a queue) that share a fate, as on
// one etcd lease or ZooKeeper session, or at least a round trip, as on Redis.
// distlock schedules it while anything of it lives: one timer per Keeper.
type Keeper interface {
	// Renew answers for each of ks at the same index. With SharedFate one request
	// confirms all of them; one whose own key is unproven gets an error of its own,
	// and where ks is empty there is one answer, for the session.
	Renew(ctx context.Context, ks []Kept) []Confirm
	// Every is the longest time to leave between two Renews; 0 means TTL/3. Constant.
	Every() time.Duration
	// MaxBatch is how many Renew takes at once; 0 means any number.
	MaxBatch() int
	// Retire ends a shared session whose deadline has passed or that is idle:
	// nothing new is granted on it, keepalives and pings stop at once, and it is
	// revoked or closed if the server can be reached. Afterwards Release, Leave and
	// Abandon on it answer nil or ErrNotHeld, and Renew ErrNotHeld. It is not called
	// where nothing is shared.
	Retire(ctx context.Context) error
}

// Kept is what a Keeper keeps: a Lease or a Ticket. Keepers are comparable: the
// same value for all that share one, from Ticket to Release.
type Kept interface{ Keeper() Keeper }

// Confirm is the server's answer about one Kept.
type Confirm struct {
	From time.Time     // as in Grant
	TTL  time.Duration // as in Grant
	Err  error         // ErrNotHeld is final; anything else is tried again until the deadline
}

// A Queuer is a Driver whose waiters stand in a queue at the server.
// Drivers that are not Queuers are polled, with hints if they are Hinters.
type Queuer interface {
	Driver
	// Enqueue takes a place, or the lock itself if it is free, and returns.
	Enqueue(ctx context.Context, req Request) (Ticket, error)
}

// A Ticket is a place in a queue; its Keeper keeps the place.
type Ticket interface {
	Kept
	// Wait returns the Grant when it is this ticket's turn; ErrNotHeld if the
	// place is gone, ctx's cause if that ends first (the place is then still there).
	Wait(ctx context.Context) (Grant, error)
	// Leave gives the place up, or the lock if it was granted meanwhile.
	Leave(ctx context.Context) error
}

// A Hinter is a Driver that can tell when an attempt is worth making. Hints
// returns when it is listening; a lost hint costs latency, not safety.
type Hinter interface {
	Driver
	Hints(ctx context.Context, name string) (hint <-chan struct{}, stop func(), err error)
}

// An Inspector is a Driver that describes a lock and its queue.
type Inspector interface {
	Driver
	Inspect(ctx context.Context, name string) (Info, error)
}

// A Forcer is a Driver that can take a lock from its holder: the one with this
// number, or whoever holds it if number is 0. ErrNotHeld if there is none.
type Forcer interface {
	Driver
	Force(ctx context.Context, name string, number uint64) error
}

// Info describes a lock as the server saw it at one moment.
type Info struct {
	Held      bool
	Owner     string
	Metadata  string
	Number    uint64
	Since     time.Time     // zero if unknown
	Remaining time.Duration // 0 if unknown
	Waiters   []string      // owners in order of service; nil if unknown
}
