// Package faultproxy is a TCP proxy that can misbehave on purpose: it cuts a
// connection in one direction or both, delays it, loses replies or resets it,
// while the server behind it stays healthy.
//
// A cut is what a network does when it loses packets: nothing arrives, no error
// is seen, and what was sent meanwhile is delivered after [Proxy.Heal], even if
// its sender has hung up (so a request can arrive long after its caller gave
// up). One thing differs from a real network: during a cut the proxy still
// accepts connections, so a client sees silence where it might see a connect
// that hangs.
package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// direction is one of the two ways bytes go through a proxy.
type direction int

const (
	requests direction = iota // client to server
	replies                   // server to client
)

// maxHeld bounds the bytes held per connection and direction while they may not
// pass; beyond it the sender feels back-pressure, as it would from a full window.
const maxHeld = 4 << 20

// Stats are counters since New.
type Stats struct {
	Conns        int   // connections accepted
	Open         int   // connections open now
	RequestBytes int64 // bytes delivered to the server
	ReplyBytes   int64 // bytes delivered to the client
	Lost         int   // replies lost by SwallowReplies and FailReplies
}

// Option configures a proxy at New.
type Option func(*Proxy)

// WithInspect calls f with all that clients send, as it is read; first is true
// for the beginning of a connection. What f returns is sent in its place; a
// non-empty tag names the connection, from these bytes on, for [Proxy.CutTag].
// A connection that has no name yet has the tag "".
func WithInspect(f func(first bool, data []byte) (out []byte, tag string)) Option {
	return func(p *Proxy) { p.inspect = f }
}

// Proxy forwards TCP connections to one target. Its methods are safe for
// concurrent use and take effect on connections that are open as well as on
// new ones.
type Proxy struct {
	target  string
	ln      net.Listener
	inspect func(bool, []byte) ([]byte, string)

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, whenever one of the fields below changes
	cut     [2]bool
	cutTags map[string]bool
	delay   time.Duration
	swallow int
	fail    int
	refuse  bool
	closed  bool
	conns   map[*conn]struct{}
	stats   Stats

	wg sync.WaitGroup
}

// New listens on a free loopback port and forwards what arrives to target,
// a host:port.
func New(target string, opts ...Option) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		target:  target,
		ln:      ln,
		changed: make(chan struct{}),
		cutTags: make(map[string]bool),
		conns:   make(map[*conn]struct{}),
	}
	for _, o := range opts {
		o(p)
	}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is the host:port clients connect to.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Target is the host:port behind the proxy.
func (p *Proxy) Target() string { return p.target }

// Cut stops both directions.
func (p *Proxy) Cut() { p.update(func() { p.cut = [2]bool{true, true} }) }

// CutRequests stops what goes to the server; replies still pass.
func (p *Proxy) CutRequests() { p.update(func() { p.cut[requests] = true }) }

// CutReplies stops what comes from the server; requests still reach it.
func (p *Proxy) CutReplies() { p.update(func() { p.cut[replies] = true }) }

// Uncut ends Cut, CutRequests and CutReplies.
func (p *Proxy) Uncut() { p.update(func() { p.cut = [2]bool{} }) }

// CutTag stops both directions of the connections that WithInspect named so.
func (p *Proxy) CutTag(tag string) { p.update(func() { p.cutTags[tag] = true }) }

// HealTag ends CutTag for one tag.
func (p *Proxy) HealTag(tag string) { p.update(func() { delete(p.cutTags, tag) }) }

// Heal ends all cuts, delays, refusals and pending losses. What was held is
// delivered.
func (p *Proxy) Heal() {
	p.update(func() {
		p.cut = [2]bool{}
		p.delay, p.swallow, p.fail, p.refuse = 0, 0, 0, false
		clear(p.cutTags)
	})
}

// Delay makes everything arrive d later, in each direction, without limiting
// the throughput. Zero ends it for what is sent from then on.
func (p *Proxy) Delay(d time.Duration) { p.update(func() { p.delay = d }) }

// SwallowReplies loses the next n replies, each with everything that follows it
// on the same connection, silently: the server has applied the request and the
// client waits until it gives the connection up. A reply is what one read from
// the server gave.
func (p *Proxy) SwallowReplies(n int) { p.update(func() { p.swallow = n }) }

// FailReplies loses the next n replies by a reset of their connection: the
// server has applied the request and the client sees an error at once.
func (p *Proxy) FailReplies(n int) { p.update(func() { p.fail = n }) }

// Refuse resets new connections until Heal. Open ones go on; see Reset.
func (p *Proxy) Refuse() { p.update(func() { p.refuse = true }) }

// Reset resets all open connections (a TCP RST to both sides). What was held
// for them is lost.
func (p *Proxy) Reset() {
	p.mu.Lock()
	conns := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		conns = append(conns, c)
	}
	p.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
}

// Stats returns the counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Open = len(p.conns)
	return s
}

// Close stops listening, resets all connections and waits for the proxy's
// goroutines. A second Close does nothing.
func (p *Proxy) Close() error {
	p.update(func() { p.closed = true })
	err := p.ln.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	p.Reset()
	p.wg.Wait()
	return err
}

func (p *Proxy) update(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		c := &conn{p: p, client: client, done: make(chan struct{})}
		p.mu.Lock()
		p.stats.Conns++
		ok := !p.closed && !p.refuse
		if ok {
			p.conns[c] = struct{}{}
			p.wg.Go(c.run)
		}
		p.mu.Unlock()
		if !ok {
			abort(client)
		}
	}
}

// conn is one client's connection and its counterpart to the server.
type conn struct {
	p      *Proxy
	client net.Conn
	done   chan struct{} // closed by reset
	once   sync.Once

	mu     sync.Mutex
	server net.Conn // nil until dialled
	tag    string   // under p.mu
	muted  bool     // replies are dropped for good; under p.mu
}

func (c *conn) run() {
	defer func() {
		c.reset()
		c.p.mu.Lock()
		delete(c.p.conns, c)
		c.p.mu.Unlock()
	}()
	server, err := net.DialTimeout("tcp", c.p.target, 5*time.Second)
	if err != nil {
		return // the deferred reset shows the client that nobody is there
	}
	c.mu.Lock()
	c.server = server
	c.mu.Unlock()
	select {
	case <-c.done: // reset while dialling
		abort(server)
		return
	default:
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.pump(requests, c.client, server) })
	wg.Go(func() { c.pump(replies, server, c.client) })
	wg.Wait()
}

func (c *conn) reset() {
	c.once.Do(func() {
		close(c.done)
		abort(c.client)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.server != nil {
			abort(c.server)
		}
	})
}

// chunk is what one read gave, and when it may go on.
type chunk struct {
	data []byte
	due  time.Time
	err  error // the stream's end
}

// pump moves bytes one way. A reader and a writer, so that a delay adds latency
// and does not cost throughput, and so that bytes sent during a cut are held
// here even when their sender closes the connection.
func (c *conn) pump(dir direction, from, to net.Conn) {
	q := newQueue()
	var wg sync.WaitGroup
	wg.Go(func() {
		first := true
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				data := buf[:n:n]
				if dir == requests && c.p.inspect != nil {
					var tag string
					if data, tag = c.p.inspect(first, data); tag != "" {
						// An update, so that a chunk that is held is looked at again.
						c.p.update(func() { c.tag = tag })
					}
				}
				first = false
				c.p.mu.Lock()
				due := time.Now().Add(c.p.delay)
				c.p.mu.Unlock()
				if !q.put(chunk{data: data, due: due}, c.done) {
					return
				}
			}
			if err != nil {
				q.put(chunk{err: err}, c.done)
				return
			}
		}
	})
	defer wg.Wait()
	for {
		ch, ok := q.get(c.done)
		if !ok || !c.pass(dir, ch) {
			c.reset()
			return
		}
		if ch.err != nil {
			if dir == replies && !errors.Is(ch.err, io.EOF) {
				c.reset()
			} else if w, ok := to.(interface{ CloseWrite() error }); ok {
				// However the client hung up, what it had sent before arrives.
				_ = w.CloseWrite() // fails only if the other side is gone
			}
			return
		}
		if c.drop(dir) {
			continue
		}
		if _, err := to.Write(ch.data); err != nil {
			if dir == replies {
				// The client is gone, and its requests may still be held:
				// they have been sent, so they arrive.
				c.p.update(func() { c.muted = true })
				continue
			}
			c.reset()
			return
		}
		c.p.mu.Lock()
		if dir == requests {
			c.p.stats.RequestBytes += int64(len(ch.data))
		} else {
			c.p.stats.ReplyBytes += int64(len(ch.data))
		}
		c.p.mu.Unlock()
	}
}

// pass waits until the chunk may go on: it is due and its direction is not cut.
// It returns false if the connection was reset meanwhile.
func (c *conn) pass(dir direction, ch chunk) bool {
	if d := time.Until(ch.due); !ch.due.IsZero() && d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.done:
			return false
		}
	}
	for {
		c.p.mu.Lock()
		held := c.p.cut[dir] || c.p.cutTags[c.tag]
		changed := c.p.changed
		c.p.mu.Unlock()
		if !held {
			return true
		}
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}

// drop applies the planned losses to a reply.
func (c *conn) drop(dir direction) bool {
	if dir != replies {
		return false
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	switch {
	case c.muted:
		return true
	case c.p.fail > 0:
		c.p.fail--
		c.p.stats.Lost++
		c.reset()
		return true
	case c.p.swallow > 0:
		c.p.swallow--
		c.p.stats.Lost++
		c.muted = true
		return true
	}
	return false
}

// queue is an unbounded-in-count, bounded-in-bytes hand-over between a reader
// and a writer.
type queue struct {
	mu      sync.Mutex
	items   []chunk
	bytes   int
	changed chan struct{}
}

func newQueue() *queue { return &queue{changed: make(chan struct{})} }

func (q *queue) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}

func (q *queue) put(ch chunk, done <-chan struct{}) bool {
	for {
		q.mu.Lock()
		if q.bytes < maxHeld || ch.err != nil {
			q.items = append(q.items, ch)
			q.bytes += len(ch.data)
			q.signal()
			q.mu.Unlock()
			return true
		}
		changed := q.changed
		q.mu.Unlock()
		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

func (q *queue) get(done <-chan struct{}) (chunk, bool) {
	for {
		q.mu.Lock()
		if len(q.items) > 0 {
			ch := q.items[0]
			q.items = q.items[1:]
			q.bytes -= len(ch.data)
			q.signal()
			q.mu.Unlock()
			return ch, true
		}
		changed := q.changed
		q.mu.Unlock()
		select {
		case <-changed:
		case <-done:
			return chunk{}, false
		}
	}
}

// abort closes a connection with a reset instead of an orderly end.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails only on a connection that is closed
	}
	_ = c.Close()
}
