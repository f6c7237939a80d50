package membackend_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// Lockers on one Store contend with each other like processes on one server.
func Example() {
	ctx := context.Background()
	store := membackend.NewStore()
	a, err := membackend.New(store, nil)
	if err != nil {
		panic(err)
	}
	defer a.Close()
	b, err := membackend.New(store, nil)
	if err != nil {
		panic(err)
	}
	defer b.Close()

	lock, _ := a.Lock(ctx, "report")
	_, err = b.TryLock(ctx, "report")
	fmt.Println(errors.Is(err, distlock.ErrHeld))
	_ = lock.Unlock(ctx)
	fmt.Println(store.Leftovers())
	// Output:
	// true
	// []
}

// How code under test behaves when it loses its lock.
func ExampleStore_Expire() {
	store := membackend.NewStore()
	locker, _ := membackend.New(store, nil)
	defer locker.Close()
	codeUnderTest := func(ctx context.Context) error {
		return distlock.Do(ctx, locker, "report", func(ctx context.Context, _ *distlock.Lock) error {
			store.Expire("report") // in the middle of its work
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}
	err := codeUnderTest(context.Background())
	fmt.Println(errors.Is(err, distlock.ErrLost))
	// Output: true
}

// A Locker that cannot reach its server loses its locks at their deadline. In a
// testing/synctest bubble this takes no time.
func ExampleStore_Partition() {
	store := membackend.NewStore()
	locker, _ := membackend.New(store, &membackend.Options{Name: "a"}, distlock.WithTTL(60*time.Millisecond))
	defer locker.Close()
	lock, _ := locker.Lock(context.Background(), "report")
	heal := store.Partition("a")
	defer heal()
	<-lock.Lost()
	var lost *distlock.LostError
	fmt.Println(errors.As(lock.Err(), &lost), lost.Reason)
	// Output: true expired
}

// A release whose reply is lost.
func ExampleStore_Inject() {
	ctx := context.Background()
	store := membackend.NewStore()
	locker, _ := membackend.New(store, nil)
	defer locker.Close()
	lock, _ := locker.Lock(ctx, "report")

	store.Inject(membackend.Fault{Op: membackend.Release, Kind: membackend.LoseReply})
	err := lock.Unlock(ctx)
	fmt.Println(errors.Is(err, membackend.ErrInjected), store.Inspect("report").Held)
	// Output: true false
}
