package redlockbackend_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/redlockbackend"
)

func Example() {
	var clients []redis.UniversalClient
	for _, addr := range []string{"redis1:6379", "redis2:6379", "redis3:6379", "redis4:6379", "redis5:6379"} {
		c := redis.NewClient(&redis.Options{Addr: addr, DialTimeout: time.Second, ReadTimeout: time.Second})
		defer c.Close()
		clients = append(clients, c)
	}

	locker, err := redlockbackend.New(clients, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	err = distlock.Do(context.Background(), locker, "invoices/2024", func(ctx context.Context, lk *distlock.Lock) error {
		// ctx ends if the lock is lost. Pass lk.Token() to what is written to.
		fmt.Println("token", lk.Token())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Which nodes failed, when too few of them agreed.
func ExampleQuorumError() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}) // nobody listens
	defer client.Close()

	locker, err := redlockbackend.New([]redis.UniversalClient{client}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	_, err = locker.TryLock(context.Background(), "invoices/2024")
	if q, ok := errors.AsType[*redlockbackend.QuorumError](err); ok {
		fmt.Printf("%d of %d nodes agreed, %d needed\n", q.Agreed, q.Nodes, q.Quorum)
		for _, n := range q.Failed {
			fmt.Println(n.Node)
		}
	}
	// Output:
	// 0 of 1 nodes agreed, 1 needed
	// node 1 (127.0.0.1:1)
}
