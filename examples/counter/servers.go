package main

import (
	"context"
	"io"

	"example.com/distlock/internal/testbed"
)

// startServers runs what the backend needs: one Redis, five for Redlock, an
// ensemble of three for ZooKeeper and etcd, nothing for memory.
func startServers(ctx context.Context, backend string, log io.Writer) (addrs []string, stop func() error, err error) {
	if backend == "memory" {
		return nil, func() error { return nil }, nil
	}
	bed, err := testbed.Open(ctx, testbed.Config{Log: log})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			bed.Close()
		}
	}()
	switch backend {
	case "redis":
		server, err := bed.Redis(ctx)
		if err != nil {
			return nil, nil, err
		}
		addrs = []string{server.Addr()}
	case "redlock":
		nodes, err := bed.RedisNodes(ctx, 5)
		if err != nil {
			return nil, nil, err
		}
		for _, n := range nodes {
			addrs = append(addrs, n.Addr())
		}
	case "zookeeper":
		ensemble, err := bed.ZooKeeper(ctx, 3)
		if err != nil {
			return nil, nil, err
		}
		addrs = ensemble.Addrs()
	case "etcd":
		cluster, err := bed.Etcd(ctx, 3)
		if err != nil {
			return nil, nil, err
		}
		addrs = cluster.Addrs()
	}
	return addrs, bed.Close, nil
}
