package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// Lock waits until it holds the name. The work runs under the lock's own
// context, which ends when the lock does.
func Example() {
	ctx := context.Background()
	locker, err := membackend.New(membackend.NewStore(), nil)
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	lock, err := locker.Lock(ctx, "report")
	if err != nil {
		panic(err)
	}
	defer lock.Unlock(ctx)
	work := lock.Context()
	fmt.Println(lock.Name(), "is held:", lock.Err() == nil, work.Err())
	// Output: report is held: true <nil>
}

// The backend is one line: replace it, and nothing else changes.
func ExampleLocker() {
	nightly := func(locker distlock.Locker) error {
		return distlock.Do(context.Background(), locker, "nightly", func(ctx context.Context, lk *distlock.Lock) error {
			fmt.Println("running")
			return nil
		})
	}
	locker, err := membackend.New(membackend.NewStore(), nil)
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	fmt.Println(nightly(locker))
	// Output:
	// running
	// <nil>
}

// The context bounds the wait. What ended it can be told apart.
func ExampleClient_Lock_timeout() {
	store := membackend.NewStore()
	ours, _ := membackend.New(store, nil)
	defer ours.Close()
	theirs, _ := membackend.New(store, nil)
	defer theirs.Close()

	held, _ := theirs.Lock(context.Background(), "report")
	defer held.Unlock(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := ours.Lock(ctx, "report")
	fmt.Println("somebody else has it:", errors.Is(err, distlock.ErrHeld))
	fmt.Println("our patience ended:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// somebody else has it: true
	// our patience ended: true
}

// TryLock does not wait for a holder.
func ExampleClient_TryLock() {
	ctx := context.Background()
	store := membackend.NewStore()
	ours, _ := membackend.New(store, nil)
	defer ours.Close()
	theirs, _ := membackend.New(store, nil)
	defer theirs.Close()

	lock, err := ours.TryLock(ctx, "report")
	fmt.Println(err)
	_, err = theirs.TryLock(ctx, "report")
	fmt.Println(errors.Is(err, distlock.ErrHeld), err)
	fmt.Println(lock.Unlock(ctx))
	// Output:
	// <nil>
	// true memory trylock "report": distlock: held by another owner
	// <nil>
}

// Close ends waits and gives back what is held.
func ExampleClient_Close() {
	locker, _ := membackend.New(membackend.NewStore(), nil)
	lock, _ := locker.Lock(context.Background(), "report")
	fmt.Println(locker.Close())
	fmt.Println(lock.Err())
	_, err := locker.Lock(context.Background(), "report")
	fmt.Println(errors.Is(err, distlock.ErrClosed))
	// Output:
	// <nil>
	// distlock: lock "report" lost: closed
	// true
}

// Do cancels the function's context when the lock is lost, and says so.
func ExampleDo() {
	store := membackend.NewStore()
	locker, _ := membackend.New(store, nil)
	defer locker.Close()

	err := distlock.Do(context.Background(), locker, "report", func(ctx context.Context, lk *distlock.Lock) error {
		store.Expire("report") // as if the server had given it to somebody else
		<-ctx.Done()
		return nil
	})
	fmt.Println(errors.Is(err, distlock.ErrLost))
	// Output: true
}

// A loss ends the lock's context; its cause is a *LostError.
func ExampleLock_Lost() {
	store := membackend.NewStore()
	locker, _ := membackend.New(store, nil)
	defer locker.Close()
	lock, _ := locker.Lock(context.Background(), "report")

	store.Expire("report")
	<-lock.Lost()

	var lost *distlock.LostError
	fmt.Println(errors.As(context.Cause(lock.Context()), &lost), lost.Reason)
	fmt.Println(errors.Is(lock.Unlock(context.Background()), distlock.ErrLost))
	// Output:
	// true revoked
	// true
}

// A resource that remembers the largest token refuses a holder that is late.
func ExampleLock_Token() {
	ctx := context.Background()
	locker, _ := membackend.New(membackend.NewStore(), nil)
	defer locker.Close()

	var seen distlock.Token // kept by the resource
	write := func(token distlock.Token) bool {
		if token < seen {
			return false
		}
		seen = token
		return true
	}

	first, _ := locker.Lock(ctx, "account")
	old := first.Token()
	fmt.Println("first:", write(old))
	_ = first.Unlock(ctx)

	second, _ := locker.Lock(ctx, "account")
	fmt.Println("second:", write(second.Token()))
	fmt.Println("first, late:", write(old))
	_ = second.Unlock(ctx)
	// Output:
	// first: true
	// second: true
	// first, late: false
}

// ValidUntil is moved forward by renewal.
func ExampleLock_Renew() {
	ctx := context.Background()
	locker, _ := membackend.New(membackend.NewStore(), nil)
	defer locker.Close()
	lock, _ := locker.Lock(ctx, "report", distlock.WithFixedLease(time.Minute))
	before := lock.ValidUntil()
	if err := lock.Renew(ctx); err != nil {
		panic(err)
	}
	fmt.Println(lock.ValidUntil().After(before))
	// Output: true
}

// Unlock reports the same release until it is confirmed.
func ExampleLock_Unlock() {
	ctx := context.Background()
	store := membackend.NewStore()
	locker, _ := membackend.New(store, nil)
	defer locker.Close()
	lock, _ := locker.Lock(ctx, "report")

	fault := store.Inject(membackend.Fault{Op: membackend.Release, Kind: membackend.LoseReply})
	fmt.Println(errors.Is(lock.Unlock(ctx), membackend.ErrInjected))
	fault.Remove()
	for lock.Unlock(ctx) != nil { // it is tried again in the background
		time.Sleep(time.Millisecond)
	}
	fmt.Println(errors.Is(lock.Unlock(ctx), distlock.ErrNotHeld))
	// Output:
	// true
	// true
}

// The TTL bounds how long a crashed holder blocks others. The default is 30 s,
// for all locks of a Locker; a call may ask for another.
func ExampleWithTTL() {
	ctx := context.Background()
	store := membackend.NewStore()
	locker, _ := membackend.New(store, nil, distlock.WithTTL(time.Minute))
	defer locker.Close()
	_, _ = locker.Lock(ctx, "default")
	_, _ = locker.Lock(ctx, "short", distlock.WithTTL(5*time.Second))
	fmt.Println(store.Inspect("default").Remaining.Round(time.Second))
	fmt.Println(store.Inspect("short").Remaining.Round(time.Second))
	// Output:
	// 1m0s
	// 5s
}

// A fixed lease is not renewed.
func ExampleWithFixedLease() {
	ctx := context.Background()
	locker, _ := membackend.New(membackend.NewStore(), nil)
	defer locker.Close()
	lock, _ := locker.Lock(ctx, "once", distlock.WithFixedLease(50*time.Millisecond))
	<-lock.Lost()
	fmt.Println(lock.Err())
	// Output: distlock: lock "once" lost: expired
}

// A holding that lasts too long is ended.
func ExampleWithMaxHold() {
	ctx := context.Background()
	locker, _ := membackend.New(membackend.NewStore(), nil, distlock.WithMaxHold(20*time.Millisecond))
	defer locker.Close()
	err := distlock.Do(ctx, locker, "report", func(ctx context.Context, lk *distlock.Lock) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	var lost *distlock.LostError
	fmt.Println(errors.As(err, &lost), lost.Reason)
	// Output: true max hold
}

// A function that may be called with or without the lock.
func ExampleReentrant() {
	ctx := context.Background()
	locker, _ := membackend.New(membackend.NewStore(), nil)
	defer locker.Close()

	post := func(ctx context.Context) distlock.Token {
		lock, err := locker.Lock(ctx, "account", distlock.Reentrant())
		if err != nil {
			panic(err)
		}
		defer lock.Unlock(ctx)
		return lock.Token()
	}
	outer, _ := locker.Lock(ctx, "account")
	fmt.Println("same holding:", post(outer.Context()) == outer.Token())
	fmt.Println("still held:", outer.Err() == nil)

	// Without the option it is an error, not a wait that cannot end.
	_, err := locker.Lock(outer.Context(), "account")
	fmt.Println(errors.Is(err, distlock.ErrDeadlock))
	_ = outer.Unlock(ctx)
	// Output:
	// same holding: true
	// still held: true
	// true
}

func ExampleNamespaced() {
	ctx := context.Background()
	locker, _ := membackend.New(membackend.NewStore(), nil)
	defer locker.Close()
	billing := distlock.Namespaced(locker, "billing")
	lock, _ := billing.Lock(ctx, "report")
	fmt.Println(lock.Name())
	_, err := locker.TryLock(ctx, "report") // another lock
	fmt.Println(err)
	// Output:
	// billing/report
	// <nil>
}

func ExampleWithObserver() {
	ctx := context.Background()
	var mu sync.Mutex
	count := map[distlock.EventKind]int{}
	locker, _ := membackend.New(membackend.NewStore(), nil, distlock.WithObserver(distlock.ObserverFunc(func(_ context.Context, ev distlock.Event) {
		mu.Lock()
		defer mu.Unlock()
		count[ev.Kind]++
	})))
	defer locker.Close()
	for range 3 {
		lock, _ := locker.Lock(ctx, "report")
		_ = lock.Unlock(ctx)
	}
	mu.Lock()
	defer mu.Unlock()
	fmt.Println(count[distlock.EventAcquired], count[distlock.EventReleased], count[distlock.EventLost])
	// Output: 3 3 0
}

func ExampleWithLogger() {
	// For the example, without what differs from run to run.
	handler := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "held" {
			return slog.Attr{}
		}
		return a
	}})
	store := membackend.NewStore()
	locker, _ := membackend.New(store, nil, distlock.WithLogger(slog.New(handler)))
	lock, _ := locker.Lock(context.Background(), "report")
	store.Expire("report")
	<-lock.Lost()
	_ = locker.Close()
	// Output: level=WARN msg="distlock: lost" backend=memory name=report token=32 error="distlock: lock \"report\" lost: revoked: membackend: lock removed from its holder"
}

func ExampleWithMetadata() {
	store := membackend.NewStore()
	locker, _ := membackend.New(store, nil)
	defer locker.Close()
	_, _ = locker.Lock(context.Background(), "report", distlock.WithMetadata("nightly, batch 7"))
	fmt.Println(store.Inspect("report").Metadata)
	// Output: nightly, batch 7
}

// Options of New are the defaults of every call.
func ExampleNew() {
	locker, err := membackend.New(membackend.NewStore(), nil,
		distlock.WithTTL(10*time.Second),
		distlock.WithRenewEvery(2*time.Second),
		distlock.WithSafetyMargin(500*time.Millisecond),
		distlock.WithTryTimeout(time.Second),
		distlock.WithReleaseTimeout(2*time.Second),
		distlock.WithBackoff(func(n int) time.Duration { return 50 * time.Millisecond }),
	)
	fmt.Println(locker != nil, err)
	_, err = membackend.New(membackend.NewStore(), nil, distlock.WithTTL(-time.Second))
	fmt.Println(err)
	// Output:
	// true <nil>
	// distlock: invalid argument: TTL must be positive, got -1s
}
