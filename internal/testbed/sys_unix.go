//go:build linux || darwin

package testbed

import (
	"os"
	"os/exec"
	"syscall"
)

const supported = true

// tryLock takes an exclusive lock on an open file, without waiting. The lock
// ends when the last copy of the file descriptor is closed, at the latest with
// the processes that have one.
func tryLock(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// waitLock waits for an exclusive lock on an open file.
func waitLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err != syscall.EINTR {
			return err
		}
	}
}

// detach puts a command into a process group of its own, so that a Ctrl-C in the
// terminal reaches the parent alone, which then stops its servers in order.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

func pauseProcess(p *os.Process) error  { return p.Signal(syscall.SIGSTOP) }
func resumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
