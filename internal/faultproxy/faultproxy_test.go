package faultproxy_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.com/distlock/internal/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// silence is how long nothing may arrive for a test to say that it is held.
const silence = 100 * time.Millisecond

// echo is a server that sends every line back and remembers what it got.
type echo struct {
	ln    net.Listener
	lines chan string
	wg    sync.WaitGroup
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{ln: ln, lines: make(chan string, 100)}
	e.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			e.wg.Go(func() {
				defer c.Close()
				in := bufio.NewScanner(c)
				for in.Scan() {
					e.lines <- in.Text()
					if _, err := io.WriteString(c, in.Text()+"\n"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); e.wg.Wait() })
	return e
}

func setup(t *testing.T, opts ...faultproxy.Option) (*echo, *faultproxy.Proxy) {
	t.Helper()
	e := startEcho(t)
	p, err := faultproxy.New(e.ln.Addr().String(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, p
}

type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *faultproxy.Proxy) *client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

// wantNobody expects a connection that is reset, at once or right after it.
func wantNobody(t *testing.T, p *faultproxy.Proxy) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d, %v; want the connection's end", n, err)
	}
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) receive(within time.Duration) (string, error) {
	c.SetReadDeadline(time.Now().Add(within))
	line, err := c.r.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (c *client) want(line string) {
	c.t.Helper()
	if got, err := c.receive(5 * time.Second); got != line || err != nil {
		c.t.Fatalf("received %q, %v; want %q", got, err, line)
	}
}

func (c *client) wantSilence() {
	c.t.Helper()
	if got, err := c.receive(silence); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("received %q, %v; want nothing", got, err)
	}
}

func (c *client) wantEnd() {
	c.t.Helper()
	got, err := c.receive(5 * time.Second)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("received %q, %v; want the connection's end", got, err)
	}
}

func (e *echo) want(t *testing.T, line string) {
	t.Helper()
	select {
	case got := <-e.lines:
		if got != line {
			t.Fatalf("the server got %q, want %q", got, line)
		}
	case <-time.After(5 * time.Second):
		t.Fatalf("the server did not get %q", line)
	}
}

func (e *echo) wantNothing(t *testing.T) {
	t.Helper()
	select {
	case got := <-e.lines:
		t.Fatalf("the server got %q, want nothing", got)
	case <-time.After(silence):
	}
}

func TestForwards(t *testing.T) {
	e, p := setup(t)
	c := dial(t, p)
	c.send("a")
	e.want(t, "a")
	c.want("a")
	big := strings.Repeat("x", 60_000)
	c.send(big)
	c.want(big)
	if s := p.Stats(); s.Conns != 1 || s.Open != 1 || s.RequestBytes != 2+60_001 || s.ReplyBytes != 2+60_001 {
		t.Errorf("stats: %+v", s)
	}
}

func TestCutHoldsBothWaysUntilHeal(t *testing.T) {
	e, p := setup(t)
	c := dial(t, p)
	p.Cut()
	c.send("a")
	e.wantNothing(t)
	fresh := dial(t, p) // connections made during a cut are silent too
	fresh.send("b")
	e.wantNothing(t)
	p.Heal()
	c.want("a")
	fresh.want("b")
}

func TestCutReplies(t *testing.T) {
	e, p := setup(t)
	c := dial(t, p)
	p.CutReplies()
	c.send("a")
	e.want(t, "a")
	c.wantSilence()
	p.Uncut()
	c.want("a")
}

func TestCutRequests(t *testing.T) {
	e, p := setup(t)
	c := dial(t, p)
	p.CutRequests()
	c.send("a")
	e.wantNothing(t)
	p.Uncut()
	c.want("a")
}

// A request that was held arrives although its client has hung up, as packets
// do that a network delivers late.
func TestHeldRequestOutlivesItsClient(t *testing.T) {
	for _, how := range []string{"orderly", "reset"} {
		t.Run(how, func(t *testing.T) {
			e, p := setup(t)
			c := dial(t, p)
			c.send("first")
			c.want("first")
			e.want(t, "first")
			p.Cut()
			c.send("late")
			// The proxy has to have read it: a reset takes back what is unread.
			e.wantNothing(t)
			if how == "reset" {
				c.Conn.(*net.TCPConn).SetLinger(0)
			}
			c.Close()
			e.wantNothing(t)
			p.Heal()
			e.want(t, "late")
		})
	}
}

func TestSwallowReplies(t *testing.T) {
	e, p := setup(t)
	c := dial(t, p)
	c.send("a")
	c.want("a")
	e.want(t, "a")
	p.SwallowReplies(1)
	c.send("b")
	e.want(t, "b")
	c.wantSilence()
	// Nothing later may pass for the lost reply.
	c.send("c")
	e.want(t, "c")
	c.wantSilence()
	fresh := dial(t, p)
	fresh.send("d")
	fresh.want("d")
	if s := p.Stats(); s.Lost != 1 {
		t.Errorf("lost %d replies, want 1", s.Lost)
	}
}

func TestFailReplies(t *testing.T) {
	e, p := setup(t)
	c := dial(t, p)
	p.FailReplies(1)
	c.send("a")
	e.want(t, "a")
	c.wantEnd()
	fresh := dial(t, p)
	fresh.send("b")
	fresh.want("b")
}

func TestResetAndRefuse(t *testing.T) {
	e, p := setup(t)
	c := dial(t, p)
	c.send("a")
	c.want("a")
	e.want(t, "a")
	p.Cut()
	c.send("held")
	e.wantNothing(t)
	p.Reset()
	c.wantEnd()
	p.Heal()
	e.wantNothing(t) // what was held went with the connection
	p.Refuse()
	wantNobody(t, p)
	p.Heal()
	again := dial(t, p)
	again.send("b")
	again.want("b")
}

func TestDelayAddsLatencyNotCost(t *testing.T) {
	_, p := setup(t)
	c := dial(t, p)
	c.send("warm")
	c.want("warm")
	const d = 50 * time.Millisecond
	p.Delay(d)
	start := time.Now()
	for range 20 {
		c.send("a")
	}
	for range 20 {
		c.want("a")
	}
	took := time.Since(start)
	if took < 2*d {
		t.Errorf("20 round trips took %v, want at least one delay each way", took)
	}
	if took > 10*d {
		t.Errorf("20 requests sent at once took %v: the delays add up", took)
	}
}

func TestInspectTagsAndRewrites(t *testing.T) {
	inspect := func(first bool, data []byte) ([]byte, string) {
		if first {
			data = bytes.Replace(data, []byte("old"), []byte("brandnew"), 1)
		}
		if bytes.Contains(data, []byte("i am x")) {
			return data, "x"
		}
		return data, ""
	}
	e, p := setup(t, faultproxy.WithInspect(inspect))
	a, x := dial(t, p), dial(t, p)
	a.send("old")
	a.want("brandnew")
	e.want(t, "brandnew")
	x.send("i am x")
	x.want("i am x")
	e.want(t, "i am x")

	p.CutTag("x")
	x.send("held")
	e.wantNothing(t)
	a.send("old")
	a.want("old")
	e.want(t, "old")
	p.HealTag("x")
	x.want("held")
	e.want(t, "held")

	// The unnamed are held until they name themselves.
	p.CutTag("")
	late := dial(t, p)
	late.send("hello")
	e.wantNothing(t)
	late.send("i am x")
	late.want("hello")
	late.want("i am x")
}

func TestNobodyBehind(t *testing.T) {
	e, p := setup(t)
	e.ln.Close()
	wantNobody(t, p)
}

func TestCloseEndsEverything(t *testing.T) {
	_, p := setup(t)
	c := dial(t, p)
	p.Cut()
	c.send("a")
	for range 2 {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.wantEnd()
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Error("a closed proxy accepts connections")
	}
	if s := p.Stats(); s.Open != 0 {
		t.Errorf("%d connections are open", s.Open)
	}
}
