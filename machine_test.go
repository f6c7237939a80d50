package distlock_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// A random machine: several Lockers on one Store take and
// give back locks while requests fail, hang, arrive late or lose their replies,
// Lockers are cut off, and locks are taken away. A model watches from outside:
//
//   - no two Lockers ever believe at once that they hold a name, whatever the
//     network did. Only where the Store itself took a lock away before its time
//     may the old holder believe in it until it is told, at most to its deadline
//   - tokens of a name grow from holder to holder
//   - a holding that says it is lost has told so, and was not unlocked before
//   - when all is quiet again, nothing is left at the Store, and nothing runs

// step is one thing that happens in the machine. The fields are drawn in
// advance, so that rapid can shrink a run that failed.
type step struct {
	Do     string
	Locker int
	Name   string
	Pick   int           // which of the locks held, or what kind of fault
	Wait   time.Duration // the patience of a Lock, or the length of a pause
	Fault  membackend.Fault
}

var machineNames = []string{"x", "y"}

var machineOps = []membackend.Op{
	membackend.Open, membackend.Acquire, membackend.Enqueue, membackend.Wait, membackend.Renew, membackend.Release,
	membackend.Abandon, membackend.Leave, membackend.Retire, membackend.Hints,
}

// times are all that matter to a TTL; the odd part keeps things from coinciding.
var times = rapid.Custom(func(t *rapid.T) time.Duration {
	d := rapid.SampledFrom([]time.Duration{
		0, time.Millisecond, ttl / 100, ttl / 20, ttl / 6, ttl / 4, ttl / 3, ttl / 2, ttl * 3 / 4, ttl - margin, ttl, ttl + ttl/3, 2 * ttl,
	}).Draw(t, "about")
	return d + time.Duration(rapid.IntRange(1, int(time.Millisecond)).Draw(t, "and"))
})

var steps = rapid.Custom(func(t *rapid.T) step {
	s := step{
		Do: rapid.SampledFrom([]string{
			"nothing", // what rapid shrinks a step to
			"lock", "lock", "lock", "try", "unlock", "unlock", "fixed", "renew", "pause", "pause", "pause",
			"fault", "fault", "partition", "heal", "expire", "expire all",
		}).Draw(t, "do"),
		Locker: rapid.IntRange(0, 3).Draw(t, "locker"),
		Name:   rapid.SampledFrom(machineNames).Draw(t, "name"),
		Pick:   rapid.IntRange(0, 9).Draw(t, "pick"),
		Wait:   times.Draw(t, "wait"),
	}
	if s.Do == "fault" {
		s.Fault = membackend.Fault{
			Op:    rapid.SampledFrom(machineOps).Draw(t, "op"),
			Skip:  rapid.IntRange(0, 2).Draw(t, "skip"),
			Times: rapid.IntRange(1, 5).Draw(t, "times"),
			Kind:  membackend.Kind(rapid.IntRange(int(membackend.FailBefore), int(membackend.SlowReply)).Draw(t, "kind")),
			Delay: times.Draw(t, "delay"),
		}
		if rapid.Bool().Draw(t, "of one Locker") {
			s.Fault.Locker = fmt.Sprint(s.Locker)
		}
	}
	return s
})

// holder is a lock as the model sees it.
type holder struct {
	lk       *distlock.Lock
	token    distlock.Token
	locker   string
	unlocked bool
}

type machine struct {
	s       *membackend.Store
	lockers []*distlock.Client

	mu      sync.Mutex
	broken  []string
	holders map[string][]*holder
	last    map[string]distlock.Token
	robbed  map[uint64]bool // numbers of grants that the Store took away before their time
	heals   []func()
}

func (m *machine) breach(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = append(m.broken, fmt.Sprintf(format, args...))
}

// got notes that a Lock returned, and compares with what others believe.
func (m *machine) got(name string, locker int, lk *distlock.Lock) {
	token := lk.Token()
	m.mu.Lock()
	for _, h := range m.holders[name] {
		if token != 0 && !m.robbed[token.Number()] && m.believes(h) {
			m.broken = append(m.broken, fmt.Sprintf("%q: %s believes in token %v while %d gets %v", name, h.locker, h.token, locker, token))
		}
	}
	if token != 0 && !m.robbed[token.Number()] {
		if token <= m.last[name] {
			m.broken = append(m.broken, fmt.Sprintf("%q: token %v after %v", name, token, m.last[name]))
		}
		m.last[name] = token
	}
	m.holders[name] = append(m.holders[name], &holder{lk: lk, token: token, locker: fmt.Sprint(locker)})
	m.mu.Unlock()
}

// look checks what every holder believes now.
func (m *machine) look() {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, hs := range m.holders {
		believe := 0
		for _, h := range hs {
			err := h.lk.Err()
			if m.believes(h) {
				believe++
			}
			lost := false
			select {
			case <-h.lk.Lost():
				lost = true
			default:
			}
			if told := err != nil && !h.unlocked; told != lost {
				m.broken = append(m.broken, fmt.Sprintf("%q: Err %v, unlocked %v, but Lost closed: %v", name, err, h.unlocked, lost))
			}
			if (err != nil) != (h.lk.Context().Err() != nil) {
				m.broken = append(m.broken, fmt.Sprintf("%q: Err %v, but the context says %v", name, err, h.lk.Context().Err()))
			}
		}
		if believe > 1 {
			m.broken = append(m.broken, fmt.Sprintf("%q: %d holders at once", name, believe))
		}
	}
}

// rob has the Store take locks away before their time. The holder need not know
// yet that it got one: its reply may still be on its way.
func (m *machine) rob(take func()) {
	m.mu.Lock()
	before := map[string]uint64{}
	for _, name := range machineNames {
		before[name] = m.s.Inspect(name).Number
		m.robbed[before[name]] = true
	}
	m.mu.Unlock()
	take()
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, number := range before {
		if m.s.Inspect(name).Number == number {
			delete(m.robbed, number)
		}
	}
}

func (m *machine) believes(h *holder) bool {
	return !h.unlocked && !m.robbed[h.token.Number()] && h.lk.Err() == nil
}

// one returns a lock that is not unlocked yet, or nil.
func (m *machine) one(name string, pick int) *holder {
	m.mu.Lock()
	defer m.mu.Unlock()
	var open []*holder
	for _, h := range m.holders[name] {
		if !h.unlocked {
			open = append(open, h)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[pick%len(open)]
}

func (m *machine) unlock(h *holder) {
	m.mu.Lock()
	if h.lk.Err() == nil { // else it was lost before
		h.unlocked = true
	}
	m.mu.Unlock()
	_ = h.lk.Unlock(bg)
}

// run plays steps and returns what was broken.
func (m *machine) run(steps []step) []string {
	var calls sync.WaitGroup
	var faults []*membackend.Injected
	for _, s := range steps {
		l := m.lockers[s.Locker]
		switch s.Do {
		case "lock", "fixed", "try":
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(bg, s.Wait)
				defer cancel()
				var lk *distlock.Lock
				var err error
				switch s.Do {
				case "lock":
					lk, err = l.Lock(ctx, s.Name)
				case "try":
					lk, err = l.TryLock(ctx, s.Name)
				case "fixed":
					lk, err = l.Lock(ctx, s.Name, distlock.WithFixedLease(ttl))
				}
				if err == nil {
					m.got(s.Name, s.Locker, lk)
				}
			})
		case "unlock":
			if h := m.one(s.Name, s.Pick); h != nil {
				calls.Go(func() { m.unlock(h) })
			}
		case "renew":
			if h := m.one(s.Name, s.Pick); h != nil {
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(bg, s.Wait)
					defer cancel()
					_ = h.lk.Renew(ctx)
				})
			}
		case "pause":
			const slice = ttl / 64
			for d := s.Wait; d > 0; d -= slice {
				time.Sleep(min(d, slice))
				m.look()
			}
		case "fault":
			faults = append(faults, m.s.Inject(s.Fault))
		case "partition":
			m.heals = append(m.heals, m.s.Partition(fmt.Sprint(s.Locker)))
		case "heal":
			m.heal()
		case "expire":
			m.rob(func() { m.s.Expire(s.Name) })
		case "expire all":
			m.rob(func() { m.s.ExpireAll(fmt.Sprint(s.Locker)) })
		}
		m.look()
	}

	// Quiet again: what is open must end, and nothing may be left.
	m.heal()
	for _, f := range faults {
		f.Remove()
		f.Resume()
	}
	calls.Wait()
	m.look()
	for _, hs := range m.holders {
		for _, h := range hs {
			if !h.unlocked {
				m.unlock(h)
			}
		}
	}
	time.Sleep(10*time.Second + 3*ttl) // the longest pause between tries is 5 s
	m.look()
	for _, left := range m.s.Leftovers() {
		m.breach("left at the Store: %s", left)
	}
	for i, l := range m.lockers {
		lk, err := l.TryLock(bg, "x") // everyone can go on
		if err != nil {
			m.breach("Locker %d cannot lock any more: %v", i, err)
			continue
		}
		m.got("x", i, lk)
		if err := lk.Unlock(bg); err != nil {
			m.breach("Locker %d cannot unlock any more: %v", i, err)
		}
		m.holders["x"][len(m.holders["x"])-1].unlocked = true
	}
	for i, l := range m.lockers {
		if err := l.Close(); err != nil {
			m.breach("Close of Locker %d: %v", i, err)
		}
	}
	for _, left := range m.s.Leftovers() {
		m.breach("left at the Store after Close: %s", left)
	}
	return m.broken
}

func (m *machine) heal() {
	for _, heal := range m.heals {
		heal()
	}
	m.heals = nil
}

func newMachine(kinds ...membackend.Options) (*machine, error) {
	m := &machine{holders: map[string][]*holder{}, last: map[string]distlock.Token{}, robbed: map[uint64]bool{}}
	m.s = membackend.NewStore(membackend.Strict(func(v string) { m.breach("driver contract: %s", v) }))
	for i := range 4 {
		o := kinds[i%len(kinds)]
		o.Name = fmt.Sprint(i)
		l, err := membackend.New(m.s, &o, distlock.WithTTL(ttl))
		if err != nil {
			return nil, err
		}
		m.lockers = append(m.lockers, l)
	}
	return m, nil
}

func TestRandomMachine(t *testing.T) {
	kinds := map[string][]membackend.Options{
		// All of them contend for the same locks.
		"mixed": {modes["queue"], modes["poll"], modes["single session"], modes["shared poll"]},
	}
	for name, o := range modes {
		kinds[name] = []membackend.Options{o}
	}
	for name, kinds := range kinds {
		t.Run(name, func(t *testing.T) {
			locks, losses := 0, 0
			rapid.Check(t, func(rt *rapid.T) {
				steps := rapid.SliceOfN(steps, 30, 90).Draw(rt, "steps")
				var broken []string
				synctest.Test(t, func(t *testing.T) {
					m, err := newMachine(kinds...)
					if err != nil {
						broken = []string{err.Error()}
						return
					}
					broken = m.run(steps)
					for _, hs := range m.holders {
						locks += len(hs)
						for _, h := range hs {
							if !h.unlocked {
								losses++
							}
						}
					}
				})
				if len(broken) > 0 {
					rt.Fatalf("%d rules broken:\n%s", len(broken), strings.Join(broken[:min(len(broken), 10)], "\n"))
				}
			})
			t.Logf("%d locks, %d of them lost", locks, losses)
		})
	}
}

// TestModelSeesABrokenBackend checks the checker: with a driver whose server
// gives a lock to everyone, the machine must find two holders and bad tokens.
func TestModelSeesABrokenBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := newMachine(membackend.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range m.lockers {
			_ = l.Close()
		}
		m.lockers = nil
		for i := range 4 {
			own, err := membackend.NewDriver(membackend.NewStore(), &membackend.Options{Name: fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
			l, err := distlock.New(own, distlock.WithTTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			m.lockers = append(m.lockers, l)
		}
		broken := strings.Join(m.run([]step{
			{Do: "lock", Locker: 0, Name: "x", Wait: ttl}, {Do: "lock", Locker: 1, Name: "x", Wait: ttl}, {Do: "pause", Wait: ttl},
		}), "\n")
		for _, want := range []string{"believes in token", "holders at once", "token 32 after 32"} {
			if !strings.Contains(broken, want) {
				t.Errorf("nothing said %q:\n%s", want, broken)
			}
		}
	})
}

// TestStress is the same in real time, for the race detector: the counter below
// is guarded by nothing but the locks.
func TestStress(t *testing.T) {
	for name, o := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := membackend.NewStore(membackend.Strict(func(v string) { t.Error("driver contract:", v) }))
			s.Inject(membackend.Fault{Op: membackend.Acquire, Skip: 3, Times: 3, Kind: membackend.LoseReply})
			s.Inject(membackend.Fault{Op: membackend.Enqueue, Skip: 3, Times: 3, Kind: membackend.LoseReply})
			s.Inject(membackend.Fault{Op: membackend.Release, Skip: 3, Times: 3, Kind: membackend.FailBefore})
			var wg sync.WaitGroup
			counter := 0
			last := distlock.Token(0)
			const lockers, workers, rounds = 3, 3, 20
			ctx, cancel := context.WithTimeout(bg, 20*time.Second)
			defer cancel()
			for range lockers {
				l, err := membackend.New(s, &o, distlock.WithTTL(ttl), distlock.WithBackoff(func(int) time.Duration { return time.Millisecond }))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				for range workers {
					wg.Go(func() {
						for range rounds {
							err := distlock.Do(ctx, l, "n", func(_ context.Context, lk *distlock.Lock) error {
								counter++
								if tok := lk.Token(); tok <= last || tok == math.MaxUint64 {
									t.Errorf("token %v after %v", tok, last)
								} else {
									last = tok
								}
								return nil
							})
							if err != nil && !strings.Contains(err.Error(), "injected") {
								t.Error(err)
							}
						}
					})
				}
			}
			wg.Wait()
			if counter != lockers*workers*rounds {
				t.Errorf("counted %d", counter)
			}
		})
	}
}
