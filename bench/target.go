package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"example.com/distlock"
	"example.com/distlock/etcdbackend"
	"example.com/distlock/membackend"
	"example.com/distlock/redisbackend"
	"example.com/distlock/redlockbackend"
	"example.com/distlock/zkbackend"
)

// A target is a set of running servers and the backend that locks on them.
type target struct {
	backend string
	addrs   []string
	store   *membackend.Store // memory only

	redlock *redlockbackend.Options // nil: the defaults

	durability string                                       // when its writes are safe, in words
	kill       func(ctx context.Context, addr string) error // nil if the servers are not ours to kill

	sent  atomic.Int64 // requests sent by all conns; not for ZooKeeper, see requests
	asked atomic.Int64 // ZooKeeper only: questions for the number of requests
}

// A conn is a Locker with connections that nothing else uses.
type conn struct {
	distlock.Locker
	closers []func() error
}

func (c *conn) Close() error {
	err := c.Locker.Close()
	for _, f := range c.closers {
		err = errors.Join(err, f())
	}
	return err
}

// dial returns a Locker on connections of its own. It sends nothing yet.
func (t *target) dial(opts ...distlock.Option) (*conn, error) {
	switch c := new(conn); t.backend {
	case "memory":
		l, err := membackend.New(t.store, nil, opts...)
		c.Locker = l
		return c, err
	case "redis":
		r := t.redis(t.addrs[0])
		l, err := redisbackend.New(r, nil, opts...)
		c.Locker, c.closers = l, []func() error{r.Close}
		return c, err
	case "redlock":
		var nodes []redis.UniversalClient
		for _, a := range t.addrs {
			r := t.redis(a)
			nodes, c.closers = append(nodes, r), append(c.closers, r.Close)
		}
		l, err := redlockbackend.New(nodes, t.redlock, opts...)
		c.Locker = l
		return c, err
	case "zookeeper":
		l, err := zkbackend.New(t.addrs, nil, opts...)
		c.Locker = l
		return c, err
	case "etcd":
		e, err := t.etcd()
		if err != nil {
			return nil, err
		}
		l, err := etcdbackend.New(e, nil, opts...)
		c.Locker, c.closers = l, []func() error{e.Close}
		return c, err
	}
	return nil, fmt.Errorf("unknown backend %q", t.backend)
}

// dialAll returns n of them, and closes them all if one fails.
func (t *target) dialAll(n int, opts ...distlock.Option) (conns []*conn, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range conns {
			_ = c.Close() // an unreachable server is already in the row
		}
	}
	for range n {
		c, err := t.dial(opts...)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, c)
	}
	return conns, closeAll, nil
}

// Poolsize of a Redis client, per node: as many as the goroutines of the
// largest workload, so that none waits for a connection in the client.
const redisPool = 64

func (t *target) redis(addr string) *redis.Client {
	var d net.Dialer
	return redis.NewClient(&redis.Options{
		Addr:     addr,
		PoolSize: redisPool,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: c, sent: &t.sent}, nil
		},
	})
}

func (t *target) etcd() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: t.addrs,
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				t.sent.Add(1)
				return invoke(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := stream(ctx, desc, cc, method, opts...)
				if err != nil {
					return nil, err
				}
				return &countedStream{s, &t.sent}, nil
			}),
		},
	})
}

// requests returns how many requests clients have sent to the servers so far.
// Replies and what servers push (messages, watch events) are not requests.
func (t *target) requests(ctx context.Context) (int64, error) {
	switch t.backend {
	case "memory":
		return int64(t.store.Requests()), nil
	case "zookeeper":
		// The client library offers no place to count, but each server counts
		// what it received from clients, pings and these questions among it.
		var sum int64
		for _, a := range t.addrs {
			status, err := zkStatus(ctx, a)
			if err != nil {
				return 0, err
			}
			n, err := strconv.ParseInt(status["Received"], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("srvr of %s: no number of received packets", a)
			}
			sum += n
		}
		return sum - t.asked.Add(int64(len(t.addrs))), nil
	}
	return t.sent.Load(), nil
}

// reachable reports the first server to which no connection can be made. A
// cluster may do without it, but its figures are not those of the set-up.
func (t *target) reachable(ctx context.Context) error {
	for i, addr := range t.addrs {
		if _, hostPort, ok := strings.Cut(addr, "://"); ok { // etcd takes URLs
			addr = hostPort
		}
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("server %d of %d: %w", i+1, len(t.addrs), err)
		}
		_ = c.Close()
	}
	return nil
}

// zkStatus asks a ZooKeeper server for its status ("srvr", allowed by default).
func zkStatus(ctx context.Context, addr string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	if _, err := c.Write([]byte("srvr")); err != nil {
		return nil, err
	}
	status := map[string]string{}
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ": "); ok {
			status[key] = value
		}
	}
	return status, lines.Err()
}

// A countedConn counts the Redis commands written to it.
type countedConn struct {
	net.Conn
	sent *atomic.Int64
	scan commandScanner // used by Write alone, which go-redis never calls twice at a time
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(c.scan.commands(p[:n]))
	return n, err
}

// A commandScanner finds the commands in what a client sends in Redis' protocol:
// each is an array of strings, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n". A command may
// be spread over several writes.
type commandScanner struct {
	strings int    // still to come of the present command
	skip    int    // bytes still to come of the present string and its line end
	line    []byte // header line so far
}

func (s *commandScanner) commands(p []byte) (n int64) {
	for len(p) > 0 {
		if s.skip > 0 {
			k := min(s.skip, len(p))
			s.skip -= k
			p = p[k:]
			if s.skip == 0 {
				s.strings--
				if s.strings == 0 {
					n++
				}
			}
			continue
		}
		head, rest, whole := bytes.Cut(p, []byte("\n"))
		s.line = append(s.line, head...)
		if !whole {
			return n
		}
		p = rest
		header := strings.TrimSpace(string(s.line))
		s.line = s.line[:0]
		if header == "" {
			continue
		}
		size, _ := strconv.Atoi(header[1:])
		if header[0] == '*' {
			s.strings = size
		} else {
			s.skip = size + len("\r\n")
		}
	}
	return n
}

// A countedStream counts the messages that an etcd client sends on a stream.
type countedStream struct {
	grpc.ClientStream
	sent *atomic.Int64
}

func (s *countedStream) SendMsg(m any) error {
	s.sent.Add(1)
	return s.ClientStream.SendMsg(m)
}
