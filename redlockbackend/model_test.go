package redlockbackend

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// A bounded model check of how numbers are agreed on (doc.go, "Fencing"). It
// explores every order in which requests can be served, replies can arrive
// (or never do), keys can expire, time can pass and one node can lose its data,
// with first proposals that are arbitrary, as from clients whose clocks are
// arbitrary. The rules checked for every pair of attempts that succeed:
//
//   - their numbers differ;
//   - if one had finished before the other started, its number is smaller;
//   - if a node that voted for both granted one before the other, its number is
//     smaller.
//
// And in every state reached: an attempt that then runs alone succeeds, so no
// combination of clocks and counters stops a bucket.
//
// The rules are the node scripts' (acquire.lua, accept.lua) and driver.go's, at
// N = 3; units of number and of time are one. A mutation breaks one rule on
// purpose; the check must then find a violation.

const (
	mN   = 3 // nodes
	mK   = 3 // attempts at most
	mMaj = mN/2 + 1
)

type mutation int

const (
	sound           mutation = iota
	noOwnerCheck             // accept does not ask who owns the lock
	acceptEqual              // a node accepts a number equal to its counter
	incrAndMax               // classic: each node counts, the number is the largest reply
	grantedSuffices          // a majority that granted counts as one that accepted
	noFloor                  // a node's counter is not raised to its TIME − 2 s
	noAheadLimit             // first proposals far ahead are accepted
	lossAtOnce               // a node may lose its data right after it voted
	limitSecond              // second proposals are refused for being ahead, too
	reportRaw                // a node reports its counter without the floor
	floorAtAccept            // the floor holds in the second round, too
)

var mutationNames = []string{"sound", "no owner check", "accept equal", "INCR and max", "granted suffices",
	"no clock floor", "no limit ahead", "data loss at once", "limit on second proposals", "floor not reported", "floor in the second round"}

// One node, and what each attempt has on its way to and from it. Nodes are kept
// sorted, so states that differ only in the nodes' order are one.
type mNode struct {
	skew, owner int8  // its TIME − now; attempt that has the lock, −1 none
	counter     uint8 //
	voted       uint8 // when it last accepted
	grants      uint8 // attempts ever granted here
	after       [mK]uint8
	call        [mK]mCall
}

type mCall struct {
	first, second uint8 // 0 unsent, or one of c…
	counter       uint8 // reported by first, until the second round
	votes         uint8 // what the client knows: granted 1, accepted 2, accepted when it succeeded 4
}

const (
	cSent     = 1 + iota
	cAccepted // reply on its way
	cGranted  // reply on its way: granted, not accepted
	cDone     // reply came, or no longer matters
)

type mAttempt struct {
	state     uint8 // 0 idle, 1 first round, 2 second round, 3 succeeded
	proposal  uint8
	number    uint8
	succeeded uint8 // attempts that had succeeded before this one started
}

type mState struct {
	now, losses uint8
	nodes       [mN]mNode
	attempts    [mK]mAttempt
}

type model struct {
	mut       mutation
	attempts  int
	maxT      uint8 // largest first proposal
	maxNow    uint8
	maxLoss   uint8
	floor     int // how far a node's counter may lie behind its TIME
	ahead     int // how far ahead of its TIME it takes a first proposal
	safe      int // since its last vote, before a node may lose its data
	skew      [mN]int8
	maxNumber uint8
}

func (m *model) counter(s *mState, n *mNode) uint8 {
	c := int(n.counter)
	if m.mut != noFloor {
		c = max(c, int(s.now)+int(n.skew)-m.floor)
	}
	return uint8(c)
}

// vote is the node's part: may it take t, proposed in a first or second round?
func (m *model) vote(s *mState, n *mNode, t uint8, second bool) bool {
	c := m.counter(s, n)
	if second && m.mut != floorAtAccept {
		c = n.counter // the floor was reported with the grant, and moves on
	}
	behind := t <= c
	if m.mut == acceptEqual {
		behind = t < c
	}
	limited := !second && m.mut != noAheadLimit || second && m.mut == limitSecond
	if behind || limited && int(t) > int(s.now)+int(n.skew)+m.ahead && t != c+1 {
		return false
	}
	n.counter, n.voted = t, s.now
	return true
}

func (m *model) report(s *mState, n *mNode) uint8 {
	if m.mut == reportRaw {
		return n.counter
	}
	return m.counter(s, n)
}

func grantAt(n *mNode, a int) {
	n.owner = int8(a)
	if n.grants&(1<<a) == 0 {
		for b := range mK {
			if n.grants&(1<<b) != 0 {
				n.after[b] |= 1 << a
			}
		}
		n.grants |= 1 << a
	}
}

func votes(s *mState, a int, bit uint8) (v int) {
	for i := range s.nodes {
		if s.nodes[i].call[a].votes&bit != 0 {
			v++
		}
	}
	return v
}

// second returns the number for a's second round: the largest counter + 1, of
// those that are not far ahead of a majority.
func (m *model) second(s *mState, a int) (number uint8) {
	var counters []uint8
	for i := range s.nodes {
		if c := &s.nodes[i].call[a]; c.votes&1 != 0 {
			counters = append(counters, c.counter)
		}
	}
	slices.Sort(counters)
	for _, c := range counters {
		if int(c) <= int(counters[mMaj-1])+m.ahead || m.mut == incrAndMax {
			number = c + 1
		}
	}
	return number
}

// finish decides whether attempt a has succeeded, and checks its number.
func (m *model) finish(s *mState, a int) string {
	at := &s.attempts[a]
	need, number := uint8(2), at.proposal
	if m.mut == grantedSuffices || m.mut == incrAndMax {
		need = 1
	}
	if at.state == 3 || votes(s, a, need) < mMaj {
		return ""
	}
	if m.mut == incrAndMax {
		number = m.second(s, a) - 1
	}
	at.state, at.number = 3, number
	for i := range s.nodes {
		c := &s.nodes[i].call[a]
		if c.votes&need != 0 {
			c.votes |= 4
		}
	}
	for b := range m.attempts {
		o := &s.attempts[b]
		if b == a || o.state != 3 {
			continue
		}
		if at.number == o.number {
			return fmt.Sprintf("attempts %d and %d both have number %d", a, b, at.number)
		}
		if at.succeeded&(1<<b) != 0 && at.number < o.number {
			return fmt.Sprintf("attempt %d finished with %d before %d started and got %d", b, o.number, a, at.number)
		}
		for i := range s.nodes {
			n := &s.nodes[i]
			if n.call[a].votes&n.call[b].votes&4 == 0 {
				continue
			}
			if n.after[b]&(1<<a) != 0 && at.number < o.number || n.after[a]&(1<<b) != 0 && o.number < at.number {
				return fmt.Sprintf("a node granted attempts %d (number %d) and %d (number %d) in the other order", a, at.number, b, o.number)
			}
		}
	}
	return ""
}

// next emits every state that can follow s.
func (m *model) next(s *mState, emit func(mState, string)) {
	if s.now < m.maxNow {
		q := *s
		q.now++
		emit(q, "")
	}
	for a := range m.attempts {
		at := s.attempts[a]
		if at.state == 0 {
			if a > 0 && s.attempts[a-1].state == 0 {
				continue // attempts are alike: they start in order
			}
			for t := uint8(1); t <= m.maxT; t++ {
				q := *s
				q.attempts[a].state, q.attempts[a].proposal = 1, t
				for b := range m.attempts {
					if s.attempts[b].state == 3 {
						q.attempts[a].succeeded |= 1 << b
					}
				}
				for i := range q.nodes {
					q.nodes[i].call[a].first = cSent
				}
				emit(q, "")
			}
			continue
		}
		for i := range s.nodes {
			call := s.nodes[i].call[a]
			owner := s.nodes[i].owner
			if call.first == cSent { // the node serves it
				q := *s
				n := &q.nodes[i]
				c := &n.call[a]
				switch {
				case owner >= 0 && owner != int8(a):
					c.first = cDone
				case m.mut == incrAndMax:
					grantAt(n, a)
					n.counter++
					c.first, c.counter = cGranted, n.counter
				default:
					grantAt(n, a)
					c.first = cGranted
					if m.vote(&q, n, at.proposal, false) && at.state == 1 {
						c.first = cAccepted
					}
					c.counter = m.report(&q, n)
				}
				emit(q, "")
			}
			if call.second == cSent {
				q := *s
				n := &q.nodes[i]
				n.call[a].second = cDone
				if (m.mut == noOwnerCheck || owner == int8(a)) && m.vote(&q, n, at.proposal, true) {
					n.call[a].second = cAccepted
				}
				emit(q, "")
			}
			if at.state == 1 && (call.first == cAccepted || call.first == cGranted) { // the reply arrives
				q := *s
				c := &q.nodes[i].call[a]
				c.first, c.votes = cDone, c.votes|1
				if call.first == cAccepted {
					c.votes |= 2
				}
				emit(q, m.finish(&q, a))
			}
			if at.state == 2 && call.second == cAccepted {
				q := *s
				q.nodes[i].call[a].second = cDone
				q.nodes[i].call[a].votes |= 2
				emit(q, m.finish(&q, a))
			}
		}
		if at.state == 1 && m.mut != incrAndMax && votes(s, a, 1) >= mMaj && m.second(s, a) <= m.maxNumber {
			q := *s
			number := m.second(s, a)
			q.attempts[a].state, q.attempts[a].proposal = 2, number
			for i := range q.nodes {
				c := &q.nodes[i].call[a]
				if c.votes&1 != 0 && c.counter < number {
					c.second = cSent
				}
				c.votes &^= 2
			}
			emit(q, "")
		}
	}
	for i := range s.nodes {
		if s.nodes[i].owner >= 0 { // expired or released
			q := *s
			q.nodes[i].owner = -1
			emit(q, "")
		}
		if s.losses < m.maxLoss && (m.mut == lossAtOnce || int(s.now) >= int(s.nodes[i].voted)+m.safe) {
			q := *s
			q.losses++
			q.nodes[i].counter, q.nodes[i].owner = 0, -1
			emit(q, "")
		}
	}
}

// alone reports what keeps an attempt that runs undisturbed from succeeding,
// with the slowest and with the fastest clock, while time goes on.
func (m *model) alone(s *mState) string {
	if m.mut == incrAndMax {
		return ""
	}
	for _, t := range []uint8{1, m.maxT} {
		q := *s
		accepted := 0
		for i := range q.nodes {
			n := &q.nodes[i]
			if m.vote(&q, n, t, false) {
				accepted++
			}
			n.call[0] = mCall{votes: 1, counter: m.report(&q, n)}
		}
		if accepted >= mMaj {
			continue
		}
		accepted = 0
		number := m.second(&q, 0)
		q.now += 2
		for i := range q.nodes {
			if m.vote(&q, &q.nodes[i], number, true) {
				accepted++
			}
		}
		if accepted < mMaj {
			return fmt.Sprintf("an attempt alone, proposing %d and then %d, gets %d votes", t, number, accepted)
		}
	}
	return ""
}

// canonical forgets what can no longer matter and sorts the nodes.
func (m *model) canonical(s *mState) {
	for i := range s.nodes {
		n := &s.nodes[i]
		if s.losses >= m.maxLoss || m.mut == lossAtOnce {
			n.voted = 0
		}
		for a := range m.attempts {
			c := &n.call[a]
			if s.attempts[a].state >= 2 && c.first > cSent {
				c.first = cDone
			}
			if s.attempts[a].state == 3 {
				if c.second > cSent {
					c.second = cDone
				}
				c.votes &= 4
			}
			if s.attempts[a].state != 1 {
				c.counter = 0
			}
		}
	}
	slices.SortFunc(s.nodes[:], func(a, b mNode) int { return compareNodes(&a, &b) })
}

func compareNodes(a, b *mNode) int {
	d := func(x, y uint8) int { return int(x) - int(y) }
	if r := int(a.skew) - int(b.skew); r != 0 {
		return r
	}
	if r := int(a.owner) - int(b.owner); r != 0 {
		return r
	}
	for _, r := range [...]int{d(a.counter, b.counter), d(a.voted, b.voted), d(a.grants, b.grants)} {
		if r != 0 {
			return r
		}
	}
	for i := range mK {
		x, y := a.call[i], b.call[i]
		for _, r := range [...]int{d(a.after[i], b.after[i]), d(x.first, y.first), d(x.second, y.second), d(x.counter, y.counter), d(x.votes, y.votes)} {
			if r != 0 {
				return r
			}
		}
	}
	return 0
}

func (m *model) start() mState {
	var s mState
	for i := range s.nodes {
		s.nodes[i].skew, s.nodes[i].owner = m.skew[i], -1
	}
	m.canonical(&s)
	return s
}

// explore visits states until a violation, the end, or limit states. It returns
// the violation, the states seen, and how many of them have two successes.
func (m *model) explore(limit int) (bad string, states, both int, done bool) {
	s0 := m.start()
	seen := map[mState]struct{}{s0: {}}
	stack := []mState{s0}
	for len(stack) > 0 && len(seen) < limit {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if bad = m.alone(&s); bad != "" {
			return bad, len(seen), both, false
		}
		m.next(&s, func(q mState, msg string) {
			if msg != "" && bad == "" {
				bad = msg
			}
			m.canonical(&q)
			if _, ok := seen[q]; ok {
				return
			}
			seen[q] = struct{}{}
			stack = append(stack, q)
			n := 0
			for a := range m.attempts {
				if q.attempts[a].state == 3 {
					n++
				}
			}
			if n >= 2 {
				both++
			}
		})
		if bad != "" {
			return bad, len(seen), both, false
		}
	}
	return "", len(seen), both, len(stack) == 0
}

// walk takes random walks, which reach deeper than explore.
func (m *model) walk(walks, steps int, r *rand.Rand) (bad string, both int) {
	var outs []mState
	for range walks {
		s := m.start()
		for range steps {
			outs = outs[:0]
			m.next(&s, func(q mState, msg string) {
				if msg != "" {
					bad = msg
				}
				outs = append(outs, q)
			})
			if bad == "" {
				bad = m.alone(&s)
			}
			if bad != "" {
				return bad, both
			}
			if len(outs) == 0 {
				break
			}
			s = outs[r.IntN(len(outs))]
		}
		n := 0
		for a := range m.attempts {
			if s.attempts[a].state == 3 {
				n++
			}
		}
		if n >= 2 {
			both++
		}
	}
	return "", both
}

// Without data loss order needs no clock at all. With it: a number is at most
// ahead + the clocks' spread beyond a node's TIME, plus one for each second
// round; the floor lies floor behind. So a node may lose its data when its last
// vote is floor + ahead + spread + attempts old.
func models() map[string]model {
	return map[string]model{
		"no loss":             {attempts: 2, maxT: 3, maxNow: 0, floor: 1, ahead: 1, maxNumber: 6},
		"no loss, time":       {attempts: 2, maxT: 2, maxNow: 2, floor: 1, ahead: 1, maxNumber: 6},
		"no loss, odd clocks": {attempts: 2, maxT: 2, maxNow: 1, floor: 1, ahead: 1, maxNumber: 8, skew: [mN]int8{0, 0, 3}},
		"loss":                {attempts: 2, maxT: 3, maxNow: 5, maxLoss: 1, floor: 0, ahead: 0, safe: 2, maxNumber: 9},
		"loss, odd clocks":    {attempts: 2, maxT: 4, maxNow: 6, maxLoss: 1, floor: 1, ahead: 1, safe: 5, maxNumber: 12, skew: [mN]int8{0, 0, 1}},
		"three attempts":      {attempts: 3, maxT: 4, maxNow: 6, maxLoss: 1, floor: 1, ahead: 1, safe: 5, maxNumber: 12},
	}
}

// The state space is too big to be exhausted in a normal run, which takes a part
// of it and random walks through all of it. DISTLOCK_MODEL_STATES=n explores up
// to n states of each configuration (10 million need about 4 GB).
func TestModel(t *testing.T) {
	limit, walks := 40_000, 4_000
	if v := os.Getenv("DISTLOCK_MODEL_STATES"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		limit, walks = n, n/10
	}
	for name, m := range models() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, states, _, done := m.explore(limit)
			if bad != "" {
				t.Fatalf("after %d states: %s", states, bad)
			}
			bad, both := m.walk(walks, 120, rand.New(rand.NewPCG(1, 2)))
			if bad != "" {
				t.Fatalf("in a random walk: %s", bad)
			}
			if both < walks/100 {
				t.Fatalf("only %d of %d walks had two successes: they test nothing", both, walks)
			}
			t.Logf("%d states (all: %v), %d walks, %d of them with two successes: no violation", states, done, walks, both)
		})
	}
}

// The check must be able to fail: each rule, when broken, is found out.
func TestModelFindsMutations(t *testing.T) {
	for mut, where := range map[mutation]string{
		noOwnerCheck:    "no loss, time",
		acceptEqual:     "no loss",
		incrAndMax:      "no loss",
		grantedSuffices: "no loss",
		noFloor:         "loss, odd clocks",
		noAheadLimit:    "loss",
		lossAtOnce:      "loss, odd clocks",
		limitSecond:     "no loss, odd clocks",
		reportRaw:       "loss, odd clocks",
		floorAtAccept:   "no loss",
	} {
		t.Run(mutationNames[mut], func(t *testing.T) {
			t.Parallel()
			m := models()[where]
			m.mut = mut
			bad, _ := m.walk(20_000, 120, rand.New(rand.NewPCG(3, 4)))
			if bad == "" {
				t.Fatalf("not found in the model %q", where)
			}
			t.Log(bad)
		})
	}
}
