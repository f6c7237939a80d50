package bench

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A progress tells a person what runs, how far it is and how long it will still
// take: one line that is redrawn on a terminal, one plain line per step elsewhere.
type progress struct {
	w        io.Writer
	terminal bool

	mu    sync.Mutex
	steps []step
	at    int       // index of the running step
	since time.Time // start of the running step
	width int       // of the line drawn last
	halt  chan struct{}
	idle  sync.WaitGroup
}

type step struct {
	what string
	time time.Duration // expected
}

// newProgress draws to w; a nil w means quiet.
func newProgress(w io.Writer, steps []step) *progress {
	p := &progress{w: w, terminal: isTerminal(w), steps: steps, at: -1, halt: make(chan struct{})}
	if p.w == nil {
		p.w = io.Discard
	}
	if p.terminal {
		p.idle.Go(p.redraw)
	}
	return p
}

// next starts the next step.
func (p *progress) next() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at++
	p.since = time.Now()
	if p.terminal {
		p.draw()
		return
	}
	fmt.Fprintln(p.w, p.line())
}

// say prints a lasting line.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	fmt.Fprintf(p.w, format+"\n", args...)
	if p.terminal && p.at >= 0 {
		p.draw()
	}
}

// stop ends the drawing and leaves a clean line.
func (p *progress) stop() {
	close(p.halt)
	p.idle.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
}

func (p *progress) redraw() {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.halt:
			return
		case <-tick.C:
			p.mu.Lock()
			if p.at >= 0 {
				p.draw()
			}
			p.mu.Unlock()
		}
	}
}

// line describes the running step and the time to go, which counts the steps
// after it and what is left of it.
func (p *progress) line() string {
	s := p.steps[p.at]
	left := max(0, s.time-time.Since(p.since))
	for _, later := range p.steps[p.at+1:] {
		left += later.time
	}
	return fmt.Sprintf("[%2d/%d] %s, about %s to go", p.at+1, len(p.steps), s.what, left.Round(time.Second))
}

func (p *progress) draw() {
	line := p.line()
	fmt.Fprintf(p.w, "\r%-*s", p.width, line)
	p.width = len(line)
}

func (p *progress) wipe() {
	if p.terminal && p.width > 0 {
		fmt.Fprintf(p.w, "\r%*s\r", p.width, "")
		p.width = 0
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || f == nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
