package main

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"example.com/distlock/etcdbackend"
	"example.com/distlock/membackend"
	"example.com/distlock/redisbackend"
	"example.com/distlock/redlockbackend"
	"example.com/distlock/zkbackend"
)

// Where the number lives: a string in Redis, a node in ZooKeeper, a key in etcd.
const (
	key  = "example-counter"
	node = "/" + key
)

// onRedis keeps the number in a string beside the lock.
func onRedis(addrs []string) (*worker, error) {
	client := redis.NewClient(&redis.Options{Addr: addrs[0]})
	locker, err := redisbackend.New(client, nil)
	if err != nil {
		return nil, err
	}
	return &worker{Locker: locker, get: getString(client), set: setString(client), close: client.Close}, nil
}

// onRedlock keeps the number on the first node; the lock is on all of them.
func onRedlock(addrs []string) (*worker, error) {
	var nodes []redis.UniversalClient
	for _, addr := range addrs {
		nodes = append(nodes, redis.NewClient(&redis.Options{Addr: addr}))
	}
	locker, err := redlockbackend.New(nodes, nil)
	if err != nil {
		return nil, err
	}
	closeAll := func() (err error) {
		for _, n := range nodes {
			err = errors.Join(err, n.Close())
		}
		return err
	}
	return &worker{Locker: locker, get: getString(nodes[0]), set: setString(nodes[0]), close: closeAll}, nil
}

func getString(c redis.UniversalClient) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) { return c.Get(ctx, key).Int() }
}

func setString(c redis.UniversalClient) func(context.Context, int) error {
	return func(ctx context.Context, n int) error { return c.Set(ctx, key, n, 0).Err() }
}

// onZooKeeper keeps the number in a node. ZooKeeper lets a reader's server lag
// behind, hence Sync before the read: the lock orders the workers, not what their
// servers have seen.
func onZooKeeper(addrs []string) (*worker, error) {
	conn, _, err := zk.Connect(addrs, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	locker, err := zkbackend.New(addrs, nil)
	if err != nil {
		return nil, err
	}
	return &worker{
		Locker: locker,
		get: func(context.Context) (int, error) {
			if _, err := conn.Sync(node); err != nil {
				return 0, err
			}
			data, _, err := conn.Get(node)
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(string(data))
		},
		set: func(_ context.Context, n int) error {
			data := []byte(strconv.Itoa(n))
			_, err := conn.Set(node, data, -1)
			if errors.Is(err, zk.ErrNoNode) {
				_, err = conn.Create(node, data, 0, zk.WorldACL(zk.PermAll))
			}
			return err
		},
		close: func() error { conn.Close(); return nil },
	}, nil
}

// onEtcd keeps the number in a key; etcd's reads are linearizable by default.
func onEtcd(addrs []string) (*worker, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	locker, err := etcdbackend.New(client, nil)
	if err != nil {
		return nil, err
	}
	return &worker{
		Locker: locker,
		get: func(ctx context.Context) (int, error) {
			got, err := client.Get(ctx, key)
			if err != nil {
				return 0, err
			}
			if len(got.Kvs) == 0 {
				return 0, errors.New("the number is gone")
			}
			return strconv.Atoi(string(got.Kvs[0].Value))
		},
		set: func(ctx context.Context, n int) error {
			_, err := client.Put(ctx, key, strconv.Itoa(n))
			return err
		},
		close: client.Close,
	}, nil
}

// inMemory keeps the number in a variable. Reading and writing it is atomic, as
// it is on the servers; adding to it is not.
func inMemory() func([]string) (*worker, error) {
	store := membackend.NewStore()
	var number atomic.Int64
	return func([]string) (*worker, error) {
		locker, err := membackend.New(store, nil)
		if err != nil {
			return nil, err
		}
		return &worker{
			Locker: locker,
			get:    func(context.Context) (int, error) { return int(number.Load()), nil },
			set:    func(_ context.Context, n int) error { number.Store(int64(n)); return nil },
			close:  func() error { return nil },
		}, nil
	}
}
