package zkbackend_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"time"

	"example.com/distlock"
	"example.com/distlock/zkbackend"
)

func Example() {
	locker, err := zkbackend.New([]string{"zk-1:2181", "zk-2:2181", "zk-3:2181"}, nil, distlock.WithTTL(15*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	err = distlock.Do(context.Background(), locker, "nightly-report", func(ctx context.Context, lk *distlock.Lock) error {
		fmt.Println("holding, token", lk.Token())
		return nil // ctx ends when the lock is lost
	})
	if err != nil {
		log.Print(err)
	}
}

// Over TLS, with nodes that only this identity may touch.
func ExampleOptions() {
	locker, err := zkbackend.New([]string{"zk-1:2281"}, &zkbackend.Options{
		Root: "/apps/billing/locks",
		Auth: []zkbackend.Auth{{Scheme: "digest", Credentials: []byte("billing:secret")}},
		Dial: new(tls.Dialer).DialContext,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
}
