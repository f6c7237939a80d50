package redlockbackend

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
)

// A QuorumError reports that no majority of the nodes agreed, because too many of
// them failed. It is transient, unless so many nodes answer what trying again does
// not mend (wrong credentials, a replica, …) that no majority is possible: then
// it comes in a driver.PermanentError. The errors of the nodes are reachable with
// errors.As and errors.Is.
type QuorumError struct {
	Op     string // "acquire", "renew", "release", "probe", …
	Nodes  int
	Quorum int         // nodes that had to agree
	Agreed int         // nodes that did
	Held   int         // nodes that have the lock for another owner, or not for us
	Failed []NodeError // the others, in the order of the clients given to New
}

func (e *QuorumError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no quorum to %s: %d of %d nodes agreed, %d needed", e.Op, e.Agreed, e.Nodes, e.Quorum)
	if e.Held > 0 {
		fmt.Fprintf(&b, ", %d refused", e.Held)
	}
	for _, n := range e.Failed {
		fmt.Fprintf(&b, "; %v", n)
	}
	return b.String()
}

func (e *QuorumError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, n := range e.Failed {
		errs[i] = n
	}
	return errs
}

// A NodeError is the failure of one node.
type NodeError struct {
	Index     int    // in the clients given to New, from 0
	Node      string // for people: number and address
	Permanent bool   // trying again does not mend it
	Err       error
}

func (e NodeError) Error() string { return e.Node + ": " + e.Err.Error() }
func (e NodeError) Unwrap() error { return e.Err }

// Permanent for one node is what redisnode.Permanent and its probe say. One such
// node is like a dead one; the whole is permanent when those that are left cannot
// be a majority.
func nodeError(n *node, err error) NodeError {
	e := NodeError{Index: n.index, Node: n.name, Err: err}
	if p, ok := errors.AsType[*driver.PermanentError](err); ok {
		e.Permanent, e.Err = true, p.Err
	} else {
		e.Permanent = redisnode.Permanent(err)
	}
	return e
}

// noQuorum makes the error of a round that failed.
func (d *redlockDriver) noQuorum(op string, agreed, held int, failed []NodeError) error {
	slices.SortFunc(failed, func(a, b NodeError) int { return a.Index - b.Index })
	q := &QuorumError{Op: op, Nodes: len(d.nodes), Quorum: d.quorum, Agreed: agreed, Held: held, Failed: failed}
	permanent := 0
	for _, f := range failed {
		if f.Permanent {
			permanent++
		}
	}
	if len(d.nodes)-permanent < d.quorum {
		return &driver.PermanentError{Err: q}
	}
	return q
}
