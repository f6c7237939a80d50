package main

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/distlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func counter(t *testing.T, args ...string) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, &out, io.Discard, args); err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	return n, nil
}

func TestInMemory(t *testing.T) {
	if n, err := counter(t, "-backend", "memory"); n != 6000 || err != nil {
		t.Errorf("with the lock: %d, %v", n, err)
	}
	loses(t, inMemory(), nil)
}

// loses checks that increments without the lock are lost. Every worker's first
// write waits until all have read, so that it does not depend on luck: all but one
// of those writes count for nothing, whatever comes later.
func loses(t *testing.T, connect func([]string) (*worker, error), addrs []string) {
	t.Helper()
	const workers, increments = 5, 10
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var read atomic.Int32
	all := make(chan struct{})
	together := func(addrs []string) (*worker, error) {
		w, err := connect(addrs)
		if err != nil {
			return nil, err
		}
		get := w.get
		w.get = func(ctx context.Context) (int, error) {
			n, err := get(ctx)
			if read.Add(1) == workers {
				close(all)
			}
			select {
			case <-all:
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
			return n, err
		}
		return w, nil
	}
	n, err := count(ctx, together, addrs, workers, increments, true, io.Discard)
	if err != nil || n < increments || n > workers*increments-(workers-1) {
		t.Errorf("without the lock: %d, %v", n, err)
	}
}

func TestOnServers(t *testing.T) {
	for _, on := range []struct {
		backend string
		connect func([]string) (*worker, error)
		addrs   func(t *testing.T) []string
	}{
		{"redis", onRedis, func(t *testing.T) []string { return []string{testbed.Redis(t).Addr()} }},
		{"redlock", onRedlock, func(t *testing.T) []string {
			var addrs []string
			for _, n := range testbed.RedisNodes(t, 5) {
				addrs = append(addrs, n.Addr())
			}
			return addrs
		}},
		{"zookeeper", onZooKeeper, func(t *testing.T) []string { return testbed.ZooKeeper(t, 3).Addrs() }},
		{"etcd", onEtcd, func(t *testing.T) []string { return testbed.Etcd(t, 3).Addrs() }},
	} {
		t.Run(on.backend, func(t *testing.T) {
			addrs := on.addrs(t)
			if n, err := counter(t, "-backend", on.backend, "-addr", strings.Join(addrs, ","), "-workers", "5", "-increments", "10"); n != 50 || err != nil {
				t.Errorf("with the lock: %d, %v", n, err)
			}
			loses(t, on.connect, addrs)
		})
	}
}

func TestUnknownBackend(t *testing.T) {
	if _, err := counter(t, "-backend", "abacus"); err == nil {
		t.Error("no error")
	}
}

// A server that is not there must end in an error at the limit.
func TestTimeLimit(t *testing.T) {
	for _, backend := range []string{"redis", "zookeeper"} {
		start := time.Now()
		_, err := counter(t, "-backend", backend, "-addr", "127.0.0.1:1", "-workers", "2", "-timeout", "300ms")
		if err == nil || time.Since(start) > 30*time.Second {
			t.Errorf("%s: %v after %v", backend, err, time.Since(start))
		}
	}
}
