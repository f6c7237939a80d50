package redisbackend_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/redisbackend"
)

func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()

	locker, err := redisbackend.New(client, nil)
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

// A lock counts only when a replica has it, too.
func ExampleOptions() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()

	locker, err := redisbackend.New(client, &redisbackend.Options{
		Prefix:     "billing",
		ReplicaAck: redisbackend.ReplicaAck{N: 1, Timeout: 200 * time.Millisecond},
	}, distlock.WithTTL(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
}
