package membackend

import "errors"

var (
	// ErrInjected is what a faulty request returns if [Fault.Err] is not set. Like
	// an error of a network it says nothing about what the Store did.
	ErrInjected = errors.New("membackend: injected fault")

	errExpired   = errors.New("membackend: TTL passed without a renewal")
	errEnded     = errors.New("membackend: session ended")
	errRemoved   = errors.New("membackend: lock removed from its holder")
	errAbandoned = errors.New("membackend: attempt was given up before")
	errClosed    = errors.New("membackend: driver closed")
)
