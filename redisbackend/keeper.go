package redisbackend

import (
	"context"
	"time"

	"example.com/distlock/driver"
	"example.com/distlock/internal/redisnode"
)

// maxBatch keeps a pipeline to some tens of kilobytes and its time on the server
// to about a millisecond.
const maxBatch = 256

// keeper renews the leases of one driver, many in one round trip. They share no
// fate: each has a key and an expiry of its own.
type keeper struct{ d *redisDriver }

func (k *keeper) Every() time.Duration { return 0 }
func (k *keeper) MaxBatch() int        { return maxBatch }

// Retire does nothing: there is no session.
func (k *keeper) Retire(context.Context) error { return nil }

func (k *keeper) Renew(ctx context.Context, ks []driver.Kept) []driver.Confirm {
	calls := make([]redisnode.Call, len(ks))
	for i, kept := range ks {
		calls[i] = k.d.extendCall(kept.(*lease))
	}
	confirms := make([]driver.Confirm, len(ks))
	if len(ks) == 0 {
		return confirms
	}
	from := time.Now()
	replies, err := k.d.runAll(ctx, calls)
	for i, kept := range ks {
		if err != nil {
			confirms[i].Err = err
			continue
		}
		confirms[i] = confirm(replies[i], from, kept.(*lease).ttl)
	}
	return confirms
}

// confirm tells a lost lock (the script says 0, or found another type) from a
// failed request. Only a 1 confirms.
func confirm(r redisnode.Reply, from time.Time, ttl time.Duration) driver.Confirm {
	switch {
	case r.Err == nil && r.Value == int64(1):
		return driver.Confirm{From: from, TTL: ttl}
	case r.Err == nil, redisnode.WrongType(r.Err):
		return driver.Confirm{Err: driver.ErrNotHeld}
	}
	return driver.Confirm{Err: classify(r.Err)}
}
