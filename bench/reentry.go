package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/distlock"
)

// Reentry is what happens when a holder asks for its own lock again.
type Reentry struct {
	Counted  bool  `json:"counted"`  // granted again with the same token; the last Unlock releases
	Refused  bool  `json:"refused"`  // without the option: told at once that it would wait for itself
	Requests int64 `json:"requests"` // that a second Lock and its Unlock sent
}

// reentry finds out by calling.
func reentry(ctx context.Context, t *target) (Reentry, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c, err := t.dial()
	if err != nil {
		return Reentry{}, err
	}
	defer c.Close()

	const name = "reentry"
	outer, err := c.Lock(ctx, name)
	if err != nil {
		return Reentry{}, err
	}
	defer func() { _ = outer.Unlock(ctx) }() // for the early returns; the last Unlock below is checked

	// The context of a holding has no deadline; a backend that cannot re-enter
	// would wait for itself.
	again := func(opts ...distlock.LockOption) (*distlock.Lock, error) {
		ctx, cancel := context.WithTimeout(outer.Context(), 5*time.Second)
		defer cancel()
		return c.Lock(ctx, name, opts...)
	}
	var res Reentry
	_, err = again()
	res.Refused = errors.Is(err, distlock.ErrDeadlock)

	same := true
	for try := range 3 { // a heartbeat may fall into one
		before, err := t.requests(ctx)
		if err != nil {
			return res, err
		}
		inner, err := again(distlock.Reentrant())
		if err != nil {
			return res, fmt.Errorf("re-entrant lock: %w", err)
		}
		same = same && inner.Token() == outer.Token()
		if err := inner.Unlock(ctx); err != nil {
			return res, err
		}
		after, err := t.requests(ctx)
		if err != nil {
			return res, err
		}
		if n := after - before; try == 0 || n < res.Requests {
			res.Requests = n
		}
	}
	stillHeld := outer.Err() == nil
	if err := outer.Unlock(ctx); err != nil {
		return res, err
	}
	next, err := c.TryLock(ctx, name) // free only if the last Unlock released
	if err != nil {
		return res, fmt.Errorf("lock after the last unlock: %w", err)
	}
	res.Counted = same && stillHeld
	return res, next.Unlock(ctx)
}
