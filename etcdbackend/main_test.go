package etcdbackend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/distlock/driver"
	"example.com/distlock/internal/testbed"
)

func TestMain(m *testing.M) {
	if env := os.Getenv(workerEnv); env != "" {
		worker(env)
		return
	}
	testbed.Main(m)
}

const (
	long  = 60 * time.Second // a TTL that does not pass in a test
	short = 2 * time.Second
	soon  = 5 * time.Second // patience for what takes milliseconds
)

// A tap sits in a client's connection, before the real server, and decides about
// each unary request.
type tap struct {
	mu   sync.Mutex
	hook func(method string, req any) fault
	n    map[string]int
	late sync.WaitGroup
	mute atomic.Bool // Watch streams opened from now on go silent after their start
}

type fault struct {
	kind faultKind
	wait <-chan struct{} // for lateRequest: when it goes on
	done chan struct{}   // for lateRequest: closed when it has been answered

	between func() // for slowRequest and slowReply
}

type faultKind int

const (
	pass        faultKind = iota
	loseRequest           // never sent, the caller is told "unavailable"
	loseReply             // applied, the caller is told "unavailable"
	lateRequest           // the caller is told "unavailable" at once, the request is sent later
	slowRequest           // between is called before the request is sent
	slowReply             // between is called after the server's answer, before the caller has it
)

func (tp *tap) set(hook func(method string, req any) fault) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.hook = hook
}

// once applies f to the next request of method.
func (tp *tap) once(method string, f fault) {
	tp.set(func(m string, _ any) fault {
		if m != method {
			return fault{}
		}
		tp.hook = nil
		return f
	})
}

func (tp *tap) reset() {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.n = map[string]int{}
}

func (tp *tap) counts() map[string]int {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return maps.Clone(tp.n)
}

func (tp *tap) count(method string) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	if tp.n == nil {
		tp.n = map[string]int{}
	}
	tp.n[method]++
}

func (tp *tap) unary(ctx context.Context, full string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	method := full[strings.LastIndexByte(full, '/')+1:]
	tp.count(method)
	tp.mu.Lock()
	var f fault
	if tp.hook != nil {
		f = tp.hook(method, req)
	}
	tp.mu.Unlock()
	lost := status.Error(codes.Unavailable, "lost by the test")
	switch f.kind {
	case loseRequest:
		return lost
	case loseReply:
		if err := invoke(ctx, full, req, reply, cc, opts...); err != nil {
			return err
		}
		return lost
	case slowRequest:
		f.between()
	case slowReply:
		err := invoke(ctx, full, req, reply, cc, opts...)
		f.between()
		return err
	case lateRequest:
		tp.late.Go(func() {
			<-f.wait
			defer close(f.done)
			_ = invoke(context.WithoutCancel(ctx), full, req, reply, cc, opts...)
		})
		return lost
	}
	return invoke(ctx, full, req, reply, cc, opts...)
}

func (tp *tap) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, full string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	method := full[strings.LastIndexByte(full, '/')+1:]
	tp.count(method)
	st, err := open(ctx, desc, cc, full, opts...)
	return tappedStream{st, tp, method == "Watch" && tp.mute.Load()}, err
}

type tappedStream struct {
	grpc.ClientStream
	tp   *tap
	mute bool
}

// RecvMsg of a mute stream gives the first message and then nothing.
func (s tappedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*etcdserverpb.WatchResponse); s.mute && err == nil && ok && !r.Created {
		<-s.Context().Done()
		return s.Context().Err()
	}
	return err
}

func (s tappedStream) SendMsg(m any) error {
	name := fmt.Sprintf("%T", m)
	s.tp.count("send " + name[strings.LastIndexByte(name, '.')+1:])
	return s.ClientStream.SendMsg(m)
}

// connect returns a client for addrs, which ends with the test.
func connect(t testing.TB, addrs []string, tp *tap, change ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()}
	if tp != nil {
		cfg.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(tp.unary), grpc.WithChainStreamInterceptor(tp.stream)}
	}
	for _, f := range change {
		f(&cfg)
	}
	cli, err := clientv3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if tp != nil {
			tp.late.Wait()
		}
		_ = cli.Close()
	})
	return cli
}

// A rig is one backend on the shared server, under a prefix of its own.
type rig struct {
	*backend
	t   testing.TB
	tap *tap
	cli *clientv3.Client
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigOn(t, testbed.Etcd(t, 1).Addrs(), "test-"+rand.Text()+"/")
}

func newRigOn(t testing.TB, addrs []string, prefix string) *rig {
	t.Helper()
	tp := &tap{}
	r := &rig{t: t, tap: tp, cli: connect(t, addrs, tp)}
	b, err := newBackend(r.cli, &Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	r.backend = b
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
		defer cancel()
		_ = b.Close(ctx)
	})
	return r
}

// peer is another backend under the same prefix, with a connection of its own.
func (r *rig) peer() *rig {
	r.t.Helper()
	return newRigOn(r.t, r.cli.Endpoints(), r.prefix)
}

func owner() string { return rand.Text()[:22] }

func request(name string, ttl time.Duration) driver.Request {
	return driver.Request{Name: name, Owner: owner(), TTL: ttl, Metadata: "test"}
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	t.Cleanup(cancel)
	return ctx
}

func (r *rig) take(req driver.Request) driver.Grant {
	r.t.Helper()
	g, err := r.Acquire(bounded(r.t), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

func (r *rig) queue(req driver.Request) driver.Ticket {
	r.t.Helper()
	tk, err := r.Enqueue(bounded(r.t), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return tk
}

func (r *rig) release(l driver.Lease) {
	r.t.Helper()
	if err := l.Release(bounded(r.t)); err != nil {
		r.t.Fatal(err)
	}
}

type result struct {
	g   driver.Grant
	err error
}

func await(t testing.TB, tk driver.Ticket) <-chan result {
	c := make(chan result, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g, err := tk.Wait(ctx)
		c <- result{g, err}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func granted(t testing.TB, c <-chan result, within time.Duration) driver.Grant {
	t.Helper()
	select {
	case r := <-c:
		if r.err != nil {
			t.Fatalf("waiting ended with %v", r.err)
		}
		return r.g
	case <-time.After(within):
		t.Fatalf("no grant within %v", within)
	}
	panic("unreachable")
}

func waiting(t testing.TB, c <-chan result) {
	t.Helper()
	select {
	case r := <-c:
		t.Fatalf("waiting ended too early: %+v", r)
	case <-time.After(150 * time.Millisecond):
	}
}

// entries lists the queue of name.
func (r *rig) entries(name string) []string {
	r.t.Helper()
	resp, err := r.cli.Get(bounded(r.t), r.dir(name), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		r.t.Fatal(err)
	}
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func (r *rig) remove(key string) {
	r.t.Helper()
	resp, err := r.cli.Delete(bounded(r.t), key)
	if err != nil || resp.Deleted != 1 {
		r.t.Fatalf("deleting %s: %v, %v", key, resp, err)
	}
}

func (r *rig) lease(ttl time.Duration) *session {
	r.t.Helper()
	s := r.current(ttl)
	if s == nil {
		r.t.Fatalf("no lease for %v", ttl)
	}
	return s
}

func (r *rig) revokeLease(ttl time.Duration) {
	r.t.Helper()
	if _, err := r.cli.Revoke(bounded(r.t), clientv3.LeaseID(r.lease(ttl).id)); err != nil {
		r.t.Fatal(err)
	}
}

func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v, want %v", what, err, want)
	}
}

func goroutines() int {
	runtime.Gosched()
	return runtime.NumGoroutine()
}
