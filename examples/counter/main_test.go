package main

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"
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
	if n, err := counter(t, "-backend", "memory", "-nolock"); n >= 6000 || err != nil {
		t.Errorf("without: %d, %v", n, err)
	}
}

func TestOnServers(t *testing.T) {
	addrs := map[string]func(t *testing.T) []string{
		"redis": func(t *testing.T) []string { return []string{testbed.Redis(t).Addr()} },
		"redlock": func(t *testing.T) []string {
			var addrs []string
			for _, n := range testbed.RedisNodes(t, 5) {
				addrs = append(addrs, n.Addr())
			}
			return addrs
		},
		"zookeeper": func(t *testing.T) []string { return testbed.ZooKeeper(t, 3).Addrs() },
		"etcd":      func(t *testing.T) []string { return testbed.Etcd(t, 3).Addrs() },
	}
	for backend, addrs := range addrs {
		t.Run(backend, func(t *testing.T) {
			args := []string{"-backend", backend, "-addr", strings.Join(addrs(t), ","), "-workers", "5", "-increments", "10"}
			if n, err := counter(t, args...); n != 50 || err != nil {
				t.Errorf("with the lock: %d, %v", n, err)
			}
			if n, err := counter(t, append(args, "-nolock")...); n >= 50 || err != nil {
				t.Errorf("without: %d, %v", n, err)
			}
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
