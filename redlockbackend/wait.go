package redlockbackend

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// linger is how long a channel without waiters stays subscribed. A name that
	// is contended now is contended again soon.
	linger = 5 * time.Second

	// idle is how long a connection may say nothing before it is asked to; with no
	// answer in the same time again it counts as broken.
	idle = 5 * time.Second

	minBackoff, maxBackoff = 50 * time.Millisecond, time.Second
)

// hints hears the releases that the nodes publish, over one connection to each
// node, from the first wait until Close. A name is worth an attempt when a
// majority has published the release of one owner; one node's word would wake
// everybody while the others still have the lock. A channel that is subscribed
// again may have missed messages, so its waiters are told to try.
type hints struct {
	d *redlockDriver

	mu       sync.Mutex
	channels map[string]*channel
	subs     []*subscription // one for each node; empty before the first wait
}

// channel is one bucket's. hints.mu guards it.
type channel struct {
	waiters map[*waiter]struct{}
	left    time.Time // when the last one went
}

type waiter struct {
	name  string
	hint  chan struct{}    // buffered: one hint is enough
	ready chan struct{}    // buffered: one for each node that listens
	heard map[string][]int // nodes that published a release, by who released
	early bool             // goes on although no majority listens yet
}

func newHints(d *redlockDriver) *hints {
	return &hints{d: d, channels: make(map[string]*channel)}
}

// Hints returns when a majority listens, or has had NodeTimeout to; nodes that
// listen later make the waiter try again. The hint channel is never closed.
func (d *redlockDriver) Hints(ctx context.Context, name string) (<-chan struct{}, func(), error) {
	h := d.hints
	key := d.layout.Hints(name)
	w := &waiter{
		name:  name,
		hint:  make(chan struct{}, 1),
		ready: make(chan struct{}, len(d.nodes)),
		heard: make(map[string][]int),
	}
	if !h.join(key, w) {
		return nil, nil, errClosed
	}
	stop := sync.OnceFunc(func() { h.leave(key, w) })
	timer := time.NewTimer(d.opt.NodeTimeout)
	defer timer.Stop()
	for range d.quorum {
		select {
		case <-w.ready:
		case <-timer.C:
			d.hints.mu.Lock()
			w.early = true
			d.hints.mu.Unlock()
			return w.hint, stop, nil
		case <-ctx.Done():
			stop()
			return nil, nil, context.Cause(ctx)
		}
	}
	return w.hint, stop, nil
}

func (h *hints) join(key string, w *waiter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		for _, n := range h.d.nodes {
			s := &subscription{h: h, node: n, kick: make(chan struct{}, 1), ready: make(map[string]bool)}
			if !h.d.goes(s.run) {
				return false
			}
			h.subs = append(h.subs, s)
		}
	}
	ch := h.channels[key]
	if ch == nil {
		ch = &channel{waiters: make(map[*waiter]struct{})}
		h.channels[key] = ch
	}
	ch.waiters[w] = struct{}{}
	for _, s := range h.subs {
		if s.ready[key] {
			w.ready <- struct{}{}
		} else {
			s.wake()
		}
	}
	return true
}

func (h *hints) leave(key string, w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.channels[key]; ch != nil {
		delete(ch.waiters, w)
		ch.left = time.Now()
	}
}

// message counts a release published by one node.
func (h *hints) message(n *node, key, text string) {
	who, name, ok := strings.Cut(text, " ")
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.channels[key]; ch != nil {
		for w := range ch.waiters {
			if w.name == name && w.hears(who, n.index, h.d.quorum) {
				w.tell()
			}
		}
	}
}

// hears reports whether n makes a majority of those that published who's release.
func (w *waiter) hears(who string, n, quorum int) bool {
	const memory = 64 // releases that no majority has published
	if slices.Contains(w.heard[who], n) {
		return false
	}
	if len(w.heard) >= memory {
		clear(w.heard)
	}
	w.heard[who] = append(w.heard[who], n)
	return len(w.heard[who]) == quorum
}

func (w *waiter) tell() {
	select {
	case w.hint <- struct{}{}:
	default:
	}
}

// subscription is the connection to one node. hints.mu guards ready and broke.
type subscription struct {
	h     *hints
	node  *node
	kick  chan struct{} // channels is to be looked at
	ready map[string]bool
	broke bool // a connection did: messages may be missing
}

func (s *subscription) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run keeps a connection until Close.
func (s *subscription) run() {
	ctx := s.h.d.ctx
	for pause := minBackoff; ctx.Err() == nil; {
		if s.listen(ctx) {
			pause = minBackoff
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, maxBackoff)
	}
}

// listen uses one connection until it breaks, and reports whether it ever worked.
func (s *subscription) listen(ctx context.Context) (worked bool) {
	ctx, cancel := context.WithCancel(ctx)
	ps := s.node.c.Subscribe(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		s.follow(ctx, ps)
		_ = ps.Close() // ends the reading
	})
	asked := false
	for {
		msg, err := ps.ReceiveTimeout(ctx, idle)
		var netErr net.Error
		if errors.As(err, &netErr) && netErr.Timeout() && !asked && ctx.Err() == nil {
			asked = true
			if err = ps.Ping(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			break
		}
		asked, worked = false, true
		switch msg := msg.(type) {
		case *redis.Message:
			s.h.message(s.node, msg.Channel, msg.Payload)
		case *redis.Subscription:
			if msg.Kind == "subscribe" {
				s.confirmed(msg.Channel)
			}
		}
	}
	cancel()
	wg.Wait()
	s.h.mu.Lock()
	clear(s.ready)
	s.broke = true
	s.h.mu.Unlock()
	return worked
}

// follow subscribes the channels that have waiters, and gives up those that have
// had none for a while.
func (s *subscription) follow(ctx context.Context, ps *redis.PubSub) {
	tick := time.NewTicker(linger)
	defer tick.Stop()
	have := make(map[string]bool)
	for {
		add, drop := s.h.wanted(have)
		if len(add) > 0 {
			if err := ps.Subscribe(ctx, add...); err != nil {
				return
			}
		}
		if len(drop) > 0 {
			s.h.mu.Lock()
			for _, key := range drop {
				delete(s.ready, key)
			}
			s.h.mu.Unlock()
			if err := ps.Unsubscribe(ctx, drop...); err != nil {
				return
			}
		}
		select {
		case <-s.kick:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// wanted brings have up to date and returns what was added and dropped.
func (h *hints) wanted(have map[string]bool) (add, drop []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, ch := range h.channels {
		if len(ch.waiters) == 0 && time.Since(ch.left) > linger {
			delete(h.channels, key)
		} else if !have[key] {
			have[key] = true
			add = append(add, key)
		}
	}
	for key := range have {
		if h.channels[key] == nil {
			delete(have, key)
			drop = append(drop, key)
		}
	}
	return add, drop
}

func (s *subscription) confirmed(key string) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	ch := s.h.channels[key]
	if ch == nil || s.ready[key] {
		return
	}
	s.ready[key] = true
	for w := range ch.waiters {
		select {
		case w.ready <- struct{}{}:
		default: // it has heard of all nodes, and one comes again
		}
		if s.broke || w.early {
			w.tell()
		}
	}
}
