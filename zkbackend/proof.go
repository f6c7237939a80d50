package zkbackend

import "time"

// proof works out since when the leader has surely granted the session its
// timeout, from writes that a quorum has confirmed.
//
// Two things prove something. A connect does: the leader itself touches a
// session when it creates or revalidates it, and any write confirmed on that
// connection shows that the one who did so is the leader still. And three
// heartbeats on one connection do. A write that a follower passes on touches
// the session at the follower only; the leader hears of it in the follower's
// answer to the leader's next ping, sent every half tick. So the first is
// proven by a second, sent so long after the first was confirmed that the
// leader has pinged in between, and a third, sent after the second was
// confirmed: the follower answered that ping before it passed the third on, and
// the third's commit shows that the answer arrived.
//
// A proof does no input, output or locking, and reads no clock.
type proof struct {
	gap    time.Duration // from the first's confirmation to the second's sending
	thin   time.Duration // beats closer together than this add nothing
	keep   time.Duration // beats older than this are forgotten
	opened time.Time     // when the connect request was sent; zero once it has counted
	from   time.Time     // the best so far; zero: nothing proven
	beats  []beat        // confirmed on this connection, in order of sending
}

// A beat is a confirmed heartbeat.
type beat struct {
	sent, confirmed time.Time
	first           time.Time // sending time of the latest beat that this one can be the second of; zero: none
}

// newProof makes the proof for a session timeout. tick is the servers' tickTime
// where it is known, else 0: then timeout is taken to be two ticks or more, as
// servers have it unless told otherwise.
func newProof(timeout, tick time.Duration) proof {
	late := timeout / 16 // how late the leader's ping may be
	gap := timeout/4 + late
	if tick > 0 {
		gap = max(gap, tick/2+late)
	}
	return proof{gap: gap, thin: timeout / 32, keep: 2 * (timeout + gap)}
}

// connected starts a new connection, whose connect request was sent at sent.
// What was confirmed on another one is no first or second for what comes.
func (p *proof) connected(sent time.Time) {
	p.opened = sent
	p.beats = p.beats[:0]
}

// wrote notes that a write on this connection has been confirmed.
func (p *proof) wrote() {
	if !p.opened.IsZero() {
		p.advance(p.opened)
		p.opened = time.Time{}
	}
}

// beat notes a heartbeat on this connection, and reports whether another one
// sent now would, as a third, prove more. Beats are noted in order of sending.
func (p *proof) beat(sent, confirmed time.Time) (again bool) {
	p.wrote()
	b := beat{sent: sent, confirmed: confirmed}
	for _, e := range p.beats {
		if !e.first.IsZero() && !e.confirmed.After(sent) {
			p.advance(e.first) // e was the second, b is the third
		}
		if !e.confirmed.Add(p.gap).After(sent) {
			b.first = e.sent
		}
	}
	old := 0
	for old < len(p.beats) && sent.Sub(p.beats[old].sent) > p.keep {
		old++
	}
	p.beats = p.beats[old:]
	if n := len(p.beats); n == 0 || sent.Sub(p.beats[n-1].sent) >= p.thin {
		p.beats = append(p.beats, b)
		return b.first.After(p.from)
	}
	return false
}

func (p *proof) advance(t time.Time) {
	if t.After(p.from) {
		p.from = t
	}
}
