// Package distlock provides named locks shared between processes, with one
// interface over Redis, Redlock, ZooKeeper, etcd and an in-memory store.
//
//	locker, err := redisbackend.New(client, nil)
//	...
//	lock, err := locker.Lock(ctx, "report")
//	if err != nil {
//		return err
//	}
//	defer lock.Unlock(ctx)
//	write(lock.Context(), lock.Token())
//
// # Backends
//
// A backend package's New returns a [*Client], which is the [Locker]; another
// backend is another line in main. membackend needs no server and is made for
// tests. What each backend guarantees stands in docs/guarantees.md, and package
// conformance tests it.
//
// # Holding a lock
//
// A lock is a lease: the server drops it one TTL after it last heard of its
// holder, so that a crash blocks nobody for ever. While a [Lock] is held, a
// watchdog renews the lease every third of its TTL ([WithTTL], 30 s by default);
// network errors are tried again until the deadline. [WithFixedLease] turns
// renewal off, and [WithMaxHold] limits it.
//
// The context given to Lock bounds the wait, not the hold. [Lock.Context] is for
// the work: it ends when the lock does.
//
// # Losing a lock
//
// No lease can be held against a server that is out of reach. A holder therefore
// has a deadline on its own clock: the time before the request was sent from
// which the server counts, plus the TTL, less a margin for the clocks' rates.
// Past it the lock is lost: [context.Cause] of Lock.Context is a [*LostError],
// [Lock.Lost] is closed, [Lock.Err] says so. That happens before the server can
// give the lock to anybody else. A loss is never taken back. Work should stop
// when Lock.Context ends; [Do] arranges that.
//
// # Fencing
//
// A process that is paused (by its garbage collector, its machine, SIGSTOP) past
// its deadline cannot know it, and its next write may come after a rival's. Only
// the resource can refuse that write: send [Lock.Token] along, and let the
// resource remember the largest it has seen and refuse smaller ones.
//
// # Re-entry
//
// Go has no identity of goroutines. A context does the work: Lock with a context
// that descends from the held lock's [Lock.Context] returns an error that matches
// [ErrDeadlock], or, with [Reentrant], a second handle on the same holding.
//
// # Errors
//
// Errors are tested with errors.Is against [ErrHeld], [ErrNotHeld], [ErrLost],
// [ErrClosed], [ErrDeadlock], [ErrInvalid] and [ErrUnsupported]; an [*Error] says
// what failed where; the client library's error is reachable with errors.As.
package distlock
