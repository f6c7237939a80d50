package etcdbackend

import (
	"container/list"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	// A watch that nobody needs stays open for warmFor, because one that is open
	// and in step tells of a deletion at once, and so the next wait for that name
	// needs no watch of its own first. At most maxWarm are kept so.
	warmFor = 10 * time.Second
	maxWarm = 1024

	// A lock held for less than this is not watched for being deleted by others:
	// most locks are released sooner and then cost no watch.
	youngFor = 200 * time.Millisecond

	// How often the stream is asked for a sign of life. After two intervals
	// without any message it is replaced.
	pulse = 5 * time.Second

	maxBackoff = 2 * time.Second
	checkBatch = 100 // keys in one transaction that checks them; servers allow 128
)

// A hub watches the queues of the names that this backend waits for or holds.
// All watches share one stream, so neither a waiter nor a held lock costs a
// goroutine, and each name's watch tells of deletions in that name's queue only.
//
// A watch starts at the present, never at an old revision: the server puts
// watches from old revisions aside and serves them every 100 ms. Therefore
// whoever is to learn of all deletions registers with a watch that is confirmed
// before it reads or writes the queue, or reads again after the confirmation.
type hub struct {
	b      *backend
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	started  bool
	names    map[string]*nameWatch // by queue
	ids      map[int64]*nameWatch  // on the present stream
	lastID   int64
	stream   etcdserverpb.Watch_WatchClient
	out      []*etcdserverpb.WatchRequest // to be sent on stream
	warm     *list.List                   // of *nameWatch without spots, longest first
	young    []youngSpot                  // in order of due
	check    []*spot                      // holdings to be read
	checking bool
	kick     chan struct{} // wakes pump
	need     chan struct{} // wakes run
}

type nameWatch struct {
	dir   string
	id    int64
	live  bool // confirmed on the present stream
	spots map[*spot]struct{}
	warm  *list.Element
	until time.Time // to be closed, if warm
}

// A spot is one entry's place at its name's watch. Guarded by hub.mu, but for wake.
type spot struct {
	dir, key string
	wake     chan struct{} // holds a token when the queue should be read again
	nw       *nameWatch    // nil: not registered
	pred     string        // whose deletion matters
	seen     map[string]struct{}
	held     bool
	deleted  bool
	left     bool
	tell     func(error)
}

type youngSpot struct {
	sp  *spot
	due time.Time
}

func newHub(b *backend) *hub {
	h := &hub{
		b:     b,
		names: map[string]*nameWatch{},
		ids:   map[int64]*nameWatch{},
		warm:  list.New(),
		kick:  make(chan struct{}, 1),
		need:  make(chan struct{}, 1),
	}
	h.ctx, h.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	return h
}

func (h *hub) close(ctx context.Context) error {
	h.mu.Lock()
	h.started = true // nothing starts from here on
	h.cancel()
	h.mu.Unlock()
	done := make(chan struct{})
	go func() { h.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// join returns a spot for key, registered if its queue's watch is confirmed
// already. From then on the deletions in the queue are recorded for it.
func (h *hub) join(dir, key string) *spot {
	sp := &spot{dir: dir, key: key, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if nw := h.names[dir]; nw != nil && nw.live {
		sp.seen = map[string]struct{}{}
		h.attach(sp)
	}
	return sp
}

// attach registers sp with its queue's watch, opened if there is none.
func (h *hub) attach(sp *spot) {
	nw := h.names[sp.dir]
	if nw == nil {
		nw = &nameWatch{dir: sp.dir, spots: map[*spot]struct{}{}}
		h.names[sp.dir] = nw
		h.create(nw)
		h.start()
	}
	if nw.warm != nil {
		h.warm.Remove(nw.warm)
		nw.warm = nil
	}
	nw.spots[sp] = struct{}{}
	sp.nw = nw
}

func (h *hub) detach(sp *spot) {
	nw := sp.nw
	if nw == nil {
		return
	}
	sp.nw = nil
	delete(nw.spots, sp)
	if len(nw.spots) > 0 {
		return
	}
	nw.until = time.Now().Add(warmFor)
	nw.warm = h.warm.PushBack(nw)
	if h.warm.Len() > maxWarm {
		h.drop(h.warm.Front().Value.(*nameWatch))
	}
}

// drop closes a warm watch.
func (h *hub) drop(nw *nameWatch) {
	h.warm.Remove(nw.warm)
	delete(h.names, nw.dir)
	delete(h.ids, nw.id)
	if h.stream != nil {
		h.send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CancelRequest{
			CancelRequest: &etcdserverpb.WatchCancelRequest{WatchId: nw.id}}})
	}
}

// create asks for nw's watch on the present stream, if there is one; a new
// stream begins with all of them.
func (h *hub) create(nw *nameWatch) {
	if h.stream == nil {
		return
	}
	h.lastID++
	nw.id, nw.live = h.lastID, false
	h.ids[nw.id] = nw
	h.send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{
			Key:      []byte(nw.dir),
			RangeEnd: []byte(clientv3.GetPrefixRangeEnd(nw.dir)),
			WatchId:  nw.id,
			Filters:  []etcdserverpb.WatchCreateRequest_FilterType{etcdserverpb.WatchCreateRequest_NOPUT},
		}}})
}

func (h *hub) send(r *etcdserverpb.WatchRequest) {
	h.out = append(h.out, r)
	poke(h.kick)
}

// leave ends sp's registration. It is told nothing more.
func (h *hub) leave(sp *spot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sp.left, sp.tell = true, nil
	h.detach(sp)
}

// begin starts recording deletions for a read of the queue that comes after it.
// It returns false if the own key was seen deleted.
func (h *hub) begin(sp *spot) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	sp.pred, sp.seen = "", map[string]struct{}{}
	select {
	case <-sp.wake:
	default:
	}
	return !sp.deleted
}

// follow sets the key whose deletion wakes sp. It returns false if the queue has
// to be read again at once: the deletion may have come before.
func (h *hub) follow(sp *spot, pred string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, missed := sp.seen[pred]
	sp.pred, sp.seen = pred, nil
	if sp.nw == nil && !sp.deleted && !sp.left {
		h.attach(sp)
		missed = sp.nw.live // by the time between the read and now; else its confirmation wakes sp
	}
	return !missed && !sp.deleted
}

// hold makes sp that of a held lock: if its key is deleted, tell is called. It
// returns false if it has been.
func (h *hub) hold(sp *spot, tell func(error)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if sp.deleted {
		return false
	}
	sp.held, sp.tell, sp.seen = true, tell, nil
	if sp.nw == nil {
		h.young = append(h.young, youngSpot{sp, time.Now().Add(youngFor)})
		h.start()
		if len(h.young) == 1 {
			poke(h.kick)
		}
	}
	return true
}

// gone reports whether sp's key was seen deleted.
func (h *hub) gone(sp *spot) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return sp.deleted
}

// delete notes that sp's key is gone and returns whom to tell.
func (h *hub) delete(sp *spot) func(error) {
	tell := sp.tell
	sp.deleted, sp.tell = true, nil
	h.detach(sp)
	poke(sp.wake)
	return tell
}

func (h *hub) start() {
	if !h.started {
		h.started = true
		h.wg.Go(h.run)
		h.wg.Go(h.pump)
	}
	poke(h.need)
}

// run keeps a stream open while there is something to watch.
func (h *hub) run() {
	backoff := time.Duration(0)
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.need:
		}
		for h.needed() {
			began := time.Now()
			h.serve()
			if time.Since(began) > 2*pulse {
				backoff = 0
			}
			select {
			case <-h.ctx.Done():
				return
			case <-time.After(backoff):
			}
			backoff = min(max(2*backoff, 50*time.Millisecond), maxBackoff)
		}
	}
}

func (h *hub) needed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.names) > 0
}

// serve opens a stream, with all watches, and reads it until it ends.
func (h *hub) serve() {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	silence := time.AfterFunc(2*pulse, cancel)
	defer silence.Stop()
	st, err := etcdserverpb.NewWatchClient(h.b.cli.ActiveConnection()).Watch(ctx, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return
	}
	h.mu.Lock()
	h.stream, h.out = st, nil
	for _, nw := range h.names {
		h.create(nw)
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.stream, h.out = nil, nil
		clear(h.ids)
		for _, nw := range h.names {
			nw.live = false
		}
	}()
	for {
		r, err := st.Recv()
		if err != nil {
			return
		}
		silence.Reset(2 * pulse)
		if !h.handle(r) {
			return
		}
	}
}

// handle takes one message. It returns false if the stream has to be replaced.
func (h *hub) handle(r *etcdserverpb.WatchResponse) bool {
	h.mu.Lock()
	nw := h.ids[r.WatchId]
	switch {
	case r.Canceled && (nw != nil || r.Created):
		// Not by us. Where the server refuses to open a watch it does not even
		// say which. A new stream has new credentials and reads everything again.
		h.mu.Unlock()
		return false
	case nw == nil:
		h.mu.Unlock()
		return true
	case r.Created:
		nw.live = true
		for sp := range nw.spots {
			if sp.held {
				h.check = append(h.check, sp)
			} else {
				poke(sp.wake)
			}
		}
		h.startCheck()
	}
	var tells []func(error)
	for _, ev := range r.Events {
		if ev.Type != mvccpb.Event_DELETE {
			continue
		}
		key := string(ev.Kv.Key)
		for sp := range nw.spots {
			switch {
			case sp.key == key:
				if tell := h.delete(sp); tell != nil {
					tells = append(tells, tell)
				}
			case sp.pred == key && !sp.held:
				poke(sp.wake)
			case sp.seen != nil:
				sp.seen[key] = struct{}{}
			}
		}
	}
	h.mu.Unlock()
	for _, tell := range tells {
		tell(errDeleted)
	}
	return true
}

// pump does what is due and sends what is waiting. Sending can block while the
// server does not read, so nothing else is done by this goroutine.
func (h *hub) pump() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var lastPulse time.Time
	for {
		h.mu.Lock()
		now := time.Now()
		for len(h.young) > 0 && !h.young[0].due.After(now) {
			if sp := h.young[0].sp; !sp.left && !sp.deleted {
				h.attach(sp)
				if sp.nw.live {
					h.check = append(h.check, sp)
					h.startCheck()
				}
			}
			h.young = h.young[1:]
		}
		for el := h.warm.Front(); el != nil && !el.Value.(*nameWatch).until.After(now); el = h.warm.Front() {
			h.drop(el.Value.(*nameWatch))
		}
		st, out := h.stream, h.out
		h.out = nil
		if st != nil && now.Sub(lastPulse) >= pulse {
			lastPulse = now
			if len(h.names) == 0 {
				_ = st.CloseSend() // then the server ends the stream
			} else {
				out = append(out, &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
					ProgressRequest: &etcdserverpb.WatchProgressRequest{}}})
			}
		}
		next := pulse
		if st != nil {
			next = pulse - now.Sub(lastPulse)
		}
		if len(h.young) > 0 {
			next = min(next, h.young[0].due.Sub(now))
		}
		h.mu.Unlock()
		for _, r := range out {
			if st.Send(r) != nil {
				break // Recv tells the reader of the stream
			}
		}
		timer.Reset(next)
		select {
		case <-h.ctx.Done():
			return
		case <-h.kick:
		case <-timer.C:
		}
	}
}

// startCheck has the holdings in h.check read, by one goroutine for all of them.
func (h *hub) startCheck() {
	if !h.checking && len(h.check) > 0 && h.ctx.Err() == nil {
		h.checking = true
		h.wg.Go(h.runCheck)
	}
}

// runCheck reads whether the keys of holdings are there that might have been
// deleted while they were not watched.
func (h *hub) runCheck() {
	for {
		h.mu.Lock()
		var batch []*spot
		for len(h.check) > 0 && len(batch) < checkBatch {
			if sp := h.check[0]; !sp.left && !sp.deleted {
				batch = append(batch, sp)
			}
			h.check = h.check[1:]
		}
		if len(batch) == 0 {
			h.checking = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		if err := h.read(batch); err != nil {
			h.mu.Lock()
			h.check = append(h.check, batch...)
			h.mu.Unlock()
			select {
			case <-h.ctx.Done():
				return
			case <-time.After(readPause):
			}
		}
	}
}

func (h *hub) read(batch []*spot) error {
	ctx, cancel := context.WithTimeout(h.ctx, readTimeout)
	defer cancel()
	ops := make([]clientv3.Op, len(batch))
	for i, sp := range batch {
		ops[i] = clientv3.OpGet(sp.key, clientv3.WithCountOnly())
	}
	r, err := h.b.commit(h.b.kv.Txn(ctx).Then(ops...))
	if err != nil {
		return err
	}
	if len(r.Responses) != len(batch) {
		return errors.New("etcd: incomplete answer")
	}
	var tells []func(error)
	h.mu.Lock()
	for i, sp := range batch {
		if r.Responses[i].GetResponseRange().Count > 0 || sp.left || sp.deleted {
			continue
		}
		if tell := h.delete(sp); tell != nil {
			tells = append(tells, tell)
		}
	}
	h.mu.Unlock()
	for _, tell := range tells {
		tell(errDeleted)
	}
	return nil
}
