package redlockbackend

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
)

// maxBatch keeps the time of a pipeline on a node below NodeTimeout as a rule.
const maxBatch = 100

// keeper renews the leases of one driver, many in one round trip to each node.
// They share no fate: each has keys and an expiry of its own.
type keeper struct{ d *redlockDriver }

func (k *keeper) Every() time.Duration { return 0 }
func (k *keeper) MaxBatch() int        { return maxBatch }

// Retire does nothing: there is no session.
func (k *keeper) Retire(context.Context) error { return nil }

// Renew extends each lease on every node. A majority that still has it confirms
// it; so many that do not that no majority can have it are final. It returns as
// soon as the answer for each lease is certain. Then, in the background, nodes
// that had lost a lease which the majority has just proved get it back.
func (k *keeper) Renew(ctx context.Context, ks []driver.Kept) []driver.Confirm {
	confirms := make([]driver.Confirm, len(ks))
	if len(ks) == 0 {
		return confirms
	}
	d := k.d
	r := &renewal{d: d, start: time.Now(), open: slices.Clone(d.nodes), certain: make(chan struct{})}
	timeout := time.Duration(math.MaxInt64)
	for _, kept := range ks {
		l := kept.(*lease)
		timeout = min(timeout, d.renewalTimeout(l.req.TTL))
		r.leases = append(r.leases, renewed{lease: l})
	}
	if end, ok := ctx.Deadline(); ok { // to answer for the others when one is in doubt
		left := time.Until(end)
		timeout = min(timeout, left-left/8)
	}
	answers := ask(d, d.nodes, timeout, r.extendOn)
	if !d.goes(func() { r.collect(answers, timeout) }) {
		for i := range confirms {
			confirms[i].Err = errClosed
		}
		return confirms
	}
	select {
	case <-r.certain:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.leases {
		l := &r.leases[i]
		if confirms[i] = l.confirm; !l.decided {
			confirms[i].Err = d.interrupted(ctx, "renew", len(l.has), len(l.not), slices.Concat(r.failed, l.failed), r.open)
		}
	}
	return confirms
}

// renewal is one round of extending.
type renewal struct {
	d       *redlockDriver
	start   time.Time
	certain chan struct{} // closed when every lease is decided

	mu     sync.Mutex
	leases []renewed
	open   []*node
	failed []NodeError // whole nodes
}

type renewed struct {
	lease    *lease
	has, not []*node
	failed   []NodeError // answers for this lease alone
	decided  bool
	confirm  driver.Confirm
}

func (r *renewal) extendOn(ctx context.Context, n *node) ([]redisnode.Reply, error) {
	calls := make([]redisnode.Call, len(r.leases))
	for i := range r.leases {
		l := r.leases[i].lease
		calls[i] = redisnode.Call{
			Script: redisnode.Extend,
			Keys:   []string{r.d.layout.Lock(l.req.Name)},
			Args:   []any{wireOwner(l.req.Owner, l.try), l.req.TTL.Milliseconds()},
		}
	}
	if err := r.d.ready(ctx, n); err != nil {
		return nil, err
	}
	return runAll(ctx, n, calls)
}

func (r *renewal) collect(answers <-chan answer[[]redisnode.Reply], timeout time.Duration) {
	told := false
	for range r.d.nodes {
		if r.add(<-answers) && !told {
			told = true
			close(r.certain)
		}
	}
	r.refill(timeout)
}

// add counts one node's answer, and reports whether every lease is decided.
func (r *renewal) add(a answer[[]redisnode.Reply]) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = without(r.open, a.node)
	if a.err != nil {
		r.failed = append(r.failed, nodeError(a.node, a.err))
	}
	undecided := 0
	for i := range r.leases {
		l := &r.leases[i]
		if a.err == nil {
			l.add(a.node, a.value[i])
		}
		r.decide(l)
		if !l.decided {
			undecided++
		}
	}
	return undecided == 0
}

// add counts one node's answer for one lease. Only a 1 confirms.
func (l *renewed) add(n *node, reply redisnode.Reply) {
	err := reply.Err
	has := false
	if err == nil {
		has, err = parseCount(reply.Value)
	}
	switch {
	case has:
		l.has = append(l.has, n)
	case err == nil || redisnode.WrongType(err):
		l.not = append(l.not, n)
	default:
		l.failed = append(l.failed, nodeError(n, err))
	}
}

func (r *renewal) decide(l *renewed) {
	if l.decided {
		return
	}
	d := r.d
	l.decided = true
	switch {
	case len(l.has) >= d.quorum:
		ttl := l.lease.req.TTL
		if took := time.Since(r.start); validity(ttl, took) > 0 {
			l.confirm = driver.Confirm{From: r.start, TTL: ttl}
		} else {
			l.confirm.Err = fmt.Errorf("a majority renewed, but after %v nothing is left of the TTL of %v", took, ttl)
		}
	case len(l.not) > len(d.nodes)-d.quorum:
		l.confirm.Err = driver.ErrNotHeld
	case len(r.open) == 0:
		l.confirm.Err = d.noQuorum("renew", len(l.has), len(l.not), slices.Concat(r.failed, l.failed))
	default:
		l.decided = false
	}
}

// refill gives proven leases back to the nodes that said that they have not got
// them: with what is left of the TTL, and only where the name is free. It counts
// for later renewals only.
func (r *renewal) refill(timeout time.Duration) {
	d := r.d
	missing := make(map[*node][]*lease)
	var nodes []*node
	for i := range r.leases {
		l := &r.leases[i]
		if l.confirm.Err != nil {
			continue
		}
		for _, n := range l.not {
			if missing[n] == nil {
				nodes = append(nodes, n)
			}
			missing[n] = append(missing[n], l.lease)
		}
	}
	if len(nodes) == 0 {
		return
	}
	ask(d, nodes, timeout, func(ctx context.Context, n *node) (struct{}, error) {
		var calls []redisnode.Call
		for _, l := range missing[n] {
			left := validity(l.req.TTL, time.Since(r.start)).Milliseconds()
			// From here on a release leaves a tombstone on n, which ends this.
			if left <= 0 {
				continue
			}
			if _, ok := l.sending(n); !ok {
				continue
			}
			calls = append(calls, redisnode.Call{
				Script: refillScript,
				Keys:   []string{d.layout.Lock(l.req.Name), d.layout.Clock(l.req.Name), d.layout.Dead(l.req.Name, l.req.Owner)},
				Args:   []any{l.req.Owner, l.try, l.number, left, l.req.TTL.Milliseconds(), l.req.Metadata},
			})
		}
		if len(calls) == 0 {
			return struct{}{}, nil
		}
		_, err := runAll(ctx, n, calls)
		return struct{}{}, err
	})
}
