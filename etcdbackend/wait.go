package etcdbackend

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"example.com/distlock/driver"
)

const (
	readTimeout = 5 * time.Second        // of one look at the queue
	readPause   = 250 * time.Millisecond // after one that failed
)

// Enqueue puts an entry into the queue: the lock itself if no other is there.
func (b *backend) Enqueue(ctx context.Context, req driver.Request) (driver.Ticket, error) {
	e, err := b.enter(ctx, req, true)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Wait looks at the queue again whenever the predecessor's key was deleted, the
// watch was opened anew, or a third of the TTL has passed, until no entry is
// before this one. A predecessor that is gone does not mean being first: it may
// have left its place while others before it stayed.
func (e *entry) Wait(ctx context.Context) (driver.Grant, error) {
	var floor *time.Ticker
	for {
		if e.s.err() != nil {
			return driver.Grant{}, e.vanished()
		}
		if e.first {
			return e.grant()
		}
		if floor == nil {
			floor = time.NewTicker(e.s.ttl / 3)
			defer floor.Stop()
		}
		var pause <-chan time.Time
		if e.stale {
			err := e.look(ctx)
			var fatal *driver.PermanentError
			switch {
			case errors.Is(err, driver.ErrNotHeld), errors.As(err, &fatal):
				return driver.Grant{}, err
			case ctx.Err() != nil:
				return driver.Grant{}, context.Cause(ctx)
			case err == nil:
				continue
			}
			pause = time.After(readPause)
		}
		select {
		case <-pause:
		case <-e.spot.wake:
		case <-floor.C:
		case <-e.s.ctx.Done():
		case <-ctx.Done():
			return driver.Grant{}, context.Cause(ctx)
		}
		e.stale = true
	}
}

// look reads the own entry and the one before it.
func (e *entry) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	b := e.s.b
	if !b.hub.begin(e.spot) {
		return e.vanished()
	}
	dir := b.dir(e.req.Name)
	r, err := b.kv.Do(clientv3.WithRequireLeader(ctx), lastTwo(dir, clientv3.WithMaxCreateRev(e.rev)))
	if err != nil {
		return b.classify(ctx, err)
	}
	if !e.follow(r.Get().Kvs) {
		return e.vanished()
	}
	return nil
}

// follow takes the result of lastTwo. It returns false if the own entry is not there.
func (e *entry) follow(kvs []*mvccpb.KeyValue) bool {
	if len(kvs) == 0 || string(kvs[0].Key) != e.key || kvs[0].CreateRevision != e.rev {
		return false
	}
	e.first = len(kvs) == 1
	e.stale = !e.first && !e.s.b.hub.follow(e.spot, string(kvs[1].Key))
	return true
}

// Leave gives up the place, or the lock.
func (e *entry) Leave(ctx context.Context) error { return e.Release(ctx) }
