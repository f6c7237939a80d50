package etcdbackend_test

import (
	"context"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"example.com/distlock"
	"example.com/distlock/etcdbackend"
)

func Example() {
	cli, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"},
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cli.Close()
	locker, err := etcdbackend.New(cli, nil, distlock.WithTTL(15*time.Second))
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
