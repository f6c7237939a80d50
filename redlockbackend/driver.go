package redlockbackend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
)

// Limits of TTLs. An attempt takes one or two round trips to the slower half of
// the nodes, and 2 ms and a hundredth of the TTL are allowed for drift: below
// 100 ms little is left. The upper end is redisbackend's.
const (
	minTTL = 100 * time.Millisecond
	maxTTL = 10 * 365 * 24 * time.Hour
)

// maxNumber is the end of what Lua counts exactly: the year 4824.
const maxNumber = 1 << 53

// redlockDriver implements driver.Driver and driver.Hinter.
type redlockDriver struct {
	nodes  []*node
	quorum int
	layout redisnode.Layout
	opt    Options
	keeper *keeper
	hints  *hints

	clock func() time.Time                 // what proposals are made from; nothing else is
	tries atomic.Uint64                    // of all owners
	last  [redisnode.Buckets]atomic.Uint64 // largest number given to this driver, by bucket

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	twice  error // two clients reach one server
}

var (
	_ driver.Driver = (*redlockDriver)(nil)
	_ driver.Hinter = (*redlockDriver)(nil)
)

func makeDriver(clients []redis.UniversalClient, opt Options) *redlockDriver {
	d := &redlockDriver{
		quorum: quorum(len(clients)),
		layout: redisnode.Layout{Prefix: opt.Prefix},
		opt:    opt,
		clock:  time.Now,
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for i, c := range clients {
		d.nodes = append(d.nodes, newNode(i, c))
	}
	d.keeper = &keeper{d}
	d.hints = newHints(d)
	return d
}

// goes runs fn in a goroutine that Close waits for. It reports false, and does
// not run fn, after Close.
func (d *redlockDriver) goes(fn func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.wg.Go(fn)
	return true
}

// usable returns why nothing can be locked at all, or nil.
func (d *redlockDriver) usable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return &driver.PermanentError{Err: errClosed}
	}
	return d.twice
}

// timeout is how long an attempt waits for a node. It is part of the TTL.
func (d *redlockDriver) timeout(ttl time.Duration) time.Duration {
	return min(d.opt.NodeTimeout, ttl/4)
}

// renewalTimeout is how long a renewal waits for nodes while no majority has
// answered. Many are due at once when a process holds thousands, and a machine is
// not dead when it is busy; it is short enough for several tries within the TTL.
func (d *redlockDriver) renewalTimeout(ttl time.Duration) time.Duration {
	return max(d.timeout(ttl), ttl/8)
}

// patience is how long to wait where no TTL runs out meanwhile: a first
// connection may need name resolution and TLS, and what removes a lock may take
// its time.
func (d *redlockDriver) patience() time.Duration {
	return max(d.opt.NodeTimeout, time.Second)
}

func (d *redlockDriver) Capabilities(ctx context.Context) (driver.Capabilities, error) {
	if ctx.Err() != nil {
		return capabilities, context.Cause(ctx)
	}
	return capabilities, d.probe(ctx)
}

var capabilities = driver.Capabilities{
	Backend:    "redlock",
	Fencing:    true,
	Replicated: true,
	LockTTL:    true,
	Push:       true,
	MinTTL:     minTTL,
	MaxTTL:     maxTTL,
	TTLQuantum: time.Millisecond,
	NumberKind: "hybrid clock of a majority (10 µs)",
}

// probe asks all nodes, and returns when a majority is fit and the others have
// had NodeTimeout, or ctx has ended. Those that have not answered then are probed
// at their next use. A probe goes on when ctx has ended, so that the next call finds its result.
func (d *redlockDriver) probe(ctx context.Context) error {
	if d.fit() >= d.quorum {
		return d.usable()
	}
	answers := ask(d, d.nodes, d.patience(), func(ctx context.Context, n *node) (struct{}, error) {
		return struct{}{}, d.ready(ctx, n)
	})
	patience := time.NewTimer(d.opt.NodeTimeout)
	defer patience.Stop()
	fit, patient := 0, true
	var failed []NodeError
	open := slices.Clone(d.nodes)
listen:
	for len(open) > 0 && (patient || fit < d.quorum) {
		select {
		case a := <-answers:
			open = without(open, a.node)
			if a.err == nil {
				fit++
			} else {
				failed = append(failed, nodeError(a.node, a.err))
			}
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			if fit < d.quorum {
				return d.interrupted(ctx, "probe", fit, 0, failed, open)
			}
			break listen
		}
	}
	if err := d.usable(); err != nil {
		return err
	}
	if fit < d.quorum {
		return d.noQuorum("probe", fit, 0, failed)
	}
	for _, f := range failed {
		d.opt.Logger.WarnContext(ctx, "distlock: redlock: "+f.Error())
	}
	return nil
}

// interrupted is the error of a round that ctx has ended: it matches ctx's cause
// and names the nodes that had not answered.
func (d *redlockDriver) interrupted(ctx context.Context, op string, agreed, refused int, failed []NodeError, open []*node) error {
	return fmt.Errorf("%w: %w", context.Cause(ctx), d.noQuorum(op, agreed, refused, append(failed, unanswered(open)...)))
}

func unanswered(open []*node) (failed []NodeError) {
	for _, n := range open {
		failed = append(failed, NodeError{Index: n.index, Node: n.name, Err: errors.New("no answer yet")})
	}
	return failed
}

func allSilent(nodes []*node) bool {
	return !slices.ContainsFunc(nodes, func(n *node) bool { return !n.isSilent() })
}

func without(nodes []*node, n *node) []*node {
	return slices.DeleteFunc(nodes, func(o *node) bool { return o == n })
}

// errOvertaken: a majority granted the lock, but other attempts in its bucket
// raised the counters between this one's rounds.
var errOvertaken = errors.New("other attempts raised the numbers meanwhile")

func (d *redlockDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	// Most attempts are decided by one try. Who is overtaken has a majority and
	// needs only a better number: a new try asks for the counters again, and keeps
	// the nodes. And of several contenders that share out the nodes, so that none
	// has a majority, all but one give theirs back: that one keeps its own and asks
	// again for the others, or all would give up and meet once more.
	const tries = 6
	var l *lease
	var err error
	for i := 1; i <= tries; i++ {
		if err = d.usable(); err != nil {
			break
		}
		l = d.newLease(req, l)
		// Not before: if ctx ends from here on, an abandoning has a later try than
		// this, so its tombstones keep out what this one sends.
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		start := time.Now()
		var g driver.Grant
		var t *tally
		if g, t, err = l.acquire(ctx); err == nil {
			return g, nil
		}
		leads := t.leads(req.Owner, d.quorum)
		if !leads && !errors.Is(err, errOvertaken) {
			break
		}
		if leads && i < tries && !sleep(ctx, time.Since(start)) { // about as long as the others need
			break
		}
	}
	if l == nil {
		return driver.Grant{}, err
	}
	if clean := l.undo(ctx); !clean && errors.Is(err, driver.ErrHeld) {
		// That would say that nothing is left of req. This has it abandoned.
		err = fmt.Errorf("%w before it was undone: %s", context.Cause(ctx), err.Error())
	}
	return driver.Grant{}, err
}

// sleep reports whether it was for all of d.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newLease begins a try. What an earlier one may have left on a node is from now on
// this one's.
func (d *redlockDriver) newLease(req driver.Request, earlier *lease) *lease {
	l := &lease{d: d, req: req, try: d.tries.Add(1), state: make([]nodeState, len(d.nodes))}
	if earlier != nil {
		sure, maybe := earlier.end()
		for _, n := range sure {
			l.state[n.index].has = hasIt
		}
		for _, n := range maybe {
			l.state[n.index].has = unsure
		}
	}
	return l
}

// propose returns the number for a first round.
func (d *redlockDriver) propose(name string) uint64 {
	return max(d.last[redisnode.Bucket(name)].Load()+1, uint64(d.clock().UnixMicro()/10))
}

// agreed remembers a number that a majority accepted.
func (d *redlockDriver) agreed(name string, number uint64) {
	last := &d.last[redisnode.Bucket(name)]
	for {
		old := last.Load()
		if old >= number || last.CompareAndSwap(old, number) {
			return
		}
	}
}

// tally counts the answers of a round.
type tally struct {
	accepted, granted []*node // the accepted are granted, too
	held, behind      int
	holders           map[string]int // nodes by owner
	left              []int64        // PTTLs of those
	counters          []uint64       // of the nodes in granted
	failed            []NodeError
	open              []*node // have not answered
}

func (t *tally) add(a answer[vote]) {
	t.open = without(t.open, a.node)
	if a.err != nil {
		t.failed = append(t.failed, nodeError(a.node, a.err))
		return
	}
	switch a.value.verdict {
	case accepted:
		t.accepted = append(t.accepted, a.node)
		fallthrough
	case granted:
		t.granted = append(t.granted, a.node)
		t.counters = append(t.counters, a.value.counter)
	case held:
		t.held++
		if t.holders == nil {
			t.holders = make(map[string]int)
		}
		t.holders[a.value.holder]++
		t.left = append(t.left, a.value.left)
	case lost:
		t.held++
	case behind:
		t.behind++
	default: // dead
		t.failed = append(t.failed, NodeError{Index: a.node.index, Node: a.node.name, Err: errors.New("this attempt was given up before it arrived")})
	}
}

// farAhead is 2 s, as in acquire.lua.
const farAhead = 200_000

// scattered reports whether the counters of those that granted are far apart.
func (t *tally) scattered() bool {
	return slices.Max(t.counters) > slices.Min(t.counters)+farAhead
}

// second returns the number for the second round, a counter + 1, and the nodes to
// send it to: those that have not reported a larger one, a majority. A node more
// than 2 s ahead of the majority is left out, so that one node with a wrong clock
// does not move the others' counters.
func (t *tally) second(quorum int) (number uint64, voters []*node) {
	sorted := slices.Sorted(slices.Values(t.counters))
	limit := sorted[quorum-1] + farAhead
	for _, c := range sorted {
		if c <= limit {
			number = c + 1
		}
	}
	for i, n := range t.granted {
		if t.counters[i] < number {
			voters = append(voters, n)
		}
	}
	return number, voters
}

// most returns the largest number of nodes that another owner has.
func (t *tally) most() (n int) {
	for _, has := range t.holders {
		n = max(n, has)
	}
	return n
}

// leads reports whether owner comes first of those that share out the nodes, none
// of them with a majority: by the number of its nodes, then by its name. The
// others come to the same result, or nearly always: if two lead or nobody does,
// that costs time only.
func (t *tally) leads(owner string, quorum int) bool {
	mine := len(t.granted)
	if mine == 0 || mine >= quorum || len(t.holders) == 0 || mine+t.held < quorum || t.most() >= quorum {
		return false
	}
	for other, has := range t.holders {
		if has > mine || has == mine && other < owner {
			return false
		}
	}
	return true
}

// remaining is when to ask again, at the latest: when a majority is free if nobody
// renews, 0 if unknown. Contenders that have shared out the nodes undo that at
// once, so then no TTL says anything.
func (t *tally) remaining(quorum int, took time.Duration) time.Duration {
	switch most := t.most(); {
	case most >= quorum:
	case most+len(t.failed)+len(t.open) >= quorum:
		// It may have a majority with nodes that did not answer.
		return 50*time.Millisecond + rand.N(100*time.Millisecond)
	default:
		return took + rand.N(2*took+1)
	}
	left := slices.Clone(t.left)
	for i, ms := range left {
		if ms < 0 { // without expiry
			left[i] = math.MaxInt64
		}
	}
	slices.Sort(left)
	need := quorum - len(t.granted)
	if need > len(left) || left[need-1] > maxTTL.Milliseconds() {
		return 0
	}
	return time.Duration(max(left[need-1], 1)) * time.Millisecond
}

// A lease is one try to take a lock, and what became of it on each node.
type lease struct {
	d      *redlockDriver
	req    driver.Request
	try    uint64
	number uint64

	mu    sync.Mutex
	state []nodeState
	ended bool // nothing more is sent that could take the lock on a node
}

// nodeState is what is known about one node.
type nodeState struct {
	has   has
	asked bool // to release, but no answer came
	gone  gone
}

type has uint8 // does the node have the lock for this try?

const (
	hasNot has = iota // no, and nothing is on its way that could change that
	hasIt             // yes
	unsure            // a request is on its way, or no answer came
)

type gone uint8 // what the node said to a release

const (
	notAsked gone = iota
	removed
	absent
)

func (l *lease) Keeper() driver.Keeper { return l.d.keeper }

// acquire makes the one or two rounds of this try. The tally is the first round's.
func (l *lease) acquire(ctx context.Context) (driver.Grant, *tally, error) {
	d, ttl := l.d, l.req.TTL
	start := time.Now()
	t := &tally{open: slices.Clone(d.nodes)}
	first := d.propose(l.req.Name)
	if first >= maxNumber {
		return driver.Grant{}, t, l.exhausted(first)
	}
	answers := ask(d, d.nodes, d.timeout(ttl), func(ctx context.Context, n *node) (vote, error) {
		return l.acquireOn(ctx, n, first)
	})
	if err := l.firstRound(ctx, start, t, answers); err != nil {
		return driver.Grant{}, t, err
	}
	number := first
	if len(t.accepted) < d.quorum {
		var voters []*node
		if number, voters = t.second(d.quorum); number >= maxNumber {
			return driver.Grant{}, t, l.exhausted(number)
		}
		if err := l.secondRound(ctx, number, voters); err != nil {
			return driver.Grant{}, t, err
		}
	}
	d.agreed(l.req.Name, number)
	if took := time.Since(start); validity(ttl, took) <= 0 {
		return driver.Grant{}, t, fmt.Errorf("a majority agreed, but after %v nothing is left of the TTL of %v", took, ttl)
	}
	l.number = number
	return driver.Grant{Lease: l, Number: number, From: start, TTL: ttl}, t, nil
}

func (l *lease) exhausted(number uint64) error {
	return &driver.PermanentError{Err: fmt.Errorf("the counter of bucket %d is at its end (%d): a node or a client once had a clock millennia ahead", redisnode.Bucket(l.req.Name), number)}
}

// firstRound listens until a majority has granted the lock, and accepted its
// number or is not going to, or until it is certain that none will. An error
// matches driver.ErrHeld if others have so many nodes that no majority is left.
func (l *lease) firstRound(ctx context.Context, start time.Time, t *tally, answers <-chan answer[vote]) error {
	d := l.d
	spare := len(d.nodes) - d.quorum // nodes that are not needed
	// Two cases in which those that have not answered get as long again as it took
	// so far, and no more. A node whose clock differs grants without accepting:
	// while the others can still make a majority that accepts, waiting is cheaper
	// than a second round, unless it is for a dead node; and if a second round is
	// needed, the others may show whose clock is wrong. And if a majority has
	// answered, and the others were silent before, they are probably dead.
	var grace <-chan time.Time
	wait := func() {
		if grace == nil {
			grace = time.After(time.Since(start))
		}
	}
listen:
	for len(t.open) > 0 {
		if len(t.accepted) >= d.quorum {
			return nil
		}
		if len(t.granted) >= d.quorum {
			if len(t.accepted)+len(t.open) < d.quorum && !t.scattered() {
				return nil
			}
			wait()
		}
		if len(d.nodes)-len(t.open) >= d.quorum && allSilent(t.open) {
			wait()
		}
		// Certain failure. What is still on its way could take a node after a holder
		// has left it, and the caller's next attempt would meet that.
		if len(t.granted)+len(t.open) < d.quorum && allSilent(t.open) && (t.most() >= d.quorum || t.held+len(t.open) <= spare) {
			break
		}
		select {
		case a := <-answers:
			t.add(a)
		case <-grace:
			break listen
		case <-ctx.Done():
			return d.interrupted(ctx, "acquire", len(t.granted), t.held, t.failed, t.open)
		}
	}
	switch {
	case len(t.granted) >= d.quorum:
		return nil
	case t.held > spare:
		return &driver.HeldError{Remaining: t.remaining(d.quorum, time.Since(start)), Waiters: -1}
	}
	silent := slices.DeleteFunc(t.open, func(n *node) bool { return !n.isSilent() })
	return d.noQuorum("acquire", len(t.granted), t.held, append(t.failed, unanswered(silent)...))
}

// secondRound asks those that granted the lock to accept number.
func (l *lease) secondRound(ctx context.Context, number uint64, nodes []*node) error {
	d := l.d
	t := &tally{open: slices.Clone(nodes)}
	answers := ask(d, nodes, d.timeout(l.req.TTL), func(ctx context.Context, n *node) (vote, error) {
		return l.acceptOn(ctx, n, number)
	})
	for len(t.accepted) < d.quorum && len(t.accepted)+len(t.open) >= d.quorum {
		select {
		case a := <-answers:
			t.add(a)
		case <-ctx.Done():
			return d.interrupted(ctx, "agree on a number", len(t.accepted), t.held, t.failed, t.open)
		}
	}
	switch {
	case len(t.accepted) >= d.quorum:
		return nil
	case t.behind > 0:
		return fmt.Errorf("%w: %w", errOvertaken, d.noQuorum("agree on a number", len(t.accepted), t.held+t.behind, t.failed))
	}
	return d.noQuorum("agree on a number", len(t.accepted), t.held, t.failed)
}

func (l *lease) acquireOn(ctx context.Context, n *node, number uint64) (vote, error) {
	d := l.d
	if err := d.ready(ctx, n); err != nil {
		return vote{}, err
	}
	earlier, ok := l.sending(n)
	if !ok {
		return vote{}, errors.New("the attempt has ended")
	}
	sends := &redisnode.Sends{Before: earlier}
	reply, err := acquireScript.Run(ctx, n.c,
		[]string{d.layout.Lock(l.req.Name), d.layout.Clock(l.req.Name), d.layout.Dead(l.req.Name, l.req.Owner)},
		l.req.Owner, l.try, number, l.req.TTL.Milliseconds(), l.req.Metadata, sends)
	wrongType := redisnode.WrongType(err)
	if err != nil && !wrongType {
		return vote{}, err
	}
	var v vote
	if wrongType {
		err = redisnode.Conflict(d.layout.Lock(l.req.Name))
	} else {
		v, err = parseVote(reply)
	}
	switch {
	case v.verdict == held || v.verdict == dead: // in doubt, a tombstone keeps other copies out
		l.answered(n, hasNot)
	case sends.Doubt():
	case err != nil:
		l.answered(n, hasNot)
	default:
		l.answered(n, hasIt)
	}
	return v, err
}

func (l *lease) acceptOn(ctx context.Context, n *node, number uint64) (vote, error) {
	d := l.d
	reply, err := acceptScript.Run(ctx, n.c, []string{d.layout.Lock(l.req.Name), d.layout.Clock(l.req.Name)},
		l.req.Owner, l.try, number)
	if err != nil {
		return vote{}, err
	}
	return parseVote(reply)
}

// sending notes that a request that can take the lock goes to n now, and reports
// whether an earlier one may still be on its way. With ok false it must not go.
func (l *lease) sending(n *node) (earlier, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false, false
	}
	s := &l.state[n.index]
	earlier = s.has == unsure
	s.has = unsure
	return earlier, true
}

func (l *lease) answered(n *node, h has) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state[n.index].has = h
}

// end stops what could still take the lock on a node, and returns the nodes that
// have to be asked to remove it: those that have it, and those that may.
func (l *lease) end() (sure, maybe []*node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for i := range l.state {
		switch s := &l.state[i]; {
		case s.gone != notAsked:
		case s.has == hasIt:
			sure = append(sure, l.d.nodes[i])
		case s.has == unsure || s.asked:
			maybe = append(maybe, l.d.nodes[i])
		default:
			s.gone = absent
		}
	}
	return sure, maybe
}

// undo removes what a failed try has left. It waits for the nodes that are not
// known to be silent, NodeTimeout at most. It reports false if ctx has ended before
// that: then it goes on in the background.
func (l *lease) undo(ctx context.Context) (clean bool) {
	sure, maybe := l.end()
	failed, open := l.d.clear(ctx, append(sure, maybe...), l.d.opt.NodeTimeout, l.releaseOn, func() bool { return true })
	return len(failed)+len(open) == 0 || ctx.Err() == nil
}

// clear sends each of nodes a request, on, that removes something, and listens
// until enough says that what counts is removed, or ctx ends. However long that
// takes, it takes nothing from anybody's TTL. Then it listens on to nodes that are
// not known to be silent, for rest or as long as it took so far if that is more, and
// NodeTimeout at most: enough is the majority that the next attempt needs, the
// others make that attempt stand the loss of a node. What has not answered goes on
// in the background. It returns the nodes that failed and that are open.
func (d *redlockDriver) clear(ctx context.Context, nodes []*node, rest time.Duration, on func(context.Context, *node) (bool, error), enough func() bool) (failed []NodeError, open []*node) {
	start := time.Now()
	answers := ask(d, nodes, d.untilEnd(ctx), on)
	var grace <-chan time.Time
	for open = slices.Clone(nodes); len(open) > 0; {
		if enough() {
			if allSilent(open) {
				break
			}
			if grace == nil {
				grace = time.After(min(max(rest, time.Since(start)), d.opt.NodeTimeout))
			}
		}
		select {
		case a := <-answers:
			open = without(open, a.node)
			if a.err != nil {
				failed = append(failed, nodeError(a.node, a.err))
			}
		case <-grace:
			return failed, open
		case <-ctx.Done():
			return failed, open
		}
	}
	return failed, open
}

// untilEnd is the time that ctx leaves, but long enough that a request is worth
// sending: it goes on in the background.
func (d *redlockDriver) untilEnd(ctx context.Context) time.Duration {
	left := d.patience()
	if end, ok := ctx.Deadline(); ok {
		left = max(left, time.Until(end))
	}
	return left
}

// releaseOn removes the lock from one node, in the background if it has to be.
func (l *lease) releaseOn(ctx context.Context, n *node) (bool, error) {
	l.mu.Lock()
	s := &l.state[n.index]
	again, doubt := s.asked, s.has == unsure
	s.asked = true
	l.mu.Unlock()
	was, copies, err := l.d.release(ctx, n, l.req, l.try, doubt)
	if err != nil {
		return false, err
	}
	was = was || again || copies // an earlier request removed it, and its answer was lost
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.gone == notAsked {
		s.gone = absent
		if was {
			s.gone = removed
		}
	}
	return was, nil
}

// release asks one node to remove what req.Owner's tries up to this one have
// there. What it does not answer to is tried again until the TTL is over.
func (d *redlockDriver) release(ctx context.Context, n *node, req driver.Request, try uint64, doubt bool) (was, copies bool, err error) {
	later := func() { d.cleanLater(n, cleanup{req: req, try: try, until: time.Now().Add(req.TTL)}) }
	if err := d.swallows(n); err != nil {
		later()
		return false, false, err
	}
	sends := &redisnode.Sends{Before: doubt}
	c := d.releaseCall(req, try, sends)
	reply, err := c.Script.Run(ctx, n.c, c.Keys, c.Args...)
	if redisnode.WrongType(err) { // somebody else's data: ours is gone
		return false, false, nil
	}
	if err == nil {
		was, err = parseCount(reply)
	}
	if err != nil {
		later()
		return false, false, err
	}
	return was, sends.Count > 1, nil
}

func (d *redlockDriver) releaseCall(req driver.Request, try uint64, sends *redisnode.Sends) redisnode.Call {
	return redisnode.Call{
		Script: releaseScript,
		Keys:   []string{d.layout.Lock(req.Name), d.layout.Dead(req.Name, req.Owner)},
		Args:   []any{req.Owner, try, sends, req.TTL.Milliseconds(), d.layout.Hints(req.Name), req.Name},
	}
}

// Release removes the lock everywhere. A majority that had it makes the answer
// nil, so many that did not that no majority had it make it ErrNotHeld: then a
// majority is free for the next attempt.
func (l *lease) Release(ctx context.Context) error {
	d := l.d
	sure, maybe := l.end()
	tooFew := len(d.nodes) - d.quorum
	failed, open := d.clear(ctx, append(sure, maybe...), 0, l.releaseOn, func() bool {
		had, not := l.counts()
		return had >= d.quorum || not > tooFew
	})
	switch had, not := l.counts(); {
	case had >= d.quorum:
		return nil
	case not > tooFew:
		return driver.ErrNotHeld
	case len(open) > 0:
		return d.interrupted(ctx, "release", had, not, failed, open)
	default:
		return d.noQuorum("release", had, not, failed)
	}
}

func (l *lease) counts() (had, not int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.state {
		switch s.gone {
		case removed:
			had++
		case absent:
			not++
		}
	}
	return had, not
}

// Abandon removes all tries of req.Owner and keeps late ones out. A majority
// without them is enough, since a lock needs one; the other nodes are cleaned in
// the background.
func (d *redlockDriver) Abandon(ctx context.Context, req driver.Request) error {
	try := d.tries.Add(1) // later than all of this owner
	var done atomic.Int32
	enough := func() bool { return int(done.Load()) >= d.quorum }
	failed, open := d.clear(ctx, d.nodes, 0, func(ctx context.Context, n *node) (bool, error) {
		was, _, err := d.release(ctx, n, req, try, true)
		if err == nil {
			done.Add(1)
		}
		return was, err
	}, enough)
	switch {
	case enough():
		return nil
	case len(open) > 0:
		return d.interrupted(ctx, "abandon", int(done.Load()), 0, failed, open)
	default:
		return d.noQuorum("abandon", int(done.Load()), 0, failed)
	}
}

// Close ends the subscriptions and waits for requests that nobody waits for any
// more, but no longer than a node needs that is only slow: what a silent one has
// ends with its TTL, and a request to it when the client gives up. It leaves the
// clients open.
func (d *redlockDriver) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	done := make(chan struct{})
	go func() {
		d.wg.Wait()
		close(done)
	}()
	patience := time.NewTimer(d.patience())
	defer patience.Stop()
	select {
	case <-done:
		return nil
	case <-patience.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
