package zkbackend

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"
)

// world is a follower between a client and its leader, in virtual time. All that
// matters of them to a proof: a write touches the session at the follower only,
// the leader pings, the follower answers with what was touched since the last
// ping, and each direction of each connection keeps its order.
type world struct {
	rng   *rand.Rand
	now   time.Time
	queue events
	serial,
	follower int // a reconnect goes to another one
	touched map[int]bool
	fifo    map[[2]int]time.Time // when the last message of a direction arrives
	cut     time.Time            // nothing passes between the followers and the leader from then on
	slow    time.Duration        // the longest delay of a message
	tick    time.Duration
	touch   time.Time // when the leader last touched the session
}

type event struct {
	at     time.Time
	serial int
	do     func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].serial < q[j].serial
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any     { e := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return e }

func (w *world) after(d time.Duration, do func()) {
	w.serial++
	heap.Push(&w.queue, event{w.now.Add(d), w.serial, do})
}

// extreme is between 0 and most, and often one of them: the histories that
// matter are made of those.
func extreme(rng *rand.Rand, most time.Duration) time.Duration {
	switch rng.IntN(4) {
	case 0:
		return most
	case 1:
		return time.Duration(rng.Int64N(int64(most) + 1))
	default:
		return 0
	}
}

// send delivers a message after a random delay, in order for each direction.
func (w *world) send(direction [2]int, do func()) {
	at := w.now.Add(extreme(w.rng, w.slow))
	if last := w.fifo[direction]; at.Before(last) {
		at = last
	}
	w.fifo[direction] = at
	w.after(at.Sub(w.now), do)
}

const leader = -1

// between is send for followers and leader, which a cut ends.
func (w *world) between(from, to int, do func()) {
	if w.now.Before(w.cut) {
		w.send([2]int{from, to}, do)
	}
}

// write is a client's write through follower f; done runs when it is confirmed.
func (w *world) write(f int, done func()) {
	w.send([2]int{100 + f, f}, func() {
		w.touched[f] = true
		w.between(f, leader, func() {
			w.between(leader, f, func() { w.send([2]int{f, 100 + f}, done) })
		})
	})
}

// connect revalidates the session through a new follower.
func (w *world) connect(done func(f int)) {
	w.follower++
	f := w.follower
	w.send([2]int{100 + f, f}, func() {
		w.between(f, leader, func() {
			w.touch = w.now
			w.between(leader, f, func() { w.send([2]int{f, 100 + f}, func() { done(f) }) })
		})
	})
}

// ping is the leader's loop, up to late behind its time.
func (w *world) ping(late time.Duration) {
	for f := 1; f <= w.follower; f++ {
		w.between(leader, f, func() {
			touched := w.touched[f]
			w.touched[f] = false
			w.between(f, leader, func() {
				if touched {
					w.touch = w.now
				}
			})
		})
	}
	w.after(w.tick/2+late-extreme(w.rng, late), func() { w.ping(late) })
}

// run plays one history and returns by how much p ever believed in more than the
// leader had granted, and how old the best proof was at worst before the cut.
func run(seed uint64, p proof, timeout, slow time.Duration, every func(*rand.Rand) time.Duration) (excess, lag time.Duration) {
	start := time.Unix(1e9, 0)
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), now: start, touched: map[int]bool{}, fifo: map[[2]int]time.Time{},
		slow: slow, tick: timeout / 2, touch: start,
	}
	w.cut = start.Add(3*timeout + time.Duration(w.rng.Int64N(int64(3*timeout))))
	w.after(time.Duration(w.rng.Int64N(int64(w.tick/2))), func() { w.ping(timeout / 16) })
	check := func() { excess = max(excess, p.from.Sub(w.touch)) }

	var beats func(f, link int)
	link := 0
	beats = func(f, link_ int) {
		if link_ != link {
			return
		}
		sent := w.now
		w.write(f, func() {
			pause := every(w.rng)
			if link_ == link {
				if p.beat(sent, w.now) {
					pause = 0
				}
				check()
			}
			w.after(pause, func() { beats(f, link_) })
		})
	}
	connect := func() {
		link++
		mine, sent := link, w.now
		w.connect(func(f int) {
			if mine == link {
				p.connected(sent)
				beats(f, mine)
			}
		})
	}
	connect()
	if w.rng.IntN(2) == 0 { // a change of server on the way
		w.after(time.Duration(w.rng.Int64N(int64(4*timeout))), connect)
	}
	for len(w.queue) > 0 && w.now.Before(w.cut.Add(2*timeout)) {
		e := heap.Pop(&w.queue).(event)
		if !p.from.IsZero() && e.at.Before(w.cut) {
			lag = max(lag, e.at.Sub(p.from))
		}
		w.now = e.at
		e.do()
	}
	return excess, lag
}

const modelTimeout = 16 * time.Second

// regular is how the core beats, random how a program that asks for renewals can.
func regular(*rand.Rand) time.Duration { return modelTimeout / 6 }
func random(r *rand.Rand) time.Duration {
	return modelTimeout/500 + extreme(r, modelTimeout*5/16)
}

func TestProofNeverBelievesMoreThanTheLeaderGranted(t *testing.T) {
	for seed := range uint64(1500) {
		for name, every := range map[string]func(*rand.Rand) time.Duration{"regular": regular, "random": random} {
			slow := time.Duration(seed%8) * modelTimeout / 16
			if excess, _ := run(seed, newProof(modelTimeout, 0), modelTimeout, slow, every); excess > 0 {
				t.Fatalf("%s, seed %d: believed in %v more than the leader had granted", name, seed, excess)
			}
		}
	}
}

// The model would show a rule that is too bold, such as one without the gap
// between the first and the second heartbeat.
func TestProofModelFindsABoldRule(t *testing.T) {
	bold := newProof(modelTimeout, 0)
	bold.gap = 0
	found := false
	for seed := range uint64(1500) {
		excess, _ := run(seed, bold, modelTimeout, modelTimeout/64, random)
		found = found || excess > 0
	}
	if !found {
		t.Error("no history contradicts a gap of 0: the model proves nothing")
	}
}

// With short round trips a proof is never older than T/2 when beaten every T/6,
// so that half of the timeout is left at all times.
func TestProofIsFreshEnough(t *testing.T) {
	for seed := range uint64(500) {
		_, lag := run(seed, newProof(modelTimeout, 0), modelTimeout, modelTimeout/500, regular)
		if limit := modelTimeout/2 + modelTimeout/16; lag > limit {
			t.Fatalf("seed %d: the best proof was %v old, more than %v", seed, lag, limit)
		}
	}
}

func TestProofSteps(t *testing.T) {
	t0 := time.Unix(1e9, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	p := newProof(1600*time.Millisecond, 0) // gap 500 ms
	want := func(what string, from time.Time) {
		t.Helper()
		if !p.from.Equal(from) {
			t.Errorf("after %s: from %v, want %v", what, p.from.Sub(t0), from.Sub(t0))
		}
	}
	p.connected(at(0))
	want("a connect", time.Time{})
	p.wrote()
	want("a write on it", at(0))
	p.wrote()
	p.beat(at(100), at(110))
	p.beat(at(609), at(615)) // 499 ms after the first was confirmed: one too few
	p.beat(at(700), at(710)) // a second for the first
	want("two heartbeats", at(0))
	p.beat(at(705), at(720)) // sent before the second was confirmed
	want("a third too early", at(0))
	p.beat(at(800), at(810))
	want("a third", at(100))
	p.connected(at(900))
	p.beat(at(1300), at(1310)) // proves the connect, and is a first again
	want("a heartbeat on a new connection", at(900))
	p.beat(at(1400), at(1410))
	want("more of them, too close together", at(900))

	if got := newProof(4*time.Second, 6*time.Second).gap; got != 3250*time.Millisecond {
		t.Errorf("gap with a long tick: %v", got)
	}
}
