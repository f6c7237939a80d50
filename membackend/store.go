package membackend

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"example.com/distlock/driver"
)

// Store holds the locks that Lockers on it contend for. Its methods are safe for
// concurrent use.
type Store struct {
	violation func(string) // nil unless Strict

	mu        sync.Mutex
	after     []func() // news to deliver once mu is free
	locks     map[string]*lockState
	sessions  map[*session]struct{}
	number    uint64
	lockers   int
	cuts      map[string]*cut
	faults    []*Injected
	requests  map[Op]int
	listeners map[string]map[*listener]struct{}

	// An attempt that was given up must not take effect when a request of it
	// arrives late. inflight counts the requests of an owner that are on their
	// way, dead marks owners whose late requests are refused.
	inflight map[string]int
	dead     map[string]bool

	names    map[string]string // Strict: owner to lock name
	lastWord map[string]string // Strict: owner to what ended it
}

// StoreOption configures a Store.
type StoreOption func(*Store)

// FirstNumber makes the Store count from n, so that the first fencing token is
// made of n. Default 1.
func FirstNumber(n uint64) StoreOption { return func(s *Store) { s.number = n - 1 } }

// Strict has report called for each request that breaks the driver contract,
// such as an owner used again after it was given up or a call after Close. It is
// meant for tests of distlock itself, and remembers every owner.
func Strict(report func(violation string)) StoreOption {
	return func(s *Store) { s.violation = report }
}

// NewStore returns an empty Store.
func NewStore(opts ...StoreOption) *Store {
	s := &Store{
		locks:     map[string]*lockState{},
		sessions:  map[*session]struct{}{},
		cuts:      map[string]*cut{},
		requests:  map[Op]int{},
		listeners: map[string]map[*listener]struct{}{},
		inflight:  map[string]int{},
		dead:      map[string]bool{},
		names:     map[string]string{},
		lastWord:  map[string]string{},
	}
	for _, o := range opts {
		o(s)
	}
	return s
}

// lockState is one name that is held or waited for.
type lockState struct {
	name   string
	holder *entry
	queue  []*entry
}

type state uint8

const (
	queued state = iota
	held
	ended
)

// entry is one owner's place at a lock: in its queue, or holding it.
type entry struct {
	d        *base
	name     string
	owner    string
	metadata string
	ttl      time.Duration
	gone     func(error)
	session  *session // nil: expires counts

	state   state
	number  uint64
	since   time.Time
	expires time.Time   // of the lease, or of the place in the queue
	timer   *time.Timer // of the lease
	turn    chan struct{}

	from time.Time // the client's: before the last request that was answered
}

// session carries the locks of one Locker and TTL when fate is shared.
type session struct {
	d       *base
	ttl     time.Duration
	entries map[*entry]struct{}
	expires time.Time
	timer   *time.Timer
	ended   bool

	from    time.Time // the client's, as in entry
	retired bool      // the client's: nothing is sent for it any more
}

// locked runs f with s.mu held, and then delivers the news that f caused. It is
// not held while news goes out, for a callback may make a request.
func (s *Store) locked(f func()) {
	s.mu.Lock()
	f()
	after := s.after
	s.after = nil
	s.mu.Unlock()
	for _, a := range after {
		a()
	}
}

// tell delivers news to a Locker, or keeps it until the Locker can be reached.
func (s *Store) tell(d *base, news func()) {
	if c := s.cuts[d.opts.Name]; c != nil {
		c.news = append(c.news, news)
		return
	}
	s.after = append(s.after, news)
}

// lock returns the state of name, made if need be.
func (s *Store) lock(name string) *lockState {
	if l := s.locks[name]; l != nil {
		s.sweep(l)
	}
	l := s.locks[name]
	if l == nil {
		l = &lockState{name: name}
		s.locks[name] = l
	}
	return l
}

// sweep ends a holder whose time is over, whether or not a timer has fired yet.
func (s *Store) sweep(l *lockState) {
	for l.holder != nil && l.holder.expired() {
		s.expire(l.holder)
	}
}

// sweepAll ends everything whose time is over.
func (s *Store) sweepAll() {
	for ss := range s.sessions {
		if ss.expired() {
			s.endSession(ss, errExpired)
		}
	}
	for _, l := range s.locks {
		s.sweep(l)
		for _, e := range slices.Clone(l.queue) {
			if e.expired() {
				s.expire(e)
			}
		}
	}
}

func (s *Store) expire(e *entry) {
	if e.session != nil {
		s.endSession(e.session, errExpired)
	}
	s.end(e, errExpired) // if its session is just being ended, it was not its turn yet
}

func (e *entry) expired() bool {
	if e.session != nil {
		return e.session.expired()
	}
	return !time.Now().Before(e.expires)
}

func (ss *session) expired() bool { return ss.ended || !time.Now().Before(ss.expires) }

// alive tells whether e still holds or waits.
func (s *Store) alive(e *entry) bool {
	if e.state != ended && e.expired() {
		s.expire(e)
	}
	return e.state != ended
}

// find returns the live entry of owner at name, or nil.
func (s *Store) find(name, owner string) *entry {
	l := s.locks[name]
	if l == nil {
		return nil
	}
	e := l.holder
	if e == nil || e.owner != owner {
		i := slices.IndexFunc(l.queue, func(q *entry) bool { return q.owner == owner })
		if i < 0 {
			return nil
		}
		e = l.queue[i]
	}
	if !s.alive(e) {
		return nil
	}
	return e
}

func (s *Store) grant(l *lockState, e *entry) {
	s.number++
	e.state, e.number, e.since = held, s.number, time.Now()
	l.holder = e
	if e.session == nil {
		s.extend(e)
	}
	if e.turn != nil {
		close(e.turn)
	}
}

// extend starts e's countdown anew.
func (s *Store) extend(e *entry) {
	e.expires = time.Now().Add(e.ttl)
	switch {
	case e.state != held:
	case e.timer != nil:
		e.timer.Reset(e.ttl)
	default:
		e.timer = time.AfterFunc(e.ttl, func() {
			s.locked(func() {
				if l := s.locks[e.name]; l != nil {
					s.sweep(l)
				}
			})
		})
	}
}

func (s *Store) newSession(d *base, ttl time.Duration, from time.Time) *session {
	ss := &session{d: d, ttl: ttl, from: from, entries: map[*entry]struct{}{}, expires: time.Now().Add(ttl)}
	ss.timer = time.AfterFunc(ttl, func() {
		s.locked(func() {
			if ss.expired() {
				s.endSession(ss, errExpired)
			}
		})
	})
	s.sessions[ss] = struct{}{}
	return ss
}

func (s *Store) endSession(ss *session, why error) {
	if ss.ended {
		return
	}
	ss.ended = true // first: none of its entries may inherit a lock from another
	ss.timer.Stop()
	delete(s.sessions, ss)
	for e := range ss.entries {
		s.end(e, why)
	}
}

// end takes e from its lock and serves the next in the queue. A holder that did
// not ask for it is told why.
func (s *Store) end(e *entry, why error) {
	if e.state == ended {
		return
	}
	was := e.state
	e.state = ended
	if e.timer != nil {
		e.timer.Stop()
	}
	if e.session != nil {
		delete(e.session.entries, e)
	}
	l := s.locks[e.name]
	if was == queued {
		l.queue = slices.DeleteFunc(l.queue, func(q *entry) bool { return q == e })
		close(e.turn)
	} else {
		l.holder = nil
		if why != nil && e.gone != nil && !e.d.opts.Quiet {
			s.tell(e.d, func() { e.gone(why) })
		}
		s.promote(l)
	}
	if l.holder == nil && len(l.queue) == 0 {
		delete(s.locks, l.name)
	}
}

func (s *Store) promote(l *lockState) {
	for l.holder == nil && len(l.queue) > 0 {
		e := l.queue[0]
		if e.expired() {
			s.expire(e)
			continue
		}
		l.queue = l.queue[1:]
		s.grant(l, e)
	}
	if l.holder == nil {
		for h := range s.listeners[l.name] {
			s.tell(h.d, h.hint)
		}
	}
}

// Expire takes the lock from its holder now, as if its TTL had passed, and
// serves the next waiter. It reports whether there was a holder. Only the lock
// ends; a session that carries it goes on.
func (s *Store) Expire(lock string) bool {
	return s.remove(lock, 0, errRemoved) == nil
}

func (s *Store) remove(lock string, number uint64, why error) error {
	err := driver.ErrNotHeld
	s.locked(func() {
		l := s.locks[lock]
		if l == nil {
			return
		}
		s.sweep(l)
		if l.holder == nil || number != 0 && l.holder.number != number {
			return
		}
		s.end(l.holder, why)
		err = nil
	})
	return err
}

// ExpireAll ends all that the Lockers called locker have at the Store: their
// sessions, locks and places in queues. It returns how many locks they held.
func (s *Store) ExpireAll(locker string) (held int) {
	s.locked(func() {
		s.sweepAll()
		var doomed []*entry
		for _, l := range s.locks {
			for _, e := range l.queue {
				if e.d.opts.Name == locker {
					doomed = append(doomed, e)
				}
			}
		}
		// Waiters first, or they would inherit what their own holders lose.
		waiters := len(doomed)
		for _, l := range s.locks {
			if l.holder.d.opts.Name == locker {
				doomed = append(doomed, l.holder)
			}
		}
		for _, e := range doomed {
			s.end(e, errEnded)
		}
		held = len(doomed) - waiters
		for ss := range s.sessions {
			if ss.d.opts.Name == locker {
				s.endSession(ss, errEnded)
			}
		}
	})
	return held
}

// Inspect describes a lock and its queue as they are now.
func (s *Store) Inspect(lock string) driver.Info {
	var info driver.Info
	s.locked(func() {
		s.sweepAll()
		l := s.locks[lock]
		if l == nil {
			return
		}
		if e := l.holder; e != nil {
			info = driver.Info{
				Held: true, Owner: e.owner, Metadata: e.metadata, Number: e.number,
				Since: e.since, Remaining: e.remaining(),
			}
		}
		for _, e := range l.queue {
			info.Waiters = append(info.Waiters, e.owner)
		}
	})
	return info
}

func (e *entry) remaining() time.Duration {
	if e.session != nil {
		return time.Until(e.session.expires)
	}
	return time.Until(e.expires)
}

// Leftovers lists what is at the Store, one line for each held lock, waiter and
// session, in no order. It is empty when everything was released and, with
// SharedFate, all Lockers are closed or idle for their TTL.
func (s *Store) Leftovers() []string {
	var left []string
	s.locked(func() {
		s.sweepAll()
		for _, l := range s.locks {
			if e := l.holder; e != nil {
				left = append(left, fmt.Sprintf("lock %q held by %s (owner %s)", l.name, e.d.opts.Name, e.owner))
			}
			for _, e := range l.queue {
				left = append(left, fmt.Sprintf("lock %q waited for by %s (owner %s)", l.name, e.d.opts.Name, e.owner))
			}
		}
		for ss := range s.sessions {
			left = append(left, fmt.Sprintf("session of %s (TTL %v)", ss.d.opts.Name, ss.ttl))
		}
	})
	return left
}

// Requests returns how many requests of the given operations were sent, faulty
// ones included; of all operations if none is given.
func (s *Store) Requests(ops ...Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(ops) == 0 {
		ops = slices.Collect(maps.Keys(s.requests))
	}
	n := 0
	for _, op := range ops {
		n += s.requests[op]
	}
	return n
}

// cut is a partition of the Lockers of one name.
type cut struct {
	healed chan struct{}
	news   []func()
}

// Partition cuts the Lockers called locker off: their requests wait, until their
// ctx ends or the partition is healed, and news from the Store waits too.
// The function that it returns heals the partition, and may be called again.
func (s *Store) Partition(locker string) (heal func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cuts[locker]
	if c == nil {
		c = &cut{healed: make(chan struct{})}
		s.cuts[locker] = c
	}
	return func() {
		s.locked(func() {
			if s.cuts[locker] != c {
				return
			}
			delete(s.cuts, locker)
			close(c.healed)
			s.after = append(s.after, c.news...)
		})
	}
}

// breach reports a broken contract under Strict; s.mu is held.
func (s *Store) breach(format string, args ...any) {
	if s.violation != nil {
		s.after = append(s.after, func() { s.violation(fmt.Sprintf(format, args...)) })
	}
}
