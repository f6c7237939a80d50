//go:build !linux && !darwin

package testbed

import (
	"errors"
	"os"
	"os/exec"
)

// Here only external servers can be used.
const supported = false

var errSystem = errors.New("testbed: not available on this operating system")

func tryLock(*os.File) bool             { return false }
func waitLock(*os.File) error           { return errSystem }
func detach(*exec.Cmd)                  {}
func pauseProcess(*os.Process) error    { return errSystem }
func resumeProcess(p *os.Process) error { return errSystem }
