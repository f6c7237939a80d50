package redisbackend

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/internal/redisnode"
)

// This file waits for releases. There is one subscription connection per driver,
// in a Cluster one per shard in use, and a goroutine that reads it. A channel
// carries the releases of a bucket; a waiter is woken by those of its own name.
//
// Notifications get lost: while a connection is down, and in a failover. So each
// time a channel is subscribed (again), all its waiters are woken; also each time
// that this fails, which makes an outage a slow poll.

const (
	// linger is how long a channel without waiters stays subscribed. A name that
	// is contended now is contended again soon.
	linger = 5 * time.Second

	// maxIdle is how long a connection may say nothing before it is asked to; with
	// no answer in the same time again it counts as broken.
	maxIdle = 5 * time.Second

	// retryRefused is how long a refusal is believed. Until then waiters are told
	// at once, without another connection.
	retryRefused = 10 * time.Second

	minBackoff, maxBackoff = 50 * time.Millisecond, time.Second
)

type hints struct {
	c       redis.UniversalClient
	cluster *redis.ClusterClient // nil if c is none
	log     *slog.Logger
	idle    time.Duration   // maxIdle
	calls   redisnode.Calls // writes of subscriptions
	closing redisnode.Calls // the wait of close
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	channels map[string]*channel
	conns    map[string]*conn // by address of the shard; "" for a single server
	failures int              // connections lost in a row, for the backoff
	refused  time.Time        // when the server last refused a subscription
	refusal  error            // what it said
}

// channel is one bucket's. hints.mu guards it.
type channel struct {
	name    string
	conn    *conn // nil while it has none
	ready   bool  // the server has confirmed the subscription
	waiters map[*waiter]struct{}
	timer   *time.Timer // of linger
}

type waiter struct {
	name    string
	hint    chan struct{} // buffered: one hint is enough
	outcome chan error    // buffered: nil when the channel is ready
}

// conn is one subscription connection. hints.mu guards channels.
type conn struct {
	addr     string
	ps       *redis.PubSub
	channels map[string]*channel
}

func newHints(c redis.UniversalClient, log *slog.Logger) *hints {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hints{c: c, log: log, idle: maxIdle, ctx: ctx, cancel: cancel, channels: make(map[string]*channel), conns: make(map[string]*conn)}
	h.cluster, _ = c.(*redis.ClusterClient)
	return h
}

// Hints listens for releases of name. The hint channel is never closed.
func (d *redisDriver) Hints(ctx context.Context, name string) (<-chan struct{}, func(), error) {
	return d.hints.listen(ctx, d.layout.Hints(name), name)
}

func (h *hints) listen(ctx context.Context, channelName, name string) (<-chan struct{}, func(), error) {
	w := &waiter{name: name, hint: make(chan struct{}, 1), outcome: make(chan error, 1)}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil, nil, redis.ErrClosed
	}
	ch := h.channels[channelName]
	if (ch == nil || !ch.ready) && h.refusal != nil && time.Since(h.refused) < retryRefused {
		defer h.mu.Unlock()
		return nil, nil, h.refusal
	}
	if ch == nil {
		ch = &channel{name: channelName, waiters: make(map[*waiter]struct{})}
		h.channels[channelName] = ch
		h.wg.Go(func() { h.attach([]*channel{ch}) })
	}
	if ch.timer != nil {
		ch.timer.Stop()
		ch.timer = nil
	}
	ch.waiters[w] = struct{}{}
	if ch.ready {
		w.outcome <- nil
	}
	h.mu.Unlock()

	var once sync.Once
	stop := func() { once.Do(func() { h.leave(ch, w) }) }
	select {
	case err := <-w.outcome:
		if err != nil {
			stop()
			return nil, nil, err
		}
		return w.hint, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, context.Cause(ctx)
	}
}

// leave takes a waiter off its channel. Some time after the last one left, the
// channel is unsubscribed; at once if it never came to be.
func (h *hints) leave(ch *channel, w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(ch.waiters, w)
	switch {
	case len(ch.waiters) > 0 || h.closed:
	case !ch.ready:
		h.wg.Go(func() { h.forget(ch) })
	default:
		if ch.timer != nil {
			ch.timer.Stop()
		}
		ch.timer = time.AfterFunc(linger, func() { h.forget(ch) })
	}
}

// forget unsubscribes a channel that has no waiters.
func (h *hints) forget(ch *channel) {
	h.mu.Lock()
	if h.closed || len(ch.waiters) > 0 || h.channels[ch.name] != ch {
		h.mu.Unlock()
		return
	}
	h.wg.Add(1)
	defer h.wg.Done()
	delete(h.channels, ch.name)
	cn := ch.conn
	if cn != nil {
		delete(cn.channels, ch.name)
		if len(cn.channels) == 0 {
			delete(h.conns, cn.addr)
			h.mu.Unlock()
			_ = cn.ps.Close() // ends its reader
			return
		}
	}
	h.mu.Unlock()
	if cn != nil {
		// If the same channel is wanted again meanwhile, the server's answer to
		// this is what tells the reader to subscribe it anew.
		if h.cluster != nil {
			_ = cn.ps.SUnsubscribe(h.ctx, ch.name)
		} else {
			_ = cn.ps.Unsubscribe(h.ctx, ch.name)
		}
	}
}

// attach finds a connection for channels that have none and subscribes them; it
// tries until that worked, nobody wants them any more, or close. What the server
// refuses is told to those who are not listening yet, so that they poll instead.
func (h *hints) attach(chs []*channel) {
	for len(chs) > 0 {
		var failed []*channel
		for _, ch := range chs {
			if err := h.subscribe(ch); err != nil {
				h.mu.Lock()
				h.fail(ch, err)
				h.mu.Unlock()
				failed = append(failed, ch)
			}
		}
		chs = failed
		if len(chs) > 0 && !h.pause() {
			return
		}
	}
}

// pause waits before the next connection; false after close.
func (h *hints) pause() bool {
	h.mu.Lock()
	d := min(minBackoff<<min(h.failures, 10), maxBackoff)
	h.failures++
	h.mu.Unlock()
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-h.ctx.Done():
		return false
	}
}

// fail tells a channel's waiters that it cannot be subscribed now. mu is held.
func (h *hints) fail(ch *channel, err error) {
	for w := range ch.waiters {
		select {
		case w.outcome <- err: // not listening yet: Hints returns err
		default:
		}
		w.wake()
	}
}

// subscribe sends a subscription for ch on the connection of its shard.
func (h *hints) subscribe(ch *channel) error {
	addr, node, err := h.route(ch.name)
	if err != nil {
		return err
	}
	h.mu.Lock()
	if h.closed || h.channels[ch.name] != ch {
		h.mu.Unlock()
		return nil // nobody wants it
	}
	cn := h.conns[addr]
	if cn == nil {
		cn = &conn{addr: addr, channels: make(map[string]*channel)}
		if h.cluster != nil {
			cn.ps = node.SSubscribe(h.ctx)
		} else {
			cn.ps = node.Subscribe(h.ctx)
		}
		h.conns[addr] = cn
		h.wg.Go(func() { h.read(cn) })
	}
	cn.channels[ch.name] = ch
	ch.conn = cn
	h.mu.Unlock()
	err = h.send(cn, ch.name)
	if err != nil {
		h.mu.Lock()
		if ch.conn == cn {
			ch.conn = nil
			delete(cn.channels, ch.name)
		} else {
			err = nil // the reader has failed, too, and taken ch over
		}
		h.mu.Unlock()
		_ = cn.ps.Close() // ends the reader, which sees to the other channels
	}
	return err
}

type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	SSubscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// route tells on which server a channel is published.
func (h *hints) route(channel string) (addr string, node subscriber, err error) {
	if h.cluster == nil {
		return "", h.c, nil
	}
	n, err := h.cluster.MasterForKey(h.ctx, channel)
	if err != nil {
		return "", nil, err
	}
	return n.Options().Addr, n, nil
}

func (h *hints) send(cn *conn, channel string) error {
	var err error
	if gone := h.calls.Go(h.ctx, func(ctx context.Context) {
		if h.cluster != nil {
			err = cn.ps.SSubscribe(ctx, channel)
		} else {
			err = cn.ps.Subscribe(ctx, channel)
		}
	}); gone != nil {
		return gone
	}
	return err
}

// read reads one connection until it breaks, and hands its channels on to others.
func (h *hints) read(cn *conn) {
	err := h.receive(cn)
	_ = cn.ps.Close()
	h.mu.Lock()
	if h.conns[cn.addr] == cn {
		delete(h.conns, cn.addr)
	}
	var again []*channel
	for _, ch := range cn.channels {
		ch.conn, ch.ready = nil, false
		h.fail(ch, err)
		again = append(again, ch)
	}
	clear(cn.channels)
	closed := h.closed
	var reply redis.Error
	refused := !closed && errors.As(err, &reply) && redisnode.Permanent(err)
	log := refused && h.refusal == nil
	if refused {
		h.refused, h.refusal = time.Now(), err
	}
	h.mu.Unlock()
	if log {
		h.log.Warn("distlock: redis: release notifications are refused: waiters poll", "err", err)
	}
	if h.cluster != nil && !closed {
		h.cluster.ReloadState(h.ctx) // the shard may have another address now
	}
	if !closed && len(again) > 0 && h.pause() {
		h.attach(again)
	}
}

func (h *hints) receive(cn *conn) error {
	asked := false
	for {
		msg, err := cn.ps.ReceiveTimeout(h.ctx, h.idle)
		var netErr net.Error
		if errors.As(err, &netErr) && netErr.Timeout() && !asked {
			asked = true
			if err = cn.ps.Ping(h.ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		asked = false
		switch msg := msg.(type) {
		case *redis.Message:
			h.woken(cn, msg.Channel, msg.Payload)
		case *redis.Subscription:
			switch msg.Kind {
			case "subscribe", "ssubscribe":
				h.confirmed(cn, msg.Channel)
			default:
				if err := h.dropped(cn, msg.Channel); err != nil {
					return err
				}
			}
		}
	}
}

// woken passes a release on to those who wait for that name.
func (h *hints) woken(cn *conn, channel, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := cn.channels[channel]; ch != nil {
		for w := range ch.waiters {
			if w.name == name {
				w.wake()
			}
		}
	}
}

// confirmed lets those go on who wait for the subscription, and wakes the others:
// what was released before this moment was not heard.
func (h *hints) confirmed(cn *conn, channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = 0
	ch := cn.channels[channel]
	if ch == nil {
		return
	}
	ch.ready = true
	for w := range ch.waiters {
		select {
		case w.outcome <- nil:
		default:
		}
		w.wake()
	}
}

// dropped is told of the end of a subscription. That of a channel nobody wants
// any more was asked for. Otherwise it was asked for before the channel was
// wanted again, or its slot has moved to another shard.
func (h *hints) dropped(cn *conn, channel string) error {
	h.mu.Lock()
	ch := cn.channels[channel]
	if ch != nil {
		ch.ready = false
	}
	h.mu.Unlock()
	if ch == nil {
		return nil
	}
	if h.cluster != nil {
		return errors.New("a subscribed slot has moved")
	}
	return h.send(cn, channel)
}

func (w *waiter) wake() {
	select {
	case w.hint <- struct{}{}:
	default:
	}
}

// close ends all subscriptions and returns when no goroutine is left, or when ctx
// ends.
func (h *hints) close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	for _, ch := range h.channels {
		if ch.timer != nil {
			ch.timer.Stop()
		}
		h.fail(ch, redis.ErrClosed)
	}
	conns := h.conns
	h.conns = make(map[string]*conn)
	h.mu.Unlock()
	h.cancel()
	err := h.closing.Go(ctx, func(context.Context) {
		for _, cn := range conns {
			_ = cn.ps.Close()
		}
		h.wg.Wait()
	})
	return errors.Join(err, h.calls.Wait(ctx))
}
