//go:build unix

package conformance

import "syscall"

const canStop = true

// stop freezes the process: nothing of it runs until resume.
func (p *process) stop() { p.signal(syscall.SIGSTOP) }

func (p *process) resume() { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.e.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.e.Fatalf("worker process: %v: %v", s, err)
	}
}
