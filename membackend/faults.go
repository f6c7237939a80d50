package membackend

import (
	"context"
	"slices"
	"time"
)

// Op is an operation at the Store.
type Op string

// The operations that a Fault can choose.
const (
	Open    Op = "open"    // the first question what the backend can do
	Acquire Op = "acquire" // one attempt to take a lock: TryLock, and Lock when polling
	Enqueue Op = "enqueue" // Lock's request to be queued or served
	Wait    Op = "wait"    // a queued waiter's wait for its turn
	Renew   Op = "renew"   // a renewal, of many locks at once
	Release Op = "release" // Unlock
	Abandon Op = "abandon" // undoing an attempt whose outcome is open
	Leave   Op = "leave"   // giving up a place in the queue
	Retire  Op = "retire"  // the end of a session, with SharedFate
	Hints   Op = "hints"   // a polling waiter's request to be told of releases
	Inspect Op = "inspect"
	Force   Op = "force"
)

// Kind is what goes wrong with a request.
type Kind uint8

const (
	// FailBefore loses the request on its way to the Store.
	FailBefore Kind = iota + 1
	// LoseReply has the Store do what was asked, and the caller get an error.
	LoseReply
	// Late gives the caller an error at once; the Store does what was asked after
	// Delay, or at Resume if Delay is 0. A Wait just fails.
	Late
	// HangRequest keeps the call from returning, whatever happens to its ctx; its
	// request reaches the Store after Delay, or at Resume if Delay is 0.
	HangRequest
	// HangReply has the Store do what was asked at once, but keeps the call from
	// returning, whatever happens to its ctx, before Delay has passed, or before
	// Resume if Delay is 0.
	HangReply
	// SlowRequest has the request take Delay to reach the Store; it does not reach
	// it if ctx ends before.
	SlowRequest
	// SlowReply has the Store do what was asked at once, and the reply take Delay.
	SlowReply
)

// Fault makes requests go wrong. The fields above Kind choose them; those that
// are not set choose any.
type Fault struct {
	Op     Op
	Locker string // Options.Name
	Lock   string // the lock's name. In a renewal of many locks only this one fails
	Skip   int    // so many matching requests pass first
	Times  int    // so many requests are hit; 0 means one, -1 all until Remove

	Kind  Kind
	Delay time.Duration
	Err   error // what the caller gets from FailBefore, LoseReply and Late. Default ErrInjected
}

// Injected is a Fault in place. Its methods are safe for concurrent use.
type Injected struct {
	s       *Store
	f       Fault
	seen    int
	hits    int
	reached chan struct{}
	resume  chan struct{}
	late    []func()
}

// Inject puts a Fault in place. Of several that match a request, the oldest hits.
func (s *Store) Inject(f Fault) *Injected {
	if f.Times == 0 {
		f.Times = 1
	}
	if f.Err == nil {
		f.Err = ErrInjected
	}
	i := &Injected{s: s, f: f, reached: make(chan struct{}), resume: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, i)
	return i
}

// Hits returns how many requests were hit so far.
func (i *Injected) Hits() int {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	return i.hits
}

// Reached is closed when the first request is hit.
func (i *Injected) Reached() <-chan struct{} { return i.reached }

// Remove lets requests pass from now on. Those that were hit stay as they are.
func (i *Injected) Remove() {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.s.faults = slices.DeleteFunc(i.s.faults, func(f *Injected) bool { return f == i })
}

// Resume lets go on what hangs or is late, in the order of arrival, and whatever
// is hit afterwards.
func (i *Injected) Resume() {
	i.s.mu.Lock()
	select {
	case <-i.resume:
	default:
		close(i.resume)
	}
	late := i.late
	i.late = nil
	i.s.mu.Unlock()
	for _, apply := range late {
		apply()
	}
}

// call is what a Fault is matched with. A renewal is one call without a lock's
// name, and one more for each of the locks in it.
type call struct {
	op   Op
	lock string
	part bool // of a renewal
}

// hit returns the fault for c of d, or nil; s.mu is held.
func (s *Store) hit(d *base, c call) *Injected {
	for _, i := range s.faults {
		f := i.f
		if f.Op != "" && f.Op != c.op || f.Locker != "" && f.Locker != d.opts.Name ||
			f.Lock != "" && f.Lock != c.lock || f.Lock == "" && c.part {
			continue
		}
		if i.seen++; i.seen <= f.Skip || f.Times >= 0 && i.hits >= f.Times {
			continue
		}
		if i.hits++; i.hits == 1 {
			close(i.reached)
		}
		return i
	}
	return nil
}

// later applies a request that is late.
func (i *Injected) later(apply func()) {
	if i.f.Delay > 0 {
		time.AfterFunc(i.f.Delay, apply)
		return
	}
	i.s.mu.Lock()
	select {
	case <-i.resume:
		i.s.mu.Unlock()
		apply()
	default:
		i.late = append(i.late, apply)
		i.s.mu.Unlock()
	}
}

// pause waits as the fault says, for ctx only where the fault heeds it.
func (i *Injected) pause(ctx context.Context) error {
	var delay <-chan time.Time
	if i.f.Delay > 0 {
		t := time.NewTimer(i.f.Delay)
		defer t.Stop()
		delay = t.C
	}
	done := ctx.Done()
	if i.f.Kind == HangRequest || i.f.Kind == HangReply {
		done = nil
	}
	select {
	case <-delay:
	case <-i.resume:
	case <-done:
		return context.Cause(ctx)
	}
	return nil
}

func (i *Injected) before() bool {
	return i != nil && (i.f.Kind == SlowRequest || i.f.Kind == HangRequest)
}

func (i *Injected) afterwards() bool {
	return i != nil && (i.f.Kind == SlowReply || i.f.Kind == HangReply)
}

func (i *Injected) is(k Kind) bool { return i != nil && i.f.Kind == k }
