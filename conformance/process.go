package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// process is a worker process as the suite sees it.
type process struct {
	e   *env
	cmd *exec.Cmd
	in  io.WriteCloser
	err bytes.Buffer // its standard error, for when it fails

	mu      sync.Mutex
	lastID  int
	answers map[int]chan workerAnswer // by request
	gone    chan struct{}             // closed when its output has ended
}

// call is a request that a process works on.
type call struct {
	p       *process
	what    string
	answers chan workerAnswer
}

// spawn starts a worker process with a Locker of the given TTL.
func (e *env) spawn(ttl time.Duration) *process {
	e.Helper()
	p := &process{e: e, cmd: e.h.(Spawner).Worker(e.T), answers: map[int]chan workerAnswer{}, gone: make(chan struct{})}
	p.cmd.Stderr = &p.err
	in, err := p.cmd.StdinPipe()
	if err != nil {
		e.Fatal(err)
	}
	p.in = in
	// A pipe of our own: Wait closes StdoutPipe's while it may still be read.
	out, w, err := os.Pipe()
	if err != nil {
		e.Fatal(err)
	}
	p.cmd.Stdout = w
	if err := p.cmd.Start(); err != nil {
		e.Fatalf("worker process: %v", err)
	}
	_ = w.Close() // the child has its own
	go p.read(out)
	e.Cleanup(func() {
		_ = p.cmd.Process.Kill() // may be dead already
		_ = p.in.Close()
		<-p.gone
		_ = p.cmd.Wait() // killed: always an error
		if e.Failed() && p.err.Len() > 0 {
			e.Logf("standard error of the worker process:\n%s", p.err.Bytes())
		}
	})
	p.send("open", "", ttl).answer()
	return p
}

func (p *process) read(out *os.File) {
	defer close(p.gone)
	defer func() { _ = out.Close() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var a workerAnswer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			continue // the program's own output, such as a test binary's PASS
		}
		p.mu.Lock()
		ch := p.answers[a.ID]
		p.mu.Unlock()
		if ch != nil {
			ch <- a
		}
	}
}

// send sends a request.
func (p *process) send(op, name string, ttl time.Duration) *call {
	p.e.Helper()
	p.mu.Lock()
	p.lastID++
	id := p.lastID
	c := &call{p: p, what: op + " " + name, answers: make(chan workerAnswer, 2)} // waiting, and the answer
	p.answers[id] = c.answers
	p.mu.Unlock()
	line, err := json.Marshal(workerRequest{ID: id, Op: op, Name: name, TTL: ttl})
	if err != nil {
		p.e.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.e.Fatalf("worker process: %v", err)
	}
	return c
}

func (c *call) next() workerAnswer {
	c.p.e.Helper()
	ctx, cancel := c.p.e.soon()
	defer cancel()
	select {
	case a := <-c.answers:
		return a
	case <-c.p.gone:
		c.p.e.Fatalf("worker process ended during %s", c.what)
	case <-ctx.Done():
		c.p.e.Fatalf("worker process gave no answer to %s in %v", c.what, patience)
	}
	panic("unreachable")
}

// answer returns the answer to the request itself.
func (c *call) answer() workerAnswer {
	c.p.e.Helper()
	for {
		if a := c.next(); !a.Waiting {
			return a
		}
	}
}

// waits returns when the request has begun to wait.
func (c *call) waits() {
	c.p.e.Helper()
	if a := c.next(); !a.Waiting {
		c.p.e.Fatalf("worker process: %s was answered with %+v, want it to wait", c.what, a)
	}
}

// lock makes the process take name.
func (p *process) lock(name string) workerAnswer {
	p.e.Helper()
	a := p.send("lock", name, 0).answer()
	if a.Err != "" {
		p.e.Fatalf("worker process: Lock(%q) failed: %s", name, a.Err)
	}
	return a
}

// kill ends the process with SIGKILL and waits until it is gone.
func (p *process) kill() {
	p.e.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.e.Fatalf("worker process: %v", err)
	}
	p.e.await(p.gone, "the killed worker process to end")
}
