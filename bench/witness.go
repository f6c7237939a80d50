package bench

import (
	"fmt"
	"sync"
	"time"

	"example.com/distlock"
)

// A witness stands inside one lock and watches who comes and goes: that nobody
// enters while another is inside and still believes to hold, that tokens grow
// from holder to holder, and who overtook whom. It knows only what Lock and
// Unlock told their callers; it trusts no backend.
type witness struct {
	mu       sync.Mutex
	holder   *distlock.Lock
	last     distlock.Token
	left     time.Time // when the last holder began to unlock; zero before the first
	grants   int       // how often anyone entered
	previous []int     // by contender: the number of its last grant but one, -1 before
	latest   []int     // by contender: the number of its last grant, -1 before

	overlaps int // entered while another held
	disorder int // token not above the one before
	example  string
}

func newWitness(contenders int) *witness {
	w := &witness{previous: make([]int, contenders), latest: make([]int, contenders)}
	for i := range contenders {
		w.previous[i], w.latest[i] = -1, -1
	}
	return w
}

// arrive is called before Lock; enter takes what it returned.
func (w *witness) arrive() (place int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.grants
}

// An entry is what the witness saw when somebody came in.
type entry struct {
	handoff   time.Duration // since the holder before began to unlock; 0 if it was the first
	overtaken bool          // another contender was served twice during the wait
}

// enter is called right after Lock returned lk at the time now.
//
// Overtaken means: some other contender was granted the lock twice while this
// one waited. First come, first served allows one grant each, to those who were
// there before, so no clock and no tolerance is needed to tell.
func (w *witness) enter(contender, place int, lk *distlock.Lock, now time.Time) entry {
	w.mu.Lock()
	defer w.mu.Unlock()

	// A holder that was told of its loss is no longer inside.
	if w.holder != nil && w.holder.Err() == nil {
		w.overlaps++
		w.note("token %d entered while token %d still held", lk.Token(), w.holder.Token())
	}
	if tok := lk.Token(); tok != 0 || lk.Err() == nil { // 0 after an immediate loss
		if tok <= w.last {
			w.disorder++
			w.note("token %d was granted after token %d", tok, w.last)
		}
		w.last = max(w.last, tok)
	}
	w.holder = lk

	var e entry
	if !w.left.IsZero() {
		e.handoff = now.Sub(w.left)
	}
	for other, second := range w.previous {
		if other != contender && second >= place {
			e.overtaken = true
		}
	}
	w.previous[contender], w.latest[contender] = w.latest[contender], w.grants
	w.grants++
	return e
}

// leave is called right before Unlock.
func (w *witness) leave(lk *distlock.Lock, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holder == lk {
		w.holder = nil
	}
	w.left = now
}

func (w *witness) note(format string, args ...any) {
	if w.example == "" {
		w.example = fmt.Sprintf(format, args...)
	}
}

// violations says what went wrong on the lock called name, if anything.
func (w *witness) violations(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.overlaps+w.disorder == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: %d overlapping holders, %d tokens out of order in %d grants; first: %s",
		name, w.overlaps, w.disorder, w.grants, w.example)}
}
