package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/distlock"
)

// Crash is how long a waiter had to wait after the process that held the lock
// was killed with SIGKILL, over several kills.
type Crash struct {
	TTL     time.Duration   `json:"ttl_ns"`
	Samples []time.Duration `json:"samples_ns"` // in ascending order

	Violations []string `json:"violations,omitempty"`
}

func (c Crash) median() time.Duration { return c.Samples[len(c.Samples)/2] }

// ofTTL is the median as a fraction of the TTL.
func (c Crash) ofTTL() float64 { return float64(c.median()) / float64(c.TTL) }

// crashes kills n holders, each of a lock of its own, at times spread evenly
// over the renewal interval, since what is measured depends on when in it the
// process dies. They run at the same time: nothing here is shorter than many
// milliseconds.
func crashes(ctx context.Context, t *target, holder []string, ttl time.Duration, n int) (Crash, error) {
	res := Crash{TTL: ttl}
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
	)
	for i, name := range numbered("crash", n) {
		wg.Go(func() {
			phase := ttl / 3 * time.Duration(i) / time.Duration(n)
			d, violation, err := crash(ctx, t, holder, name, ttl, phase)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case violation != "":
				res.Violations = append(res.Violations, violation)
			case err != nil:
				errs = append(errs, err)
			default:
				res.Samples = append(res.Samples, d)
			}
		})
	}
	wg.Wait()
	slices.Sort(res.Samples)
	return res, errors.Join(errs...)
}

func crash(ctx context.Context, t *target, holder []string, name string, ttl, phase time.Duration) (took time.Duration, violation string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*ttl+20*time.Second)
	defer cancel()

	child, err := startHolder(ctx, t, holder, name, ttl)
	if err != nil {
		return 0, "", err
	}
	defer child.kill()

	waiter, err := t.dial(distlock.WithTTL(ttl))
	if err != nil {
		return 0, "", err
	}
	defer waiter.Close()

	type outcome struct {
		lk  *distlock.Lock
		at  time.Time
		err error
	}
	got := make(chan outcome, 1)
	go func() {
		lk, err := waiter.Lock(ctx, name)
		got <- outcome{lk, time.Now(), err}
	}()

	// Long enough for the waiter to stand in line and for a first renewal.
	select {
	case o := <-got:
		if o.err != nil {
			return 0, "", fmt.Errorf("wait for %s: %w", name, o.err)
		}
		return 0, fmt.Sprintf("%s: token %d granted while the holder of token %d was alive", name, o.lk.Token(), child.token), nil
	case <-time.After(ttl/2 + phase):
	}

	killed := time.Now()
	child.kill()
	o := <-got
	if o.err != nil {
		return 0, "", fmt.Errorf("wait for the lock of a killed process: %w", o.err)
	}
	defer func() { _ = o.lk.Unlock(ctx) }() // measured already; Close would release it too
	if tok := o.lk.Token(); tok <= child.token {
		return 0, fmt.Sprintf("%s: token %d after the killed holder's %d", name, tok, child.token), nil
	}
	return o.at.Sub(killed), "", nil
}

// A holderProcess is another process that holds a lock until it is killed.
type holderProcess struct {
	cmd   *exec.Cmd
	token distlock.Token
	kill  func()
}

// startHolder starts the command (this program with a hidden subcommand, see
// HoldMain) and returns when it says that it holds name.
func startHolder(ctx context.Context, t *target, command []string, name string, ttl time.Duration) (*holderProcess, error) {
	args := append(slices.Clone(command[1:]),
		"-backend", t.backend, "-addrs", strings.Join(t.addrs, ","), "-name", name, "-ttl", ttl.String())
	cmd := exec.CommandContext(ctx, command[0], args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe() // closes if this process dies; the child then ends too
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	h := &holderProcess{cmd: cmd, kill: sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // "signal: killed" is what was asked for
		_ = stdin.Close()
	})}
	line, readErr := bufio.NewReader(stdout).ReadString('\n')
	tok, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(line, "held ")), 10, 64)
	if err = cmp.Or(readErr, err); err != nil {
		h.kill()
		return nil, fmt.Errorf("holder process: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	h.token = distlock.Token(tok)
	return h, nil
}

// HoldMain is the main of the process that is killed: it takes a lock, prints
// "held" and the token, and renews until it is killed or in is closed, which
// happens when its parent dies. It releases nothing.
func HoldMain(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("hold", flag.ContinueOnError)
	var (
		backend = flags.String("backend", "", "")
		addrs   = flags.String("addrs", "", "")
		name    = flags.String("name", "", "")
		ttl     = flags.Duration("ttl", 0, "")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	t := &target{backend: *backend, addrs: strings.Split(*addrs, ",")}
	c, err := t.dial(distlock.WithTTL(*ttl))
	if err != nil {
		return err
	}
	lockCtx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	lk, err := c.Lock(lockCtx, *name)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "held %d\n", uint64(lk.Token()))
	_, err = io.Copy(io.Discard, in)
	return err
}

// holderCommand is this program's own hidden subcommand.
func holderCommand() ([]string, error) {
	exe, err := os.Executable()
	return []string{exe, HoldCommand}, err
}

// HoldCommand is the hidden subcommand under which a program that calls Run
// must call HoldMain.
const HoldCommand = "bench-hold"
