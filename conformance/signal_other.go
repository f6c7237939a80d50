//go:build !unix

package conformance

// Without these signals the cases that need them are not registered.
const canStop = false

func (p *process) stop()   {}
func (p *process) resume() {}
