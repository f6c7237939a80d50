package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"example.com/distlock/internal/faultproxy"
)

// Redis starts one Redis server.
func (b *Bed) Redis(ctx context.Context, opts ...Option) (*Server, error) {
	g, err := b.redisNodes(ctx, 1, b.options(opts))
	if err != nil {
		return nil, err
	}
	return g.servers[0], nil
}

// RedisNodes starts n Redis servers that know nothing of each other.
func (b *Bed) RedisNodes(ctx context.Context, n int, opts ...Option) ([]*Server, error) {
	g, err := b.redisNodes(ctx, n, b.options(opts))
	if err != nil {
		return nil, err
	}
	return g.servers, nil
}

// RedisPair starts a Redis server and a replica of it, and waits until the
// replica is in sync. The replication goes through the replica's Link.
func (b *Bed) RedisPair(ctx context.Context, opts ...Option) (primary, replica *Server, err error) {
	g, err := b.redisPair(ctx, b.options(opts))
	if err != nil {
		return nil, nil, err
	}
	return g.servers[0], g.servers[1], nil
}

func (b *Bed) redisNodes(ctx context.Context, n int, o options) (*group, error) {
	if b.provider == nil {
		g, err := b.external(ctx, kindRedis, "DISTLOCK_TESTBED_REDIS", n, redisReady)
		if err == nil {
			g.servers = g.servers[:n]
		}
		return g, err
	}
	return b.start(ctx, n, func(ports []int) ([]*Server, []io.Closer, error) {
		servers := make([]*Server, n)
		for i, port := range ports {
			servers[i] = b.redisServer(port, o)
		}
		return servers, nil, nil
	})
}

func (b *Bed) redisPair(ctx context.Context, o options) (*group, error) {
	var g *group
	var err error
	if b.provider == nil {
		g, err = b.external(ctx, kindRedis, "DISTLOCK_TESTBED_REDIS_PAIR", 2, redisReady)
	} else {
		g, err = b.start(ctx, 2, func(ports []int) ([]*Server, []io.Closer, error) {
			link, err := faultproxy.New(loopback(ports[0]))
			if err != nil {
				return nil, nil, err
			}
			host, port, err := net.SplitHostPort(link.Addr())
			if err != nil {
				return nil, []io.Closer{link}, err
			}
			primary := b.redisServer(ports[0], o)
			o := o
			o.redisArgs = append([]string{"--replicaof", host + " " + port}, o.redisArgs...)
			replica := b.redisServer(ports[1], o)
			replica.link = link
			return []*Server{primary, replica}, []io.Closer{link}, nil
		})
	}
	if err != nil {
		return nil, err
	}
	replica := *g.servers[1]
	replica.ready = replicaInSync
	if err := replica.waitReady(ctx); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (b *Bed) redisServer(port int, o options) *Server {
	args := []string{
		"--port", strconv.Itoa(port),
		"--bind", "127.0.0.1",
		"--save", "",
		"--daemonize", "no",
		"--repl-diskless-sync", "yes",
		"--repl-diskless-sync-delay", "0",
	}
	switch {
	case o.durable:
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	case o.own:
		// Written before the reply though not synced: survives a SIGKILL.
		args = append(args, "--appendonly", "yes", "--appendfsync", "no")
	default:
		args = append(args, "--appendonly", "no")
	}
	s := &spec{
		kind: kindRedis,
		name: fmt.Sprintf("redis-%d", b.serial()),
		port: port,
		args: func(dir string) []string {
			return append([]string{"--dir", dir + "/data"}, append(args, o.redisArgs...)...)
		},
	}
	return &Server{kind: kindRedis, addr: loopback(port), spec: s, ready: redisReady}
}

// redisReady accepts a server that wants a password: it is up.
func redisReady(ctx context.Context, addr string) error {
	reply, err := ask(ctx, addr, "PING\r\n")
	switch {
	case err != nil:
		return err
	case reply == "+PONG" || strings.HasPrefix(reply, "-NOAUTH"):
		return nil
	}
	return fmt.Errorf("PING was answered with %q", reply)
}

func replicaInSync(ctx context.Context, addr string) error {
	const up = "master_link_status:up"
	reply, err := askAll(ctx, addr, "INFO replication\r\n", func(got string) bool {
		return strings.Contains(got, up) || strings.HasSuffix(got, "\r\n\r\n") || strings.HasPrefix(got, "-")
	})
	if err == nil && strings.HasPrefix(reply, "-NOAUTH") {
		return nil // the test gave it a password, and knows what it does
	}
	if err == nil && !strings.Contains(reply, up) {
		err = errors.New("the replica is not in sync")
	}
	return err
}
