package etcdbackend

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"example.com/distlock/driver"
)

// A session is one lease and what is known of it. It is never revived: once its
// context has ended it confirms and grants nothing.
type session struct {
	b   *backend
	id  int64
	ttl time.Duration // as granted, which may be more than was asked for

	ctx context.Context // ends with the session; its cause says why
	end context.CancelCauseFunc

	mu     sync.Mutex
	from   time.Time           // when the last confirmed request was sent
	owners map[string]struct{} // sent and not yet known to be gone
	aborts [buckets]int64      // modification revisions of the abort keys; 0: none

	turn   chan struct{} // holds a token while a keepalive is under way
	stream etcdserverpb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc // of stream
}

// A slot holds the session in use for one TTL.
type slot struct {
	turn    chan struct{} // one grant at a time
	pending int64         // id of a lease whose grant had no clear answer

	mu  sync.Mutex
	cur *session
}

func (sl *slot) live() *session {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.cur != nil && sl.cur.err() != nil {
		sl.cur = nil
	}
	return sl.cur
}

func (b *backend) current(ttl time.Duration) *session {
	b.mu.Lock()
	sl := b.slots[ttl]
	b.mu.Unlock()
	if sl == nil {
		return nil
	}
	return sl.live()
}

// session returns the session for ttl, made if there is none.
func (b *backend) session(ctx context.Context, ttl time.Duration) (*session, error) {
	b.mu.Lock()
	sl := b.slots[ttl]
	if sl == nil && !b.closed {
		sl = &slot{turn: make(chan struct{}, 1)}
		b.slots[ttl] = sl
	}
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	if s := sl.live(); s != nil {
		return s, nil
	}
	select {
	case sl.turn <- struct{}{}:
		defer func() { <-sl.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if s := sl.live(); s != nil {
		return s, nil
	}
	return sl.open(ctx, b, ttl)
}

// open grants a lease. Its id is chosen here, so that a grant whose reply was
// lost is found again instead of leaving a lease behind.
func (sl *slot) open(ctx context.Context, b *backend, ttl time.Duration) (*session, error) {
	if sl.pending == 0 {
		sl.pending = rand.Int64N(math.MaxInt64-1) + 1
	}
	s := &session{
		b:      b,
		id:     sl.pending,
		from:   time.Now(),
		owners: map[string]struct{}{},
		turn:   make(chan struct{}, 1),
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	var r *etcdserverpb.LeaseGrantResponse
	err := b.anywhere(func() (err error) {
		r, err = b.leases.LeaseGrant(clientv3.WithRequireLeader(ctx), &etcdserverpb.LeaseGrantRequest{ID: s.id, TTL: int64(ttl / time.Second)})
		return err
	})
	switch err = rpctypes.Error(err); {
	case errors.Is(err, rpctypes.ErrLeaseExist):
		c := s.keepalive(ctx) // an earlier grant took effect; only this confirms it
		if errors.Is(c.Err, driver.ErrNotHeld) {
			sl.pending = 0 // it has ended since; the next attempt takes a new id
		}
		if c.Err != nil {
			s.end(c.Err)
			return nil, c.Err
		}
		s.ttl = c.TTL
	case err != nil:
		s.end(err)
		return nil, b.classify(ctx, err)
	default:
		s.ttl = time.Duration(r.TTL) * time.Second
	}
	sl.pending = 0
	sl.mu.Lock()
	sl.cur = s
	sl.mu.Unlock()
	return s, nil
}

func (sl *slot) close(ctx context.Context, b *backend) error {
	select {
	case sl.turn <- struct{}{}:
		defer func() { <-sl.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s := sl.live(); s != nil {
		return s.Retire(ctx)
	}
	if sl.pending != 0 {
		return b.revoke(ctx, sl.pending)
	}
	return nil
}

func (b *backend) revoke(ctx context.Context, id int64) error {
	err := b.anywhere(func() error {
		_, err := b.leases.LeaseRevoke(clientv3.WithRequireLeader(ctx), &etcdserverpb.LeaseRevokeRequest{ID: id})
		return err
	})
	if err = rpctypes.Error(err); errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return b.classify(ctx, err)
}

// err is nil while the session may grant and confirm.
func (s *session) err() error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return nil
}

// admit notes that a request of owner is about to be sent, and reports whether
// there was one before whose outcome is open.
func (s *session) admit(owner string) (again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, again = s.owners[owner]
	s.owners[owner] = struct{}{}
	return again
}

func (s *session) forget(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.owners, owner)
}

func (s *session) knows(owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.owners[owner]
	return ok
}

func (s *session) abortRev(bucket int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aborts[bucket]
}

// saw notes a revision of the abort key. One that is older than what was noted
// before, by an answer that comes late, costs a transaction, no more.
func (s *session) saw(bucket int, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborts[bucket] = rev
}

// putAbort makes acquire transactions of the bucket that were sent before fail.
func (s *session) putAbort(bucket int) clientv3.Op {
	return clientv3.OpPut(s.b.abort(s.id, bucket), "", clientv3.WithLease(clientv3.LeaseID(s.id)))
}

// abort undoes what was sent for name with key, whether the server has seen it
// or will. nil also if the lease is gone, and with it the key.
//
// What was sent earlier requires the abort key to have a revision that was known
// before this abort was sent, so one below this abort's. The key's revision only
// grows, whichever name of the bucket moves it next, and the key stays as long as
// the lease, without which nothing can be put. So that revision never comes back.
// A transaction of others that was under way is refused as well, learns the
// present revision from its answer and is sent again.
func (s *session) abort(ctx context.Context, name, key string) error {
	n := bucketOf(name)
	r, err := s.b.commit(s.b.kv.Txn(clientv3.WithRequireLeader(ctx)).Then(s.putAbort(n), clientv3.OpDelete(key)))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.end(errLeaseGone)
		return nil
	}
	if err != nil {
		return s.b.classify(ctx, err)
	}
	s.saw(n, r.Header.Revision)
	return nil
}

func (s *session) confirmed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from
}

// Renew confirms the lease, and with it all keys attached to it, with one
// keepalive. It answers ErrNotHeld for one whose key is known to be deleted.
func (s *session) Renew(ctx context.Context, ks []driver.Kept) []driver.Confirm {
	c := s.keepalive(ctx)
	if len(ks) == 0 {
		return []driver.Confirm{c}
	}
	cs := make([]driver.Confirm, len(ks))
	for i, k := range ks {
		cs[i] = c
		if e, ok := k.(*entry); ok && s.b.hub.gone(e.spot) {
			cs[i] = driver.Confirm{Err: driver.ErrNotHeld}
		}
	}
	return cs
}

// Every leaves the interval to the caller: a third of the TTL.
func (s *session) Every() time.Duration { return 0 }

// MaxBatch is not limited: the number of keys does not matter to a keepalive.
func (s *session) MaxBatch() int { return math.MaxInt }

// Retire ends the session here at once, and on the server if that can be reached.
func (s *session) Retire(ctx context.Context) error {
	s.end(errRetired)
	return s.b.revoke(ctx, s.id)
}

// keepalive sends one keepalive and waits for its answer. Answers carry nothing
// that tells to which request they belong, so there is one request at a time on
// the stream, and a stream that owes an answer is thrown away.
func (s *session) keepalive(ctx context.Context) driver.Confirm {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return driver.Confirm{Err: context.Cause(ctx)}
	}
	for {
		if s.err() != nil {
			return driver.Confirm{Err: driver.ErrNotHeld}
		}
		used := s.stream != nil
		var from time.Time
		var ttl int64
		err := s.b.anywhere(func() (err error) {
			from = time.Now()
			ttl, err = s.ask(ctx)
			return err
		})
		switch {
		case s.err() != nil:
			return driver.Confirm{Err: driver.ErrNotHeld}
		case err != nil && used && ctx.Err() == nil:
			continue // the server may have ended the stream since its last use
		case err != nil:
			return driver.Confirm{Err: s.b.classify(ctx, err)}
		case ttl <= 0:
			s.end(errLeaseGone)
			return driver.Confirm{Err: driver.ErrNotHeld}
		}
		s.mu.Lock()
		if from.After(s.from) {
			s.from = from
		}
		s.mu.Unlock()
		return driver.Confirm{From: from, TTL: time.Duration(ttl) * time.Second}
	}
}

// ask sends one request on the stream, opened if there is none, and reads one
// answer. The stream lives longer than ctx, but ctx can end it.
func (s *session) ask(ctx context.Context) (ttl int64, err error) {
	if s.stream == nil {
		sctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
		stop := context.AfterFunc(ctx, cancel)
		st, err := s.b.leases.LeaseKeepAlive(sctx)
		if err != nil || !stop() {
			cancel()
			if err == nil {
				err = ctx.Err()
			}
			return 0, err
		}
		s.stream, s.cancel = st, cancel
	}
	stop := context.AfterFunc(ctx, s.cancel)
	defer func() {
		if !stop() || err != nil {
			s.cancel()
			s.stream = nil
		}
	}()
	// After io.EOF from Send, Recv has the reason.
	if err := s.stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: s.id}); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	r, err := s.stream.Recv()
	if err != nil {
		return 0, err
	}
	return r.TTL, nil
}
