package testbed_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/distlock/internal/testbed"
)

// TestHelperProgram is not a test: it is the program of the tests below, which
// run this binary again. It starts a server, prints its address and waits.
func TestHelperProgram(t *testing.T) {
	if os.Getenv("TESTBED_HELPER") == "" {
		return
	}
	s := testbed.Redis(t)
	paused := testbed.Redis(t, testbed.Own())
	paused.Pause(t)
	fmt.Printf("SERVERS %s %s\n", s.Addr(), paused.Addr())
	select {}
}

func startHelper(t *testing.T) (cmd *exec.Cmd, addrs []string) {
	t.Helper()
	cmd = exec.Command(os.Args[0], "-test.run=^TestHelperProgram$")
	cmd.Env = append(os.Environ(), "TESTBED_HELPER=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	in := bufio.NewScanner(out)
	for in.Scan() {
		if rest, ok := strings.CutPrefix(in.Text(), "SERVERS "); ok {
			return cmd, strings.Fields(rest)
		}
	}
	t.Fatal("the helper started no server")
	return nil, nil
}

func provider(t *testing.T) string {
	t.Helper()
	b, err := testbed.Open(t.Context(), testbed.Config{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	return b.Provider()
}

// However a program ends, its servers end with it.
func TestServersEndWithTheirProgram(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			if os.Getenv("DISTLOCK_TESTBED") == "external" {
				t.Skip("external servers do not end; choose another DISTLOCK_TESTBED to test this")
			}
			if _, err := exec.LookPath("docker"); err != nil && sig == syscall.SIGKILL && provider(t) == "containers" {
				t.Skip("the docker command is missing: without it a killed program's containers stay until the next one")
			}
			testbed.Redis(t) // skips where there is no server
			cmd, addrs := startHelper(t)
			for _, addr := range addrs {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Errorf("after %v the program exited with 0", sig)
			}
			for _, addr := range addrs {
				eventually(t, 10*time.Second, "gone: "+addr, func() bool {
					c, err := net.Dial("tcp", addr)
					if err == nil {
						c.Close()
					}
					return err != nil
				})
			}
		})
	}
}

// What is missing is named, with the command that installs it.
func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	b, err := testbed.Open(t.Context(), testbed.Config{Provider: "processes", Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	}()
	for what, start := range map[string]func(context.Context) error{
		"redis-server": func(ctx context.Context) error { _, err := b.Redis(ctx); return err },
		"java":         func(ctx context.Context) error { _, err := b.ZooKeeper(ctx, 1); return err },
	} {
		err := start(t.Context())
		var missing *testbed.MissingError
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "make deps") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestUnknownProvider(t *testing.T) {
	_, err := testbed.Open(t.Context(), testbed.Config{Provider: "cloud", Log: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "DISTLOCK_TESTBED=cloud") {
		t.Errorf("%v", err)
	}
}

func TestExternal(t *testing.T) {
	s := testbed.Redis(t)
	z := testbed.ZooKeeper(t, 1)
	t.Setenv("DISTLOCK_TESTBED_REDIS", s.Addr())
	t.Setenv("DISTLOCK_TESTBED_ZOOKEEPER", strings.Join(z.Addrs(), " , "))
	b, err := testbed.Open(t.Context(), testbed.Config{Provider: "external", Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	got, err := b.Redis(t.Context())
	if err != nil || got.Addr() != s.Addr() {
		t.Fatalf("%v, %v", got, err)
	}
	if err := got.Fault().Kill(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("killing an external server: %v", err)
	}
	c, err := b.ZooKeeper(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Isolate(c.Servers()[0]); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("cutting an external server: %v", err)
	}
	var missing *testbed.MissingError
	if _, err := b.RedisNodes(t.Context(), 5); !errors.As(err, &missing) {
		t.Errorf("five nodes from one address: %v", err)
	}
	if _, err := b.Etcd(t.Context(), 1); !errors.As(err, &missing) || !strings.Contains(err.Error(), "DISTLOCK_TESTBED_ETCD") {
		t.Errorf("no address: %v", err)
	}
}

func TestBedClose(t *testing.T) {
	if os.Getenv("DISTLOCK_TESTBED") == "external" {
		t.Skip("external servers are not closed; choose another DISTLOCK_TESTBED to test this")
	}
	testbed.Redis(t) // skips where there is no server
	b, err := testbed.Open(t.Context(), testbed.Config{Log: io.Discard, Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := redisClient(t, s.Addr()).ConfigGet(t.Context(), "appendfsync").Val()["appendfsync"]; got != "always" {
		t.Errorf("durable: appendfsync is %q", got)
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := net.Dial("tcp", s.Addr()); err == nil {
		c.Close()
		t.Error("the server runs after Close")
	}
	if _, err := b.Redis(t.Context()); err == nil {
		t.Error("a closed bed started a server")
	}
}
