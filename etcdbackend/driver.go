package etcdbackend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"example.com/distlock"
	"example.com/distlock/driver"
)

const (
	minTTL = 2 * time.Second // below it the server grants more than was asked for
	maxTTL = 9_000_000_000 * time.Second

	// A lease that ends between its use and the server's answer is replaced
	// within the attempt; not for ever, or a server that denies every lease it
	// granted would be asked in a tight loop.
	maxLeases = 3
)

// backend is the driver for one etcd cluster.
type backend struct {
	layout
	cli    *clientv3.Client
	kv     clientv3.KV
	leases etcdserverpb.LeaseClient
	hub    *hub

	mu     sync.Mutex
	slots  map[time.Duration]*slot // by the TTL asked for
	closed bool
}

var _ driver.Queuer = (*backend)(nil)

func newBackend(cli *clientv3.Client, o *Options) (*backend, error) {
	if cli == nil || cli.ActiveConnection() == nil {
		return nil, fmt.Errorf("%w: client: must not be nil or without a connection", distlock.ErrInvalid)
	}
	l, err := o.layout()
	if err != nil {
		return nil, err
	}
	b := &backend{
		layout: l,
		cli:    cli,
		kv:     clientv3.NewKV(cli),
		leases: etcdserverpb.NewLeaseClient(cli.ActiveConnection()), // without the client's retries: the caller has its own
		slots:  map[time.Duration]*slot{},
	}
	b.hub = newHub(b)
	return b, nil
}

var capabilities = driver.Capabilities{
	Backend:    "etcd",
	Fencing:    true,
	FIFO:       true,
	Replicated: true,
	SharedFate: true,
	LockTTL:    true,
	Push:       true,
	MinTTL:     minTTL,
	MaxTTL:     maxTTL,
	TTLQuantum: time.Second,
	NumberKind: "create revision",
}

// Capabilities looks at the server's version and at the layout under the prefix.
// What it returns does not depend on them, and is returned with an error too.
func (b *backend) Capabilities(ctx context.Context) (driver.Capabilities, error) {
	if ctx.Err() != nil {
		return capabilities, context.Cause(ctx) // not even a connection
	}
	return capabilities, b.classify(ctx, b.probe(clientv3.WithRequireLeader(ctx)))
}

func (b *backend) probe(ctx context.Context) error {
	st, err := etcdserverpb.NewMaintenanceClient(b.cli.ActiveConnection()).Status(ctx, &etcdserverpb.StatusRequest{})
	if err != nil {
		return err
	}
	if tooOld(st.Version) {
		return &driver.PermanentError{Err: fmt.Errorf("the server has version %s, the oldest supported is 3.5.13", st.Version)}
	}
	r, err := b.commit(b.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(b.version()), "=", 0)).
		Then(clientv3.OpPut(b.version(), layoutVersion)).
		Else(clientv3.OpGet(b.version())))
	if err != nil {
		return err
	}
	if r.Succeeded {
		return nil
	}
	if kvs := r.Responses[0].GetResponseRange().Kvs; string(kvs[0].Value) != layoutVersion {
		return &driver.PermanentError{Err: fmt.Errorf("%s is %.40q, this package knows layout %q only", b.version(), kvs[0].Value, layoutVersion)}
	}
	return nil
}

// commit sends a transaction.
func (b *backend) commit(txn clientv3.Txn) (r *clientv3.TxnResponse, err error) {
	err = b.anywhere(func() error {
		r, err = txn.Commit()
		return err
	})
	return r, err
}

// anywhere calls f again if it came to a member that has no leader, which
// refuses requests before it does anything for them: the client goes round its
// endpoints. A few more rounds than endpoints, since others' requests take turns too.
func (b *backend) anywhere(f func() error) (err error) {
	for range 2 * len(b.cli.Endpoints()) {
		if err = f(); !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) {
			return err
		}
	}
	return err
}

// tooOld reports whether v is below 3.5.13, before which a leader that hung in
// its disk could confirm leases that a newer leader had let go. A version that
// does not parse is not held against the server.
func tooOld(v string) bool {
	var major, minor, patch int
	if _, err := fmt.Sscanf(v, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return false
	}
	switch {
	case major != 3:
		return major < 3
	case minor != 5:
		return minor < 5
	}
	return patch < 13
}

// Acquire takes the lock in one transaction that succeeds only if nobody is in
// the queue, so that a failed try leaves no trace.
func (b *backend) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	e, err := b.enter(ctx, req, false)
	if err != nil {
		return driver.Grant{}, err
	}
	return e.grant()
}

// enter sends req's transaction on the lease for its TTL.
func (b *backend) enter(ctx context.Context, req driver.Request, queue bool) (*entry, error) {
	for n := 1; ; n++ {
		s, err := b.session(ctx, req.TTL)
		if err != nil {
			return nil, err
		}
		e, err := s.enter(ctx, req, queue)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound), errors.Is(err, errLeaseGone):
			s.end(errLeaseGone)
		case errors.Is(err, errRetired):
			// What was put on the old lease would stand before a second sending.
			if err := b.revoke(ctx, s.id); err != nil {
				return nil, err
			}
		default:
			return e, err
		}
		if n == maxLeases {
			return nil, err
		}
	}
}

// enter sends the acquire transaction until its outcome is clear:
//
//	queue: If the entry is new and the abort key as last seen
//	       Then put the entry, get the two last entries
//	try:   If the queue is empty and the abort key as last seen
//	       Then put the entry
//	       Else get the own entry, the abort key, the first entry
//
// The else branch tells three things apart. The own entry is there: an earlier
// sending of this request took effect. The abort key has changed: try again with
// its present revision. Otherwise the lock is held (only in a try).
func (s *session) enter(ctx context.Context, req driver.Request, queue bool) (e *entry, err error) {
	b := s.b
	bucket := bucketOf(req.Name)
	dir, key, abort := b.dir(req.Name), b.entry(req.Name, s.id, req.Owner), b.abort(s.id, bucket)
	again := s.admit(req.Owner)
	sp := b.hub.join(dir, key)
	defer func() {
		if err != nil {
			b.hub.leave(sp)
			if !again && refused(err) {
				s.forget(req.Owner)
			}
		}
	}()
	free := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	then := []clientv3.Op{clientv3.OpPut(key, req.Metadata, clientv3.WithLease(clientv3.LeaseID(s.id)))}
	if queue {
		then = append(then, lastTwo(dir))
	} else {
		free = clientv3.Compare(clientv3.CreateRevision(dir), "=", 0).WithPrefix()
	}
	for {
		// Whoever calls Abandon ends ctx first. So a revision that was read before
		// ctx was seen alive is not that of such an abort, which then refuses what
		// is sent here.
		seen := s.abortRev(bucket)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		r, err := b.commit(b.kv.Txn(clientv3.WithRequireLeader(ctx)).
			If(free, clientv3.Compare(clientv3.ModRevision(abort), "=", seen)).
			Then(then...).
			Else(
				clientv3.OpGet(key, clientv3.WithKeysOnly()),
				clientv3.OpGet(abort, clientv3.WithKeysOnly()),
				clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1),
					clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)),
			))
		if err != nil {
			return nil, b.classify(ctx, err)
		}
		if err := s.err(); err != nil {
			return nil, err // what was put goes with the lease
		}
		e := &entry{s: s, req: req, key: key, spot: sp, again: again, rev: r.Header.Revision}
		if r.Succeeded {
			if queue {
				e.follow(r.Responses[1].GetResponseRange().Kvs)
			}
			return e, nil
		}
		own := r.Responses[0].GetResponseRange().Kvs
		first := r.Responses[2].GetResponseRange()
		seen = 0
		if kvs := r.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
			seen = kvs[0].ModRevision
		}
		s.saw(bucket, seen)
		switch {
		case len(own) > 0:
			e.rev, e.again = own[0].CreateRevision, true
			e.first = string(first.Kvs[0].Key) == key
			e.stale = true // who the predecessor is was not asked
			return e, nil
		case !queue && first.Count > 0:
			// An earlier sending of this request may still be on its way, and
			// would take the lock when it is free.
			if again {
				if err := s.abort(ctx, req.Name, key); err != nil {
					return nil, err
				}
			}
			s.forget(req.Owner)
			return nil, &driver.HeldError{Waiters: int(first.Count) - 1, Keeper: s}
		}
	}
}

// lastTwo reads the entry with the highest create revision and the one before
// it: after a put, one's own and the predecessor.
func lastTwo(dir string, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(dir, append(opts, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(2),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))...)
}

// Abandon writes the abort key and deletes the entry, in one transaction: an
// acquire that the server sees later requires an older abort key and is refused.
func (b *backend) Abandon(ctx context.Context, req driver.Request) error {
	s := b.current(req.TTL)
	if s == nil || !s.knows(req.Owner) {
		return nil // never sent, or sent on a lease that is gone or dying
	}
	if err := s.abort(ctx, req.Name, b.entry(req.Name, s.id, req.Owner)); err != nil {
		return err
	}
	s.forget(req.Owner)
	return nil
}

// Close ends the watch and revokes the leases.
func (b *backend) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	slots := make([]*slot, 0, len(b.slots))
	for _, sl := range b.slots {
		slots = append(slots, sl)
	}
	b.mu.Unlock()

	errs := make([]error, len(slots)+1)
	var wg sync.WaitGroup
	for i, sl := range slots {
		wg.Go(func() { errs[i] = sl.close(ctx, b) })
	}
	errs[len(slots)] = b.hub.close(ctx)
	wg.Wait()
	return errors.Join(errs...)
}

// An entry is one key in a queue: a place there, and the lock when it is first.
// It is the driver's Ticket and its Lease.
type entry struct {
	s    *session
	req  driver.Request
	key  string
	rev  int64 // create revision
	spot *spot

	first bool // no entry is before this one
	stale bool // what was read last is known to be outdated

	mu     sync.Mutex // one Release at a time
	again  bool       // sent more than once: an earlier sending may still be on its way
	unsure bool       // the reply to a release is missing
	done   bool
}

// Keeper returns the lease.
func (e *entry) Keeper() driver.Keeper { return e.s }

func (e *entry) grant() (driver.Grant, error) {
	if !e.s.b.hub.hold(e.spot, e.req.Gone) {
		return driver.Grant{}, e.vanished()
	}
	return driver.Grant{Lease: e, Number: uint64(e.rev), From: e.s.confirmed(), TTL: e.s.ttl}, nil
}

// vanished gives up what belongs to an entry whose key is gone.
func (e *entry) vanished() error {
	e.s.b.hub.leave(e.spot)
	e.s.forget(e.req.Owner)
	return driver.ErrNotHeld
}

// Release deletes the entry if it is still the one that was created at rev.
func (e *entry) Release(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.s.b
	b.hub.leave(e.spot)
	if e.done || e.s.err() != nil {
		return driver.ErrNotHeld
	}
	bucket := bucketOf(e.req.Name)
	mine := clientv3.Compare(clientv3.CreateRevision(e.key), "=", e.rev)
	var then, other []clientv3.Op
	if e.again {
		// Once the key is gone, a late sending of the acquire would find its
		// place empty.
		put := e.s.putAbort(bucket)
		then, other = append(then, put), append(other, put)
	}
	r, err := b.commit(b.kv.Txn(clientv3.WithRequireLeader(ctx)).
		If(mine).Then(append(then, clientv3.OpDelete(e.key))...).Else(other...))
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		e.s.end(errLeaseGone)
		return driver.ErrNotHeld
	case err != nil:
		e.unsure = true
		return b.classify(ctx, err)
	}
	if e.again {
		e.s.saw(bucket, r.Header.Revision)
	}
	e.done = true
	e.s.forget(e.req.Owner)
	if !r.Succeeded && !e.unsure {
		return driver.ErrNotHeld
	}
	return nil
}
