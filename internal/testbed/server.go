package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"example.com/distlock/internal/faultproxy"
)

// Server is one running server.
//
// The methods that take a testing.TB are for tests and fail the test on an error;
// Fault has the same for programs. A server's faults are not to be called
// concurrently with each other.
type Server struct {
	kind   kind
	addr   string
	bed    *Bed
	spec   *spec
	inst   instance // nil for an external server
	ready  func(ctx context.Context, addr string) error
	link   *faultproxy.Proxy
	shared bool
}

// Addr is the server's host:port for clients.
func (s *Server) Addr() string { return s.addr }

// Link is the proxy through which a Redis replica is connected to its primary;
// cutting it stalls the replication. It is nil for any other server and for an
// external replica.
func (s *Server) Link() *faultproxy.Proxy { return s.link }

// Fault returns the faults for use without a testing.TB.
func (s *Server) Fault() Fault { return Fault{s} }

// Pause stops the server's execution where it stands; its connections stay open
// and answer nothing until Resume.
func (s *Server) Pause(t testing.TB) { t.Helper(); try(t, s.Fault().Pause) }

// Resume ends Pause.
func (s *Server) Resume(t testing.TB) { t.Helper(); try(t, s.Fault().Resume) }

// Kill ends the server at once (SIGKILL).
func (s *Server) Kill(t testing.TB) { t.Helper(); try(t, s.Fault().Kill) }

// Restart kills the server if it runs, starts it at the same address and waits
// until it answers. Its data is kept or lost.
func (s *Server) Restart(t testing.TB, keepData bool) {
	t.Helper()
	try(t, func(ctx context.Context) error { return s.Fault().Restart(ctx, keepData) })
}

// Proxy puts a fault proxy of the test's own in front of the server.
func (s *Server) Proxy(t testing.TB) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(s.addr)
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	return p
}

// Promote makes a Redis replica a primary.
func (s *Server) Promote(t testing.TB) { t.Helper(); try(t, s.Fault().Promote) }

// Logs returns the last lines of the server's output.
func (s *Server) Logs() string {
	if s.inst == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.inst.logs(ctx)
}

// try runs a fault for a test. The test's own context would be over in a Cleanup,
// where many faults are undone.
func try(t testing.TB, fault func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*startTimeout)
	defer cancel()
	check(t, fault(ctx))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Fault makes a server fail.
type Fault struct{ s *Server }

func (f Fault) own(what string) error {
	switch {
	case f.s.inst == nil:
		return fmt.Errorf("testbed: %s %s: an external server cannot be controlled: %w", what, f.s.kind, errors.ErrUnsupported)
	case f.s.shared:
		return fmt.Errorf("testbed: %s %s: the server is shared with other tests; ask for one with testbed.Own()", what, f.s.kind)
	}
	return nil
}

func (f Fault) do(ctx context.Context, what string, fn func(context.Context) error) error {
	if err := f.own(what); err != nil {
		return err
	}
	if err := fn(ctx); err != nil {
		return fmt.Errorf("testbed: %s %s: %w", what, f.s.kind, err)
	}
	return nil
}

// Pause is [Server.Pause].
func (f Fault) Pause(ctx context.Context) error {
	return f.do(ctx, "pause", func(ctx context.Context) error { return f.s.inst.pause(ctx) })
}

// Resume is [Server.Resume].
func (f Fault) Resume(ctx context.Context) error {
	return f.do(ctx, "resume", func(ctx context.Context) error { return f.s.inst.resume(ctx) })
}

// Kill is [Server.Kill].
func (f Fault) Kill(ctx context.Context) error {
	return f.do(ctx, "kill", func(ctx context.Context) error { return f.s.inst.kill(ctx) })
}

// Restart is [Server.Restart].
func (f Fault) Restart(ctx context.Context, keepData bool) error {
	return f.do(ctx, "restart", func(ctx context.Context) error {
		if !keepData && f.s.spec.mustKeepData {
			return fmt.Errorf("a member of an etcd cluster that lost its data cannot join it again: %w", errors.ErrUnsupported)
		}
		if err := f.s.inst.kill(ctx); err != nil {
			return err
		}
		if !keepData {
			if err := f.s.inst.wipe(ctx); err != nil {
				return err
			}
		}
		if err := f.s.inst.start(ctx); err != nil {
			return err
		}
		return f.s.waitReady(ctx)
	})
}

// Promote is [Server.Promote].
func (f Fault) Promote(ctx context.Context) error {
	return f.do(ctx, "promote", func(ctx context.Context) error {
		reply, err := ask(ctx, f.s.addr, "REPLICAOF NO ONE\r\n")
		if err == nil && reply != "+OK" {
			err = errors.New(reply)
		}
		return err
	})
}

// waitReady asks the server until it answers.
func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.ready(once, s.addr)
		cancel()
		if err == nil {
			return nil
		}
		if s.inst != nil && s.inst.exited(ctx) {
			return fmt.Errorf("testbed: %s at %s: %w:\n%s", s.kind, s.addr, errExited, s.Logs())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("testbed: %s at %s does not answer: %w\n%s", s.kind, s.addr, err, s.Logs())
		}
	}
}

// ask opens a connection, sends text and returns the first line of the answer.
func ask(ctx context.Context, addr, text string) (string, error) {
	answer, err := askAll(ctx, addr, text, func(got string) bool {
		n := len(got)
		return n > 0 && got[n-1] == '\n'
	})
	for i, c := range answer {
		if c == '\r' || c == '\n' {
			return answer[:i], err
		}
	}
	return answer, err
}

// askAll opens a connection, sends text and reads until enough says so or the
// server ends the connection.
func askAll(ctx context.Context, addr, text string, enough func(string) bool) (string, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	var got []byte
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		got = append(got, buf[:n]...)
		if enough(string(got)) || errors.Is(err, io.EOF) {
			return string(got), nil
		}
		if err != nil {
			return string(got), err
		}
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
