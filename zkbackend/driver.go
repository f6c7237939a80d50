package zkbackend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"example.com/distlock/driver"
)

var (
	_ driver.Queuer = (*backend)(nil)
	_ driver.Lease  = (*lease)(nil)
)

// backend is the driver. It has one session at a time for what is asked of it,
// besides earlier ones that are ending.
type backend struct {
	servers []string
	opts    Options
	layout  layout
	opening chan struct{} // holds one token while a session is being opened
	wg      sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	probed   bool     // Capabilities has succeeded
	dialErr  error    // why the last connection failed
	server   int      // index of the server in use, or to be tried next
	current  *session // nil until something is asked for, and when it is over
	sessions map[*session]struct{}
	nodes    map[string]*node // by owner, until the owner's end
}

func makeBackend(servers []string, o Options) *backend {
	return &backend{
		servers: append([]string(nil), servers...), opts: o, layout: layout{o.Root},
		opening: make(chan struct{}, 1), server: rand.IntN(len(servers)),
		sessions: make(map[*session]struct{}), nodes: make(map[string]*node),
	}
}

// probeTimeout is the timeout of the short session on which Capabilities looks
// at the server.
const probeTimeout = 10 * time.Second

var capabilities = driver.Capabilities{
	Backend: "zookeeper", Fencing: true, FIFO: true, Replicated: true, SharedFate: true, Push: true,
	MinTTL: time.Second, MaxTTL: math.MaxInt32 * time.Millisecond, TTLQuantum: time.Millisecond,
	NumberKind: "czxid",
}

// Capabilities makes what is missing under the root and so finds out whether the
// server is new enough and grants what is needed.
func (d *backend) Capabilities(ctx context.Context) (driver.Capabilities, error) {
	d.mu.Lock()
	probed := d.probed
	d.mu.Unlock()
	if probed {
		return capabilities, nil
	}
	if ctx.Err() != nil {
		return capabilities, context.Cause(ctx)
	}
	s, err := d.exclusively(ctx, func() (*session, error) { return d.openSession(ctx, probeTimeout) })
	if err != nil {
		return capabilities, err
	}
	defer func() { _ = s.Retire(ctx) }() // unanswered, it ends by its timeout
	l, err := s.ready(ctx)
	if err == nil {
		err = s.prepare(ctx, l)
	}
	if err == nil {
		d.mu.Lock()
		d.probed = true
		d.mu.Unlock()
	}
	return capabilities, err
}

// prepare makes the root and what is in it, and checks the layout's version.
func (s *session) prepare(ctx context.Context, l *link) error {
	path := s.d.layout.version()
	for {
		data, err := call(ctx, s, l, path, func(c *zk.Conn) ([]byte, error) {
			data, _, err := c.Get(path)
			return data, err
		})
		if err == nil && string(data) != layoutVersion {
			return permanent("%s says layout %q; this version of distlock knows layout %s", path, data, layoutVersion)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if err := s.persistent(ctx, l, path, []byte(layoutVersion)); err != nil {
			return err
		}
	}
	for _, p := range []string{s.d.layout.locks(), s.d.layout.sessions()} {
		if err := s.container(ctx, l, p); err != nil {
			return err
		}
	}
	return nil
}

// persistent makes a node unless it is there, and those above it that are
// missing: to make one above takes a permission that may have been denied.
func (s *session) persistent(ctx context.Context, l *link, path string, data []byte) error {
	for {
		_, err := call(ctx, s, l, path, func(c *zk.Conn) (string, error) {
			return c.Create(path, data, zk.FlagPersistent, s.d.opts.ACL)
		})
		parent := path[:strings.LastIndexByte(path, '/')]
		switch {
		case errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode) || parent == "":
			return err
		}
		if err := s.persistent(ctx, l, parent, nil); err != nil {
			return err
		}
	}
}

// container makes a node that the server removes some time after its last child.
func (s *session) container(ctx context.Context, l *link, path string) error {
	_, err := call(ctx, s, l, path, func(c *zk.Conn) (struct{}, error) { return struct{}{}, s.createContainer(c, path) })
	return err
}

func (s *session) createContainer(c *zk.Conn, path string) error {
	_, err := c.CreateContainer(path, nil, zk.FlagContainer, s.d.opts.ACL)
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// exclusively runs open unless another call is opening a session.
func (d *backend) exclusively(ctx context.Context, open func() (*session, error)) (*session, error) {
	select {
	case d.opening <- struct{}{}:
		defer func() { <-d.opening }()
		return open()
	case <-ctx.Done():
		return nil, d.unreachable(ctx)
	}
}

// session returns the present session, or a new one.
func (d *backend) session(ctx context.Context, ttl time.Duration) (*session, error) {
	usable := func() (s, stale *session, err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		switch s := d.current; {
		case d.closed:
			return nil, nil, errClosed
		case s == nil:
			return nil, nil, nil
		case len(s.nodes) == 0 && time.Since(s.proof.from) > s.ttl*3/4 && !s.proof.from.IsZero():
			// It was idle without heartbeats. A new one is proven in one request.
			return nil, s, nil
		default:
			return s, nil, nil
		}
	}
	s, _, err := usable()
	if s != nil || err != nil {
		return s, err
	}
	return d.exclusively(ctx, func() (*session, error) {
		s, stale, err := usable()
		if s != nil || err != nil {
			return s, err
		}
		if stale != nil {
			stale.end(errRetired, false)
		}
		s, err = d.openSession(ctx, ttl)
		if err == nil {
			d.mu.Lock()
			if s.over == nil {
				d.current = s
			}
			d.mu.Unlock()
		}
		return s, err
	})
}

// A node is one attempt's node in a lock's directory, from before it is made
// until it is surely gone.
type node struct {
	d     *backend
	owner string
	dir   string
	data  []byte
	ttl   time.Duration
	tell  func(error)
	wake  chan struct{} // something has changed for Wait

	// Guarded by d.mu.
	s       *session      // nil until a session is there
	path    string        // "": not made, or not known to be
	czxid   int64         // 0: not read
	pending chan struct{} // a create is under way; closed at its end
	unsure  bool          // a create ended without an answer
	bare    bool          // the directory may have been made for it, and have had no child yet
	watched bool          // read, and the watch on it is set
	first   bool          // nobody stands before it, and nobody ever will
	ahead   []entry       // who stands before it; nil: not known
	granted bool
	doomed  bool  // to be removed; nothing is made any more
	asked   bool  // a request to delete it may have reached the server
	removed bool  // surely gone, on our request
	gone    error // gone without our doing, or with its session
}

// enroll returns the node of req's owner. From then on Abandon finds it.
func (d *backend) enroll(ctx context.Context, req driver.Request) (*node, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	n := d.nodes[req.Owner]
	if n == nil {
		n = &node{
			d: d, owner: req.Owner, dir: d.layout.lock(req.Name), data: []byte(req.Metadata),
			ttl: req.TTL, wake: make(chan struct{}, 1),
		}
		d.nodes[req.Owner] = n
	}
	n.tell = req.Gone
	return n, nil
}

// forget drops the node from all tables. The caller holds d.mu.
func (n *node) forget() {
	if n.d.nodes[n.owner] == n {
		delete(n.d.nodes, n.owner)
	}
	if n.s != nil {
		n.s.drop(n)
	}
}

// drop takes n off the session. The caller holds d.mu.
func (s *session) drop(n *node) {
	delete(s.nodes, n)
	drop := func(path string) {
		if w := s.watches[path]; w != nil {
			delete(w.nodes, n)
			if w.on == nil && len(w.nodes) == 0 {
				delete(s.watches, path)
			}
		}
	}
	drop(n.path)
	if len(n.ahead) > 0 {
		drop(n.nearest())
	}
}

// nearest is the path of the node next before n, of which there must be one.
func (n *node) nearest() string { return n.dir + "/" + n.ahead[len(n.ahead)-1].node }

// stir wakes Wait.
func (n *node) stir() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// vanish notes that the node is gone without our doing, and returns whom to
// tell, if anyone. The caller holds d.mu.
func (n *node) vanish(why error) func(error) {
	if n.gone != nil || n.removed {
		return nil
	}
	n.stir()
	if n.doomed && errors.Is(why, errNodeDeleted) {
		return nil // that was us
	}
	n.gone = why
	if !n.granted || n.doomed {
		return nil
	}
	return n.tell
}

// attach puts n on s, if its earlier session is over.
func (n *node) attach(s *session) error {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	switch {
	case n.doomed:
		return errGivenUp
	case s.over != nil:
		return s.over
	case n.s == s && n.gone == nil:
		return nil
	}
	if n.s != nil {
		n.s.drop(n)
	}
	n.s, n.path, n.czxid, n.unsure, n.gone = s, "", 0, false, nil
	n.watched, n.first, n.ahead = false, false, nil
	s.nodes[n] = struct{}{}
	return nil
}

// enter makes the node if it is not there, and finds out who stands before it.
func (n *node) enter(ctx context.Context) (*session, error) {
	for {
		s, err := n.d.session(ctx, n.ttl)
		if err != nil {
			return nil, err
		}
		l, err := s.ready(ctx)
		if err == nil {
			err = n.attach(s)
		}
		if err == nil {
			err = n.make(ctx, s, l)
		}
		if err == nil {
			err = n.look(ctx, s, l)
		}
		if err == nil {
			err = n.prove(ctx, s)
		}
		if err == nil {
			n.d.mu.Lock()
			s.known = true
			n.d.mu.Unlock()
			return s, nil
		}
		if s.ctx.Err() == nil || isPermanent(err) || ctx.Err() != nil {
			return nil, err
		}
		// The session was over before anything was granted on it: take a new one.
	}
}

// prove sees to it that something is proven about the session, which the node's
// own creation has done unless its answer was lost.
func (n *node) prove(ctx context.Context, s *session) error {
	n.d.mu.Lock()
	proven := !s.proof.from.IsZero()
	n.d.mu.Unlock()
	if proven {
		return nil
	}
	return s.beat(ctx)
}

// make creates the node unless it is there already.
func (n *node) make(ctx context.Context, s *session, l *link) error {
	mu := &n.d.mu
	for {
		mu.Lock()
		pending := n.pending
		switch {
		case n.doomed:
			mu.Unlock()
			return errGivenUp
		case pending != nil:
			mu.Unlock()
			select {
			case <-pending:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		case n.path != "":
			mu.Unlock()
			return nil
		case n.unsure:
			mu.Unlock()
			if err := n.find(ctx, s, l); err != nil {
				return err
			}
			continue
		}
		done := make(chan struct{})
		n.pending = done
		mu.Unlock()

		err := s.begin(l)
		if err != nil {
			mu.Lock()
			n.settle()
			mu.Unlock()
			return err
		}
		_, err = begun(ctx, s, l, n.dir, func(c *zk.Conn) (struct{}, error) {
			path, err := c.Create(n.dir+"/"+entryPrefix(n.owner), n.data, zk.FlagEphemeralSequential, n.d.opts.ACL)
			n.created(s, l, path, err)
			return struct{}{}, err
		})
		if errors.Is(err, zk.ErrNoNode) {
			// An empty directory is removed at any time, by the server or by a rival
			// that made it and gave up.
			if err = n.makeDir(ctx, s, l); errors.Is(err, zk.ErrNoNode) {
				err = s.prepare(ctx, l)
			}
			if err == nil {
				continue
			}
		}
		return err
	}
}

// makeDir makes the directory. The server never removes a container that has had
// no child, so until the node is in it the directory is the attempt's to remove,
// also when it was there already: whoever made it may have crashed.
func (n *node) makeDir(ctx context.Context, s *session, l *link) error {
	mu := &n.d.mu
	mu.Lock()
	if n.doomed || n.pending != nil {
		mu.Unlock()
		return nil // make sees why
	}
	n.pending, n.bare = make(chan struct{}), true
	mu.Unlock()
	settle := func() {
		mu.Lock()
		defer mu.Unlock()
		n.settle()
	}
	if err := s.begin(l); err != nil {
		settle()
		return err
	}
	_, err := begun(ctx, s, l, n.dir, func(c *zk.Conn) (struct{}, error) {
		defer settle()
		return struct{}{}, s.createContainer(c, n.dir)
	})
	return err
}

// created notes the outcome of a create, also when nobody waits for it any more.
func (n *node) created(s *session, l *link, path string, err error) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	defer n.settle()
	if n.s != s {
		return // gone with its session
	}
	switch {
	case err == nil:
		n.path, n.bare = path, false
		if s.link == l {
			s.proof.wrote()
		}
	case !isAnswer(err):
		n.unsure = true
	}
}

// settle ends the create under way. The caller holds d.mu.
func (n *node) settle() {
	close(n.pending)
	n.pending = nil
}

// find looks for what a create without an answer has left. l is a later
// connection than the create's, on which the server has caught up with the
// leader: what is not there now will not come, since a session's requests keep
// their order and the leader refuses those of a connection that was left.
func (n *node) find(ctx context.Context, s *session, l *link) error {
	entries, err := n.list(ctx, s, l)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	found := ""
	for _, e := range entries {
		if e.owner != n.owner {
			continue
		}
		path := n.dir + "/" + e.node
		st, err := stat(ctx, s, l, path)
		if err != nil {
			return err
		}
		// Under an earlier session's name a node may still stand; it is not ours to
		// hold by, and it goes with that session.
		if st != nil && st.EphemeralOwner == s.id {
			found = path
		}
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.s == s {
		n.unsure, n.path = false, found
		n.bare = n.bare && found == ""
	}
	return nil
}

// stat reads a node; nil: it is not there.
func stat(ctx context.Context, s *session, l *link, path string) (*zk.Stat, error) {
	return call(ctx, s, l, path, func(c *zk.Conn) (*zk.Stat, error) {
		there, st, err := c.Exists(path)
		if !there {
			st = nil
		}
		return st, err
	})
}

func (n *node) list(ctx context.Context, s *session, l *link) ([]entry, error) {
	children, err := call(ctx, s, l, n.dir, func(c *zk.Conn) ([]string, error) {
		children, _, err := c.Children(n.dir)
		return children, err
	})
	return parseEntries(children), err
}

// look reads own node and the queue, both at once.
func (n *node) look(ctx context.Context, s *session, l *link) error {
	var wg sync.WaitGroup
	var readErr error
	n.d.mu.Lock()
	watched, queueKnown := n.watched, n.first || n.ahead != nil
	n.d.mu.Unlock()
	if !watched {
		wg.Go(func() { readErr = n.read(ctx, s, l) })
	}
	var entries []entry
	var listErr error
	if !queueKnown {
		entries, listErr = n.list(ctx, s, l)
	}
	wg.Wait()
	switch {
	case readErr != nil:
		return readErr
	case queueKnown:
		return nil
	case listErr != nil:
		return listErr
	}
	return n.place(ctx, s, l, entries)
}

// read reads own node and sets the watch on it. The read leaves no watch behind
// when the node is missing.
func (n *node) read(ctx context.Context, s *session, l *link) error {
	mu := &n.d.mu
	mu.Lock()
	path := n.path
	if n.s != s || path == "" {
		mu.Unlock()
		return errNodeDeleted
	}
	s.watching(path, n, l)
	mu.Unlock()

	st, err := call(ctx, s, l, path, func(c *zk.Conn) (*zk.Stat, error) {
		_, st, err := c.Get(path) // wire makes it set the watch
		return st, err
	})
	if err == nil && st.EphemeralOwner != s.id {
		err = fmt.Errorf("%s belongs to session %x: %w", path, uint64(st.EphemeralOwner), zk.ErrNoNode)
	}
	if err != nil {
		s.unwatched(path, l)
	}
	var tell func(error)
	mu.Lock()
	switch {
	case n.s != s:
		err = errNodeDeleted
	case err == nil && n.gone == nil:
		n.czxid, n.watched = st.Czxid, true
		s.zxid = max(s.zxid, st.Czxid)
	case errors.Is(err, zk.ErrNoNode):
		tell = n.vanish(errNodeDeleted)
	}
	mu.Unlock()
	if tell != nil {
		tell(errNodeDeleted)
	}
	return err
}

// place works out from the queue's entries who stands before the node.
func (n *node) place(ctx context.Context, s *session, l *link, entries []entry) error {
	n.d.mu.Lock()
	path, czxid := n.path, n.czxid
	n.d.mu.Unlock()
	own := -1
	mine := entries[:0]
	for _, e := range entries {
		if n.dir+"/"+e.node == path {
			own = len(mine)
		} else if e.owner == n.owner {
			// Left by this attempt's try on an earlier session, which is over and on
			// which nothing was granted.
			stale := n.dir + "/" + e.node
			_, err := call(ctx, s, l, stale, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(stale, -1) })
			if err != nil && !errors.Is(err, zk.ErrNoNode) {
				return err
			}
			continue
		}
		mine = append(mine, e)
	}
	if own < 0 {
		n.d.mu.Lock()
		tell := n.vanish(errNodeDeleted)
		n.d.mu.Unlock()
		if tell != nil {
			tell(errNodeDeleted)
		}
		return errNodeDeleted
	}
	mine[own].czxid = czxid
	for i := range mine {
		if i == own || mine[i].seq != mine[own].seq {
			continue
		}
		st, err := stat(ctx, s, l, n.dir+"/"+mine[i].node)
		if err != nil {
			return err
		}
		mine[i].czxid = math.MaxInt64 // gone: not before anyone
		if st != nil {
			mine[i].czxid = st.Czxid
		}
	}
	before := ahead(mine, mine[own])
	n.d.mu.Lock()
	n.first, n.ahead = len(before) == 0, before
	n.d.mu.Unlock()
	return nil
}

// grant returns the lock if it is the node's turn. ok is false if it is not; an
// error says that the node is gone.
func (n *node) grant(s *session) (g driver.Grant, ok bool, err error) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	switch {
	case n.s != s || n.doomed || n.removed:
		return g, false, driver.ErrNotHeld
	case n.gone != nil:
		n.forget()
		return g, false, fmt.Errorf("%w: %w", driver.ErrNotHeld, n.gone)
	case !n.first || !n.watched:
		return g, false, nil
	}
	n.granted = true
	c := s.confirm()
	return driver.Grant{Lease: &lease{s, n}, Number: uint64(n.czxid), From: c.From, TTL: c.TTL}, true, nil
}

// Acquire takes the lock if nobody stands before the node that it makes, and
// removes the node otherwise.
func (d *backend) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	n, err := d.enroll(ctx, req)
	if err != nil {
		return driver.Grant{}, err
	}
	s, err := n.enter(ctx)
	if errors.Is(err, errGivenUp) {
		return driver.Grant{}, n.withdraw(ctx, -1)
	}
	if err != nil {
		return driver.Grant{}, err
	}
	g, ok, err := n.grant(s)
	switch {
	case ok:
		return g, nil
	case err != nil:
		// Nothing was granted: to the caller this is a failed try, not ErrNotHeld.
		return g, errors.New("zookeeper: before the lock was granted: " + err.Error())
	}
	d.mu.Lock()
	waiters := max(0, len(n.ahead)-1)
	d.mu.Unlock()
	return g, n.withdraw(ctx, waiters)
}

// withdraw ends an attempt that was not first. If it fails, a repeated Acquire
// takes it up again.
func (n *node) withdraw(ctx context.Context, waiters int) error {
	if _, err := n.remove(ctx); err != nil {
		return err
	}
	held := &driver.HeldError{Waiters: waiters}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.s != nil {
		held.Keeper = n.s
	}
	return held
}

// Abandon removes what attempts of the owner have left, once those under way
// have ended.
func (d *backend) Abandon(ctx context.Context, req driver.Request) error {
	d.mu.Lock()
	n := d.nodes[req.Owner]
	d.mu.Unlock()
	if n == nil {
		return nil
	}
	_, err := n.remove(ctx)
	return err
}

// open reports whether anything may be there to be removed. The caller holds d.mu.
func (n *node) open() bool {
	return !n.removed && (n.pending != nil || n.path != "" || n.unsure || n.bare)
}

// remove deletes the node if it was made, or the directory if only that was, and
// dooms the node: nothing is made for its owner any more. Until it has returned nil the session goes on trying after
// each reconnect. It reports whether the node was there.
func (n *node) remove(ctx context.Context) (was bool, err error) {
	n.d.mu.Lock()
	n.doomed = true
	s, open := n.s, n.open()
	n.d.mu.Unlock()
	if s == nil || !open {
		return n.lapsed()
	}
	l, err := s.ready(ctx)
	if err == nil {
		was, err = n.removeOn(ctx, s, l)
	}
	if err != nil && s.ctx.Err() != nil {
		return n.lapsed()
	}
	return was, err
}

// lapsed notes that the node ended with its session, or was never made.
func (n *node) lapsed() (was bool, err error) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.forget()
	return n.removed || n.asked, nil
}

func (n *node) removeOn(ctx context.Context, s *session, l *link) (was bool, err error) {
	mu := &n.d.mu
	for {
		mu.Lock()
		pending, path, unsure, removed, asked := n.pending, n.path, n.unsure, n.removed, n.asked
		switch {
		case !n.open():
			n.forget()
			mu.Unlock()
			return removed, nil
		case pending == nil && path != "":
			n.asked = true
		}
		mu.Unlock()
		switch {
		case pending != nil:
			select {
			case <-pending:
				continue
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
		case path == "" && unsure:
			if err := n.find(ctx, s, l); err != nil {
				return false, err
			}
			continue
		case path == "":
			if err := n.removeDir(ctx, s, l); err != nil {
				return false, err
			}
			continue
		}
		_, err := call(ctx, s, l, path, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, -1) })
		missing := errors.Is(err, zk.ErrNoNode)
		if err != nil && !missing {
			return false, err
		}
		mu.Lock()
		defer mu.Unlock()
		n.removed = !missing || asked || n.removed
		n.forget()
		return n.removed, nil
	}
}

// removeDir removes the directory if nobody is in it. A rival about to make its
// node there is answered that the directory is missing, and makes it anew.
func (n *node) removeDir(ctx context.Context, s *session, l *link) error {
	_, err := call(ctx, s, l, n.dir, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(n.dir, -1) })
	if err != nil && !isAnswer(err) {
		return err
	}
	// Gone, in use, or, for want of a permission, somebody else's to remove.
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.bare = false
	return nil
}

// Close ends the sessions. Servers that do not answer within a second let them
// expire.
func (d *backend) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	var open []*session
	for s := range d.sessions {
		open = append(open, s)
	}
	d.mu.Unlock()
	for _, s := range open {
		s.end(errClosed, false)
	}
	if !wait(ctx, &d.wg) {
		return context.Cause(ctx)
	}
	return nil
}

// A lease is a granted lock.
type lease struct {
	session *session
	node    *node
}

func (k *lease) Keeper() driver.Keeper { return k.session }

func (k *lease) Release(ctx context.Context) error {
	n := k.node
	n.d.mu.Lock()
	gone := n.gone != nil && !n.asked && !n.removed
	if gone {
		n.doomed = true
		n.forget()
	}
	n.d.mu.Unlock()
	if gone {
		return driver.ErrNotHeld
	}
	was, err := n.remove(ctx)
	if err == nil && !was {
		return driver.ErrNotHeld
	}
	return err
}
