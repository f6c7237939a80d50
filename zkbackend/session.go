package zkbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"example.com/distlock/driver"
)

// closeGrace is how long the server has to answer the closing of a session.
const closeGrace = time.Second

// minPatience is the shortest time after which a silent server is left for
// another one; a shorter silence is more likely a busy machine.
const minPatience = 200 * time.Millisecond

// A session is one ZooKeeper session, and the driver.Keeper of what was taken on
// it. It is never replaced by another: once over it confirms nothing again.
// Connections come and go beneath it; one that has been set up (authenticated,
// synced, own nodes read again) is published as link.
type session struct {
	d      *backend
	id     int64
	passwd []byte
	ttl    time.Duration   // the negotiated timeout; constant
	ctx    context.Context // ends with the session; its cause says why
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when run has returned
	kick   chan struct{} // some own node must be read again

	// Guarded by d.mu.
	over    error         // why the session has ended; nil: it has not
	link    *link         // nil while there is none
	up      chan struct{} // closed when link is set
	proof   proof
	nodes   map[*node]struct{}
	watches map[string]*watch
	known   bool  // the core has the session as a Keeper and will retire it
	zxid    int64 // the newest transaction seen
}

// A watch is what is known of the server's watch on one path. The server keeps
// one for each path and session, and it fires once.
type watch struct {
	on    *link              // the connection it was set on; nil: it must be set
	nodes map[*node]struct{} // whom it concerns: the node's own, and those next behind it
}

// openSession opens a new session. The caller holds d.opening.
func (d *backend) openSession(ctx context.Context, ttl time.Duration) (*session, error) {
	s := &session{
		d: d, done: make(chan struct{}), kick: make(chan struct{}, 1), up: make(chan struct{}),
		nodes: make(map[*node]struct{}), watches: make(map[string]*watch),
	}
	l, h, err := d.connect(ctx, s, hello{timeout: ttl})
	if err != nil {
		return nil, err
	}
	s.id, s.passwd, s.ttl = h.id, h.passwd, h.timeout
	s.proof = newProof(s.ttl, d.opts.Tick)
	s.ctx, s.cancel = context.WithCancelCause(context.Background())

	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		l.kill()
		return nil, errClosed
	}
	d.sessions[s] = struct{}{}
	s.publish(l)
	d.wg.Go(func() { s.run(l) })
	d.mu.Unlock()
	return s, nil
}

// connect goes round the servers until one takes the session up. A link of nil
// without an error says that the session to be resumed has expired.
func (d *backend) connect(ctx context.Context, s *session, resume hello) (*link, hello, error) {
	// A server that swallows everything, as one that is starting may, must leave
	// time for the next try; but if none answers in time, the network is slow.
	// Rounds in which connections are refused tell nothing about that.
	least := max(resume.timeout/6, minPatience)
	for round, silent := 0, 0; ; round++ {
		each := min(least<<min(silent, 3), max(resume.timeout, minPatience))
		late := false
		for range d.servers {
			try, cancel := context.WithTimeout(ctx, each)
			d.mu.Lock()
			addr, zxid := d.servers[d.server], s.zxid
			d.mu.Unlock()
			l, h, err := dialLink(try, d.opts.Dial, addr, resume, zxid, d.layout.locks()+"/", s.onEvent)
			if err == nil && l != nil {
				if err = d.authenticate(try, l); err == nil {
					cancel()
					return l, h, nil
				}
				l.kill()
			}
			late = late || try.Err() != nil
			cancel()
			if err == nil || isPermanent(err) {
				return nil, h, err
			}
			d.mu.Lock()
			d.server = (d.server + 1) % len(d.servers)
			d.dialErr = err
			d.mu.Unlock()
			if ctx.Err() != nil {
				break
			}
		}
		if ctx.Err() != nil {
			return nil, hello{}, d.unreachable(ctx)
		}
		if late {
			silent++
		}
		pause := min(25*time.Millisecond<<min(round, 6), max(resume.timeout/6, minPatience))
		select {
		case <-ctx.Done():
			return nil, hello{}, d.unreachable(ctx)
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// unreachable is the error of a call whose ctx ended before there was a connection.
func (d *backend) unreachable(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dialErr == nil {
		return fmt.Errorf("zookeeper: not connected: %w", context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), d.dialErr)
}

// authenticate sends the credentials, which the server wants on every connection.
func (d *backend) authenticate(ctx context.Context, l *link) error {
	for _, a := range d.opts.Auth {
		_, err := on(ctx, l, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.AddAuth(a.Scheme, a.Credentials) })
		if errors.Is(err, zk.ErrAuthFailed) {
			return permanent("%s: credentials of scheme %q refused: %w", l.addr, a.Scheme, err)
		}
		if err != nil {
			return fmt.Errorf("zookeeper: %s: %w", l.addr, err)
		}
	}
	return nil
}

// on makes a request on l and waits for the answer as long as ctx lasts. A zk.Conn
// takes no ctx; f ends when its answer comes or the connection ends.
func on[T any](ctx context.Context, l *link, f func(*zk.Conn) (T, error)) (T, error) {
	type reply struct {
		v   T
		err error
	}
	ch := make(chan reply, 1)
	l.calls.Go(func() {
		v, err := f(l.conn)
		ch <- reply{v, err}
	})
	select {
	case r := <-ch:
		return r.v, r.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

// begin counts a request on l in, unless the session is over: none is begun
// after that, so that run can wait for those under way.
func (s *session) begin(l *link) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.over != nil {
		return s.over
	}
	l.calls.Add(1)
	return nil
}

// call makes a request about path on l for the session.
func call[T any](ctx context.Context, s *session, l *link, path string, f func(*zk.Conn) (T, error)) (T, error) {
	if err := s.begin(l); err != nil {
		var zero T
		return zero, err
	}
	return begun(ctx, s, l, path, f)
}

// begun is call after begin. It tells an answer of the server from the end of
// the connection.
func begun[T any](ctx context.Context, s *session, l *link, path string, f func(*zk.Conn) (T, error)) (T, error) {
	defer l.calls.Done()
	var zero T
	v, err := on(ctx, l, f)
	switch {
	case err == nil:
		return v, nil
	case isAnswer(err):
		return zero, classify(err, path)
	case errors.Is(err, zk.ErrSessionExpired):
		s.end(errExpired, true)
		return zero, errExpired
	case ctx.Err() != nil:
		return zero, fmt.Errorf("zookeeper: %s: %w", l.addr, err)
	default:
		// Whatever it was, a new connection starts from a known state.
		l.kill()
		s.unpublish(l)
		return zero, fmt.Errorf("%w: %s: %w", errLinkLost, l.addr, err)
	}
}

// ready returns the session's connection, as soon as there is one.
func (s *session) ready(ctx context.Context) (*link, error) {
	for {
		s.d.mu.Lock()
		l, up, over := s.link, s.up, s.over
		s.d.mu.Unlock()
		switch {
		case over != nil:
			return nil, over
		case ctx.Err() != nil:
			if l != nil {
				return nil, context.Cause(ctx)
			}
			return nil, s.d.unreachable(ctx)
		case l != nil:
			return l, nil
		}
		select {
		case <-up:
		case <-s.ctx.Done():
		case <-ctx.Done():
		}
	}
}

// publish makes l the session's connection. The caller holds d.mu.
func (s *session) publish(l *link) {
	s.link = l
	s.proof.connected(l.sent)
	close(s.up)
	for n := range s.nodes {
		n.stir()
	}
}

// unpublish takes l away. What was watched on it is watched no more.
func (s *session) unpublish(l *link) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.link != l {
		return
	}
	s.link, s.up = nil, make(chan struct{})
	for path, w := range s.watches {
		w.on = nil
		for n := range w.nodes {
			if n.path != path {
				delete(w.nodes, n)
			}
		}
		if len(w.nodes) == 0 {
			delete(s.watches, path)
		}
	}
	for n := range s.nodes {
		n.watched = false
		n.ahead = nil
	}
}

// run keeps the session connected until it is over, and closes it then.
func (s *session) run(l *link) {
	idle := time.AfterFunc(s.ttl, s.endIfUnknown)
	defer func() {
		idle.Stop()
		s.d.mu.Lock()
		delete(s.d.sessions, s)
		s.d.mu.Unlock()
		close(s.done)
	}()
	for l != nil {
		select {
		case <-s.kick:
			s.reread(l, false)
			continue
		case <-l.down:
		case <-s.ctx.Done():
		}
		s.unpublish(l)
		if s.ctx.Err() != nil {
			grace, cancel := context.WithTimeout(context.Background(), closeGrace)
			l.close(grace)
			cancel()
			return
		}
		s.d.nextServer(l)
		l.kill()
		old := l
		s.d.wg.Go(func() { <-old.gone })
		l = s.reconnect()
	}
}

// reconnect returns a link on which all that is known has been checked again;
// nil if the session is over.
func (s *session) reconnect() *link {
	for s.ctx.Err() == nil {
		l, h, err := s.d.connect(s.ctx, s, hello{id: s.id, timeout: s.ttl, passwd: s.passwd})
		switch {
		case s.ctx.Err() != nil:
			if l != nil {
				return l // run closes it, and with it the session
			}
			return nil
		case err != nil: // a permanent one
			s.end(err, true)
			return nil
		case l == nil:
			s.end(errExpired, true)
			return nil
		case h.timeout < s.ttl:
			// The servers disagree about their bounds, and the leader now counts
			// with less than what holders were promised.
			s.end(fmt.Errorf("zookeeper: %s: cut the session timeout from %v to %v", l.addr, s.ttl, h.timeout), true)
			return l
		}
		if s.reread(l, true) {
			s.d.mu.Lock()
			if s.over == nil {
				s.publish(l)
			}
			s.d.mu.Unlock()
			return l
		}
		if s.ctx.Err() != nil {
			return l
		}
		s.d.nextServer(l)
		l.kill()
		s.d.wg.Go(func() { <-l.gone })
	}
	return nil
}

// nextServer turns to the server after that of l, if that is the present one.
func (d *backend) nextServer(l *link) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.servers[d.server] == l.addr {
		d.server = (d.server + 1) % len(d.servers)
	}
}

// reread reads own nodes that are not watched, and removes those given up whose
// removal is open. On a new connection the server is first made to catch up with
// the leader. It reports whether all was done before l ended.
func (s *session) reread(l *link, sync bool) bool {
	if sync {
		_, err := call(s.ctx, s, l, s.d.layout.root, func(c *zk.Conn) (string, error) { return c.Sync(s.d.layout.root) })
		if err != nil {
			return false
		}
	}
	s.d.mu.Lock()
	var todo []*node
	for n := range s.nodes {
		if !n.watched {
			todo = append(todo, n)
		}
	}
	s.d.mu.Unlock()

	return each(todo, func(n *node) bool {
		s.d.mu.Lock()
		doomed, path := n.doomed, n.path
		s.d.mu.Unlock()
		var err error
		if doomed {
			_, err = n.removeOn(s.ctx, s, l)
		} else if path != "" {
			err = n.read(s.ctx, s, l)
		}
		select {
		case <-l.down:
			return false
		case <-s.ctx.Done():
			return false
		default:
			// What the server itself refuses is the owner's to see, at its next call.
			return !errors.Is(err, errLinkLost)
		}
	})
}

// each runs f for all of ns, many at a time, and reports whether all said yes.
func each(ns []*node, f func(*node) bool) bool {
	const width = 64
	var wg sync.WaitGroup
	ok := make([]bool, len(ns))
	for w := range min(width, len(ns)) {
		wg.Go(func() {
			for i := w; i < len(ns); i += width {
				if ok[i] = f(ns[i]); !ok[i] {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, done := range ok {
		if !done {
			return false
		}
	}
	return true
}

// end ends the session: it confirms nothing any more, and run closes it.
// Those who hold something on it are told, unless they asked for the end.
func (s *session) end(why error, tell bool) {
	s.d.mu.Lock()
	if s.over != nil {
		s.d.mu.Unlock()
		return
	}
	s.over = why
	if s.d.current == s {
		s.d.current = nil
	}
	var told []func(error)
	for n := range s.nodes {
		if f := n.vanish(why); f != nil && tell {
			told = append(told, f)
		}
	}
	s.d.mu.Unlock()
	s.cancel(why)
	for _, f := range told {
		f(why)
	}
}

// endIfUnknown ends a session that the core has never heard of, and so will not
// retire, when nothing is on it.
func (s *session) endIfUnknown() {
	s.d.mu.Lock()
	known, idle, over := s.known, len(s.nodes) == 0, s.over
	s.d.mu.Unlock()
	switch {
	case known || over != nil:
	case idle:
		s.end(errRetired, false)
	default:
		time.AfterFunc(s.ttl, s.endIfUnknown)
	}
}

// onEvent takes a watch event. The client calls it in the order in which events
// and answers arrive, so that a heartbeat's answer is seen after the events that
// the server sent before it.
func (s *session) onEvent(ev zk.Event) {
	s.d.mu.Lock()
	w := s.watches[ev.Path]
	delete(s.watches, ev.Path)
	var told []func(error)
	if w != nil {
		for n := range w.nodes {
			switch {
			case n.path != ev.Path: // it stands next behind
				if ev.Type == zk.EventNodeDeleted && len(n.ahead) == 1 && n.nearest() == ev.Path {
					n.first = true
				}
				n.ahead = nil
				n.stir()
			case ev.Type == zk.EventNodeDeleted:
				if f := n.vanish(errNodeDeleted); f != nil {
					told = append(told, f)
				}
			default: // somebody has written on it
				n.watched = false
				select {
				case s.kick <- struct{}{}:
				default:
				}
			}
		}
	}
	s.d.mu.Unlock()
	for _, f := range told {
		f(errNodeDeleted)
	}
}

// watching notes that n is concerned by path, and reports whether the watch has
// to be set on l. It counts as set from then on, since its event can come before
// the answer. The caller holds d.mu.
func (s *session) watching(path string, n *node, l *link) (set bool) {
	w := s.watches[path]
	if w == nil {
		w = &watch{nodes: make(map[*node]struct{}, 1)}
		s.watches[path] = w
	}
	w.nodes[n] = struct{}{}
	set = w.on != l
	w.on = l
	return set
}

// unwatched notes that setting the watch on path failed. Whoever relied on it
// looks again.
func (s *session) unwatched(path string, l *link) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if w := s.watches[path]; w != nil && w.on == l {
		delete(s.watches, path)
		for n := range w.nodes {
			if n.path != path {
				n.ahead = nil
				n.stir()
			}
		}
	}
}

// beat writes the heartbeat node and notes what that proves. It writes once more
// at once where that, as the third, makes a proof of the first.
func (s *session) beat(ctx context.Context) error {
	for {
		l, err := s.ready(ctx)
		if err != nil {
			return err
		}
		again, err := s.beatOn(ctx, l)
		if err != nil || !again {
			return err
		}
	}
}

func (s *session) beatOn(ctx context.Context, l *link) (again bool, err error) {
	// A server that does not answer may be cut off from the leader: time to leave
	// it while another one can still prolong the session.
	patience := s.ttl / 3
	if len(s.d.servers) > 1 {
		patience = max(s.ttl/8, minPatience)
	}
	late := time.AfterFunc(patience, l.kill)
	path := s.d.layout.heartbeat(s.id)
	return call(ctx, s, l, path, func(c *zk.Conn) (again bool, err error) {
		defer late.Stop()
		sent := time.Now()
		st, err := c.Set(path, nil, -1)
		for errors.Is(err, zk.ErrNoNode) {
			sent, st = time.Now(), &zk.Stat{EphemeralOwner: s.id}
			_, err = c.Create(path, nil, zk.FlagEphemeral, s.d.opts.ACL)
			if errors.Is(err, zk.ErrNoNode) {
				_, cerr := c.CreateContainer(s.d.layout.sessions(), nil, zk.FlagContainer, s.d.opts.ACL)
				if cerr != nil && !errors.Is(cerr, zk.ErrNodeExists) {
					return false, cerr
				}
			}
		}
		if err != nil {
			return false, err
		}
		if st.EphemeralOwner != s.id {
			return false, fmt.Errorf("heartbeat node %s belongs to session %x", path, uint64(st.EphemeralOwner))
		}
		confirmed := time.Now()
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		s.zxid = max(s.zxid, st.Mzxid)
		return s.link == l && s.proof.beat(sent, confirmed), nil
	})
}

// confirm is the best proof known. The caller holds d.mu.
func (s *session) confirm() driver.Confirm {
	return driver.Confirm{From: s.proof.from, TTL: s.ttl}
}
