package zkbackend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"example.com/distlock/driver"
)

var _ driver.Keeper = (*session)(nil)

// Renew writes the session's heartbeat and answers with the best proof that
// there is by then; proof explains why that is older than this heartbeat. With
// no ks the one answer is the session's own.
func (s *session) Renew(ctx context.Context, ks []driver.Kept) []driver.Confirm {
	err := s.beat(ctx)

	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.over != nil {
		err = fmt.Errorf("%w: %w", driver.ErrNotHeld, s.over)
	} else if err == nil && s.proof.from.IsZero() {
		err = errors.New("zookeeper: nothing proven yet")
	}
	answers := make([]driver.Confirm, max(1, len(ks)))
	for i := range answers {
		answers[i] = s.confirm()
		if i < len(ks) {
			answers[i] = s.confirmOf(ks[i])
		}
		if err != nil && !errors.Is(answers[i].Err, driver.ErrNotHeld) {
			answers[i] = driver.Confirm{Err: err}
		}
	}
	return answers
}

// confirmOf answers for k: a heartbeat proves the session, and the watch on its
// node that k is still there. The caller holds d.mu.
func (s *session) confirmOf(k driver.Kept) driver.Confirm {
	var n *node
	switch k := k.(type) {
	case *lease:
		n = k.node
	case *ticket:
		n = k.node
	}
	switch {
	case n == nil || n.s != s || n.doomed || n.removed:
		return driver.Confirm{Err: driver.ErrNotHeld}
	case n.gone != nil:
		return driver.Confirm{Err: fmt.Errorf("%w: %w", driver.ErrNotHeld, n.gone)}
	case !n.watched:
		return driver.Confirm{Err: errors.New("zookeeper: lock node not read again yet")}
	}
	return s.confirm()
}

// Every is a sixth of the session timeout.
func (s *session) Every() time.Duration { return s.ttl / 6 }

// MaxBatch has no limit: what is kept costs nothing.
func (s *session) MaxBatch() int { return math.MaxInt }

// Retire ends the session. Nothing prolongs it from now on; if the server
// answers within a second it is closed there too.
func (s *session) Retire(ctx context.Context) error {
	s.end(errRetired, false)
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
