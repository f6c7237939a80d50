package conformance_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
)

// This file is an example of what the author of another backend writes: a
// driver, here for a small lock server that speaks JSON over TCP, and a Harness
// for the suite. Waiters poll, each lock has a TTL of its own, and the server
// counts its grants.

func TestThirdParty(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Harness { return newTownHall(t) })
}

const workerEnv = "DISTLOCK_CONFORMANCE_WORKER"

func TestMain(m *testing.M) {
	if addr := os.Getenv(workerEnv); addr != "" {
		conformance.WorkerMain(func(opts ...distlock.Option) (distlock.Locker, error) {
			return distlock.New(newClerk(addr, new(wire)), opts...)
		})
		return
	}
	os.Exit(m.Run())
}

// The driver.

type (
	question struct {
		Op    string // acquire, renew, release, abandon
		Name  string
		Owner string
		TTL   time.Duration
	}
	reply struct {
		Done      bool
		Number    uint64
		Remaining time.Duration // of another holder
		Err       string
	}
)

// clerk is the driver: the client's end of one connection.
type clerk struct {
	addr string
	wire *wire

	turn chan struct{} // holds a value while a question is open: it can be waited for with a ctx
	conn net.Conn
	in   *json.Decoder
}

func newClerk(addr string, w *wire) *clerk {
	return &clerk{addr: addr, wire: w, turn: make(chan struct{}, 1)}
}

func (c *clerk) Capabilities(context.Context) (driver.Capabilities, error) {
	return driver.Capabilities{
		Backend: "town hall", Fencing: true, LockTTL: true,
		MinTTL: 20 * time.Millisecond, TTLQuantum: time.Millisecond, NumberKind: "counter",
	}, nil
}

// ask sends one question and reads its answer. After any error the connection is
// in doubt and is not used again.
func (c *clerk) ask(ctx context.Context, q question) (r reply, err error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return r, context.Cause(ctx)
	}
	defer func() {
		if err != nil && c.conn != nil {
			_ = c.conn.Close()
			c.conn = nil
		}
	}()
	if c.conn == nil {
		if c.conn, err = c.wire.dial(ctx, c.addr); err != nil {
			return r, err
		}
		c.in = json.NewDecoder(bufio.NewReader(c.conn))
	}
	conn := c.conn
	_ = conn.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err = json.NewEncoder(conn).Encode(q); err == nil {
		err = c.in.Decode(&r)
	}
	if err == nil && r.Err != "" {
		err = fmt.Errorf("town hall: %s", r.Err)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return r, err
}

func (c *clerk) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	from := time.Now()
	r, err := c.ask(ctx, question{"acquire", req.Name, req.Owner, req.TTL})
	if err != nil {
		return driver.Grant{}, err
	}
	if !r.Done {
		return driver.Grant{}, &driver.HeldError{Remaining: r.Remaining, Waiters: -1}
	}
	return driver.Grant{Lease: &paper{c: c, req: req}, Number: r.Number, From: from, TTL: req.TTL}, nil
}

func (c *clerk) Abandon(ctx context.Context, req driver.Request) error {
	_, err := c.ask(ctx, question{"abandon", req.Name, req.Owner, req.TTL})
	return err
}

func (c *clerk) Close(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
	return nil
}

// paper is the lease. The clerk keeps them all.
type paper struct {
	c    *clerk
	req  driver.Request
	mu   sync.Mutex
	open bool // a release whose answer is missing
}

func (p *paper) Keeper() driver.Keeper { return p.c }

func (p *paper) Release(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, err := p.c.ask(ctx, question{"release", p.req.Name, p.req.Owner, p.req.TTL})
	switch {
	case err != nil:
		p.open = true
		return err
	case !r.Done && !p.open:
		return driver.ErrNotHeld
	}
	p.open = false
	return nil
}

func (c *clerk) Renew(ctx context.Context, ks []driver.Kept) []driver.Confirm {
	cs := make([]driver.Confirm, len(ks))
	for i, k := range ks {
		req := k.(*paper).req
		from := time.Now()
		r, err := c.ask(ctx, question{"renew", req.Name, req.Owner, req.TTL})
		if err == nil && !r.Done {
			err = driver.ErrNotHeld
		}
		cs[i] = driver.Confirm{From: from, TTL: req.TTL, Err: err}
	}
	return cs
}

func (c *clerk) Every() time.Duration         { return 0 }
func (c *clerk) MaxBatch() int                { return 16 }
func (c *clerk) Retire(context.Context) error { return nil }

// wire carries connections, and can be cut or slow.
type wire struct {
	mu    sync.Mutex
	cut   bool
	delay time.Duration // of what arrives
}

func (w *wire) state() (cut bool, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut, w.delay
}

func (w *wire) set(cut bool, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut, w.delay = cut, delay
}

func (w *wire) dial(ctx context.Context, addr string) (net.Conn, error) {
	if cut, _ := w.state(); cut {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &cuttable{conn, w}, nil
}

type cuttable struct {
	net.Conn
	w *wire
}

func (c *cuttable) Write(p []byte) (int, error) {
	if cut, _ := c.w.state(); cut {
		return len(p), nil // into the void
	}
	return c.Conn.Write(p)
}

func (c *cuttable) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		cut, delay := c.w.state()
		if err != nil || !cut {
			<-time.After(delay)
			return n, err
		}
	}
}

// The server.

type townHall struct {
	addr string

	mu    sync.Mutex
	ln    net.Listener
	conns map[net.Conn]struct{}
	last  uint64
	locks map[string]entry
	dead  map[string]bool // owners that were given up

	wires map[distlock.Locker]*wire
}

type entry struct {
	owner  string
	number uint64
	ends   time.Time
}

func newTownHall(t testing.TB) *townHall {
	t.Helper()
	h := &townHall{
		conns: map[net.Conn]struct{}{}, locks: map[string]entry{},
		dead: map[string]bool{}, wires: map[distlock.Locker]*wire{},
	}
	h.open(t)
	t.Cleanup(h.close)
	return h
}

func (h *townHall) open(t testing.TB) {
	t.Helper()
	ln, err := net.Listen("tcp", cmp.Or(h.addr, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.ln, h.addr = ln, ln.Addr().String()
	h.mu.Unlock()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			h.mu.Lock()
			h.conns[conn] = struct{}{}
			h.mu.Unlock()
			go h.serve(conn)
		}
	}()
}

func (h *townHall) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.ln.Close()
	for conn := range h.conns {
		_ = conn.Close()
	}
	clear(h.conns)
}

func (h *townHall) serve(conn net.Conn) {
	in, out := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	for {
		var q question
		if in.Decode(&q) != nil || out.Encode(h.answer(q)) != nil {
			return
		}
	}
}

func (h *townHall) answer(q question) reply {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	e, held := h.locks[q.Name]
	if held && !now.Before(e.ends) {
		delete(h.locks, q.Name)
		held = false
	}
	mine := held && e.owner == q.Owner
	switch q.Op {
	case "acquire":
		switch {
		case h.dead[q.Owner]:
			return reply{Err: "given up before"}
		case held && !mine:
			return reply{Remaining: e.ends.Sub(now)}
		case !held:
			h.last++
			e = entry{owner: q.Owner, number: h.last}
		}
		e.ends = now.Add(q.TTL)
		h.locks[q.Name] = e
		return reply{Done: true, Number: e.number}
	case "renew":
		if mine {
			e.ends = now.Add(q.TTL)
			h.locks[q.Name] = e
		}
	default: // release, abandon
		h.dead[q.Owner] = true
		if mine {
			delete(h.locks, q.Name)
		}
	}
	return reply{Done: mine}
}

// The Harness.

func (h *townHall) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	w := new(wire)
	l, err := distlock.New(newClerk(h.addr, w), opts...)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wires[l] = w
	return l
}

func (h *townHall) OpenDriver(testing.TB) driver.Driver { return newClerk(h.addr, new(wire)) }

func (h *townHall) Capabilities() driver.Capabilities {
	caps, _ := new(clerk).Capabilities(context.Background()) // asks nobody
	return caps
}

func (h *townHall) Expire(t testing.TB, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.locks, name)
}

func (h *townHall) Partition(t testing.TB, l distlock.Locker) (heal func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.wires[l]
	w.set(true, 0)
	return func() { w.set(false, 0) }
}

func (h *townHall) Delay(t testing.TB, l distlock.Locker, d time.Duration) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.wires[l]
	w.set(false, d)
	return func() { w.set(false, 0) }
}

func (h *townHall) Restart(t testing.TB) {
	t.Helper()
	h.close()
	h.open(t)
}

func (h *townHall) Worker(t testing.TB) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+h.addr)
	return cmd
}
