package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/distlock"
)

// Loss is who could still lock when servers were killed: first as many as may
// fail without a majority being lost, then one more.
type Loss struct {
	Servers  int           `json:"servers"`
	Minority int           `json:"minority"`  // killed first; 0 if there is but one server
	Took     time.Duration `json:"took_ns"`   // from that kill until a lock that was asked for right after it
	Majority int           `json:"majority"`  // killed in all
	Granted  bool          `json:"granted"`   // a lock was still granted then
	Waited   time.Duration `json:"waited_ns"` // for a lock that was not granted
	Error    string        `json:"error"`     // what the caller was told

	Violations []string `json:"violations,omitempty"`
}

const (
	electionLimit = 20 * time.Second // for a lock after the loss of a minority
	refusalWait   = 3 * time.Second  // for a lock after the loss of the majority
)

var errNotOurs = errors.New("these servers are not ours to kill")

// loss kills servers for good; nothing can be measured on t afterwards.
func loss(ctx context.Context, t *target, ttl time.Duration) (res Loss, err error) {
	if t.kill == nil {
		return res, errNotOurs
	}
	res.Servers = len(t.addrs)
	res.Minority = (res.Servers - 1) / 2
	res.Majority = res.Minority + 1

	c, err := t.dial(distlock.WithTTL(ttl))
	if err != nil {
		return res, err
	}
	defer c.Close()
	lock := func(name string, limit time.Duration) (*distlock.Lock, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return c.Lock(ctx, name)
	}
	// One lock is held all the time: a rival that gets it is a violation.
	held, err := lock("loss-held", electionLimit)
	if err != nil {
		return res, fmt.Errorf("before any loss: %w", err)
	}

	order, err := t.leaderFirst(ctx)
	if err != nil {
		return res, err
	}
	if res.Minority > 0 {
		for _, addr := range order[:res.Minority] {
			if err := t.kill(ctx, addr); err != nil {
				return res, err
			}
		}
		start := time.Now()
		lk, err := lock("loss-minority", electionLimit)
		if err != nil {
			return res, fmt.Errorf("after the loss of a minority: %w", err)
		}
		res.Took = time.Since(start)
		if err := lk.Unlock(ctx); err != nil {
			return res, fmt.Errorf("unlock after the loss of a minority: %w", err)
		}
		res.Violations = append(res.Violations, t.rival(ctx, held)...)
	}

	if err := t.kill(ctx, order[res.Minority]); err != nil {
		return res, err
	}
	start := time.Now()
	_, err = lock("loss-majority", refusalWait)
	res.Waited = time.Since(start)
	if res.Granted = err == nil; !res.Granted {
		res.Error = err.Error()
	}
	if ctx.Err() != nil { // nothing is known then
		return res, context.Cause(ctx)
	}
	return res, nil
}

// rival tries to get what held holds, from a Locker of its own.
func (t *target) rival(ctx context.Context, held *distlock.Lock) []string {
	c, err := t.dial()
	if err != nil {
		return nil
	}
	defer c.Close()
	lk, err := c.TryLock(ctx, held.Name())
	if err != nil || held.Err() != nil {
		return nil
	}
	return []string{fmt.Sprintf("%s: token %d granted while token %d was held, a minority being lost", held.Name(), lk.Token(), held.Token())}
}
