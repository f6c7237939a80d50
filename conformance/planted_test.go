package conformance_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
	"example.com/distlock/membackend"
)

// planted lists faults that backends have had or could have, and for each a case
// that must turn red.
var planted = []struct {
	fault string
	red   string
	h     func() conformance.Harness
}{
	{"grants what is held", "exclusion/one-holder", broken(func(f *faults) { f.acquire = grantAnyway })},
	{"one owner per session", "exclusion/own-late-release-is-harmless", broken(func(f *faults) {
		f.request = func(req *driver.Request) { req.Owner = "session" }
	})},
	{"release of any holder", "exclusion/late-release-is-harmless", brokenStore(func(h *memory) {
		h.wrap = withFaults(func(f *faults) {
			f.release = func(ctx context.Context, name string, _ error) error { h.store.Expire(name); return nil }
		})
	})},
	{"leaving the queue never works", "waiting/given-up-leaves-nothing", inject(membackend.Leave)},
	{"queued waiters are not woken", "waiting/served-after-unlock", inject(membackend.Wait)},
	{"Push over-claimed", "waiting/pushed", claim(func(c *driver.Capabilities) { c.Push = true })},
	{"FIFO over-claimed", "fairness/arrival-order", claim(func(c *driver.Capabilities) { c.FIFO = true })},
	{"FIFO over-claimed", "fairness/no-overtaking-by-try", claim(func(c *driver.Capabilities) { c.FIFO = true })},
	{"lost renewals count as confirmed", "loss/told-before-rival", broken(func(f *faults) {
		f.confirm = func(c *driver.Confirm) { *c = driver.Confirm{From: time.Now(), TTL: time.Second} }
	})},
	{"deadline from a time after the request", "loss/told-before-rival", broken(func(f *faults) {
		f.confirm = func(c *driver.Confirm) { c.From = c.From.Add(c.TTL / 4) }
	})},
	{"deadline from the answer", "loss/deadline-counts-from-the-request", broken(func(f *faults) {
		f.confirm = func(c *driver.Confirm) { c.From = time.Now() }
	})},
	{"'not mine' counts as confirmed", "loss/dropped-by-backend", broken(func(f *faults) {
		f.confirm = func(c *driver.Confirm) {
			if errors.Is(c.Err, driver.ErrNotHeld) {
				*c = driver.Confirm{From: time.Now(), TTL: time.Second}
			}
		}
	})},
	{"nothing is renewed", "loss/watchdog-keeps", inject(membackend.Renew)},
	{"SharedFate over-claimed", "loss/shared-fate", claim(func(c *driver.Capabilities) { c.SharedFate = true })},
	{"numbers stand still", "fencing/tokens-grow", broken(func(f *faults) {
		f.grant = sameNumber
	})},
	{"numbers of each client's own", "fencing/grows-over-new-lockers", broken(func(f *faults) {
		var n uint64
		f.grant = func(g *driver.Grant) { n++; g.Number = n }
	})},
	{"names without regard to case", "names/one-to-one", broken(func(f *faults) {
		f.request = func(req *driver.Request) { req.Name = strings.ToLower(req.Name) }
	})},
	{"names cut off", "names/longest", broken(func(f *faults) {
		f.request = func(req *driver.Request) { req.Name = req.Name[:min(len(req.Name), 256)] }
	})},
	{"some names refused", "names/any-utf8", broken(func(f *faults) {
		f.acquire = func(req driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			if strings.Contains(req.Name, "\x00") {
				err = errors.New("bad name")
			}
			return g, err
		}
	})},
	{"TTL in the wrong unit", "ttl/lasts", broken(func(f *faults) {
		f.request = func(req *driver.Request) { req.TTL /= 2 }
		f.grant = func(g *driver.Grant) { g.TTL *= 2 }
	})},
	{"ctx does not reach the Locker", "reentry/deadlock", wrapped(func(l distlock.Locker) distlock.Locker { return forgetful{l} })},
	{"options do not reach the Locker", "reentry/counted", wrapped(func(l distlock.Locker) distlock.Locker { return deaf{l} })},
	{"held is an error like any other", "errors/held", broken(func(f *faults) {
		f.acquire = func(_ driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			if errors.Is(err, driver.ErrHeld) {
				err = errors.New("SETNX said 0")
			}
			return g, err
		}
	})},
	{"lost releases count as confirmed", "errors/unlock-out-of-reach", broken(func(f *faults) {
		f.release = func(context.Context, string, error) error { return nil }
	})},
	{"Close does nothing", "close/releases", wrapped(func(l distlock.Locker) distlock.Locker { return open{l} })},
	{"Close does nothing", "close/refuses", wrapped(func(l distlock.Locker) distlock.Locker { return open{l} })},
	{"Fencing not claimed", "capabilities/fencing-not-claimed", claim(func(c *driver.Capabilities) { c.Fencing = false })},
	{"FIFO not claimed", "capabilities/fifo-not-claimed", claimOn(membackend.Options{}, func(c *driver.Capabilities) { c.FIFO = false })},
	{"Push not claimed", "capabilities/push-not-claimed", claimOn(membackend.Options{}, func(c *driver.Capabilities) { c.Push = false })},
	{"SharedFate not claimed", "capabilities/shared-fate-not-claimed", brokenStore(func(h *memory) {
		h.wrap = withFaults(func(*faults) {}) // as it should be, but the server ends all locks together
		h.together = true
	})},
	{"release of any holder", "driver/release-checks-the-owner", brokenStore(releaseAny)},
	{"release of any holder", "driver/second-release-is-harmless", brokenStore(releaseAny)},
	{"'not mine' counts as confirmed", "driver/renew-checks-the-owner", broken(func(f *faults) {
		f.confirm = func(c *driver.Confirm) {
			if errors.Is(c.Err, driver.ErrNotHeld) {
				*c = driver.Confirm{From: time.Now(), TTL: time.Second}
			}
		}
	})},
	{"renewal of any holder", "driver/renew-checks-the-owner", brokenStore(renewAny)},
	{"abandoning of any holder", "driver/abandon-checks-the-owner", brokenStore(func(h *memory) {
		h.wrap = withFaults(func(f *faults) {
			f.abandon = func(req driver.Request) { h.store.Expire(req.Name) }
		})
	})},
	{"abandoning does nothing", "driver/abandon-checks-the-owner", broken(func(f *faults) { f.deaf = true })},
	{"numbers fall", "driver/granted-again", broken(func(f *faults) {
		n := uint64(100)
		f.grant = func(g *driver.Grant) { n--; g.Number = n }
	})},
	{"each request is a holding", "driver/granted-again", brokenStore(func(h *memory) {
		h.wrap = withFaults(func(f *faults) {
			sent := 0
			f.request = func(*driver.Request) { sent++ }
			f.release = func(ctx context.Context, name string, err error) error {
				if sent > 1 {
					_, _ = f.Driver.Acquire(ctx, driver.Request{Name: name, Owner: "the other holding", TTL: time.Minute})
				}
				return err
			}
		})
	})},
	{"a refused request keeps its place", "driver/refusal-leaves-nothing", brokenStore(queueRefused)},
	{"asks the server for its name", "driver/known-without-a-server", broken(func(f *faults) { f.ignorant = true })},
	{"another keeper each time", "driver/keeper", broken(func(f *faults) {
		f.confirm = func(*driver.Confirm) {}
		f.keeper = func(k driver.Keeper) driver.Keeper { return &struct{ driver.Keeper }{k} }
	})},
	{"no kind of number", "capabilities/consistent", claim(func(c *driver.Capabilities) { c.NumberKind = "" })},
}

const faultEnv = "DISTLOCK_CONFORMANCE_FAULT"

// TestPlantedFaults runs each case in a process of its own, since it must fail.
func TestPlantedFaults(t *testing.T) {
	areas := map[string]bool{}
	for _, c := range conformance.Cases() {
		areas[c.Area()] = true
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 6) // they wait more than they compute
	for _, p := range planted {
		delete(areas, strings.Split(p.red, "/")[0])
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t.Run(p.fault+"/"+p.red, func(t *testing.T) { mustTurnRed(t, p.fault, p.red) })
		})
	}
	wg.Wait()
	for area := range areas {
		t.Errorf("no fault is planted for area %q", area)
	}
}

func mustTurnRed(t *testing.T, fault, red string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOnePlantedFault$")
	cmd.Env = append(os.Environ(), faultEnv+"="+fault+" -> "+red)
	out, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		t.Fatalf("the case passed (%v):\n%s", err, out)
	}
	if !strings.Contains(string(out), "broken rule of "+red+": ") {
		t.Errorf("the case failed without saying which rule is broken:\n%s", out)
	}
}

// TestOnePlantedFault is what the processes of TestPlantedFaults run.
func TestOnePlantedFault(t *testing.T) {
	for _, p := range planted {
		if os.Getenv(faultEnv) == p.fault+" -> "+p.red {
			conformance.SetPatience(3 * time.Second)
			runCase(t, p.red, p.h())
		}
	}
}

func runCase(t *testing.T, name string, h conformance.Harness) {
	t.Helper()
	for _, c := range conformance.For(h) {
		if c.Name == name {
			c.Run(t, h)
			return
		}
	}
	panic("not registered: " + name) // no failure of the case
}

// faults are what a driver gets wrong; a nil one it gets right.
type faults struct {
	driver.Driver
	claims  func(*driver.Capabilities)
	request func(*driver.Request)
	acquire func(driver.Request, driver.Grant, error) (driver.Grant, error)
	grant   func(*driver.Grant)
	confirm func(*driver.Confirm)
	release func(ctx context.Context, name string, err error) error
	abandon func(driver.Request)
	keeper  func(driver.Keeper) driver.Keeper

	deaf     bool // Abandon does nothing
	ignorant bool // knows its claims from the server only
}

func withFaults(plant func(*faults)) func(driver.Driver) driver.Driver {
	return func(d driver.Driver) driver.Driver {
		f := &faults{Driver: d}
		plant(f)
		if q, ok := d.(driver.Queuer); ok {
			return struct {
				*faults
				enqueuer
			}{f, q}
		}
		return f
	}
}

// enqueuer is what a driver.Queuer adds.
type enqueuer interface {
	Enqueue(context.Context, driver.Request) (driver.Ticket, error)
}

// broken plants faults in a backend that polls without hints.
func broken(plant func(*faults)) func() conformance.Harness {
	return brokenStore(func(h *memory) { h.wrap = withFaults(plant) })
}

func brokenStore(plant func(*memory)) func() conformance.Harness {
	return func() conformance.Harness {
		h := newMemory(membackend.Options{Polling: true, Quiet: true})
		plant(h)
		return h
	}
}

// unfenced is a sound backend without Fencing: all its holders have one number.
func unfenced() conformance.Harness {
	return broken(func(f *faults) {
		f.claims = func(c *driver.Capabilities) { c.Fencing, c.NumberKind = false, "" }
		f.grant = sameNumber
	})()
}

// inject makes all operations of one kind fail at a backend that queues.
func inject(op membackend.Op) func() conformance.Harness {
	return func() conformance.Harness {
		h := newMemory(membackend.Options{})
		h.store.Inject(membackend.Fault{Op: op, Kind: membackend.FailBefore, Times: -1})
		return h
	}
}

// claim makes a backend that polls without hints claim something else.
func claim(change func(*driver.Capabilities)) func() conformance.Harness {
	return claimOn(membackend.Options{Polling: true, Quiet: true}, change)
}

func claimOn(o membackend.Options, change func(*driver.Capabilities)) func() conformance.Harness {
	return func() conformance.Harness {
		h := newMemory(o)
		h.wrap = withFaults(func(f *faults) { f.claims = change })
		return h
	}
}

func (f *faults) Capabilities(ctx context.Context) (driver.Capabilities, error) {
	c, err := f.Driver.Capabilities(ctx)
	if f.ignorant && err != nil {
		return driver.Capabilities{}, err
	}
	if f.claims != nil {
		f.claims(&c)
	}
	return c, err
}

func (f *faults) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if f.request != nil {
		f.request(&req)
	}
	g, err := f.Driver.Acquire(ctx, req)
	if f.acquire != nil {
		g, err = f.acquire(req, g, err)
	}
	if err != nil {
		return g, err
	}
	if f.grant != nil {
		f.grant(&g)
	}
	if f.confirm != nil {
		c := driver.Confirm{From: g.From, TTL: g.TTL}
		f.confirm(&c)
		g.From, g.TTL = c.From, c.TTL
	}
	if f.confirm != nil || f.release != nil {
		g.Lease = faultyLease{g.Lease, f, req.Name}
	}
	return g, nil
}

func (f *faults) Abandon(ctx context.Context, req driver.Request) error {
	if f.abandon != nil {
		f.abandon(req)
	}
	if f.deaf {
		return nil
	}
	return f.Driver.Abandon(ctx, req)
}

type faultyLease struct {
	driver.Lease
	f    *faults
	name string
}

func (l faultyLease) Release(ctx context.Context) error {
	err := l.Lease.Release(ctx)
	if l.f.release != nil {
		err = l.f.release(ctx, l.name, err)
	}
	return err
}

func (l faultyLease) Keeper() driver.Keeper {
	k := driver.Keeper(faultyKeeper{l.Lease.Keeper(), l.f})
	if l.f.keeper != nil {
		k = l.f.keeper(k)
	}
	return k
}

type faultyKeeper struct {
	driver.Keeper
	f *faults
}

func (k faultyKeeper) Renew(ctx context.Context, ks []driver.Kept) []driver.Confirm {
	inner := make([]driver.Kept, len(ks))
	for i, kept := range ks {
		inner[i] = kept.(faultyLease).Lease
	}
	cs := k.Keeper.Renew(ctx, inner)
	if k.f.confirm != nil {
		for i := range cs {
			k.f.confirm(&cs[i])
		}
	}
	return cs
}

// grantAnyway grants what is held.
func grantAnyway(req driver.Request, g driver.Grant, err error) (driver.Grant, error) {
	if errors.Is(err, driver.ErrHeld) {
		return driver.Grant{Lease: nobodys{}, Number: 1, From: time.Now(), TTL: req.TTL}, nil
	}
	return g, err
}

// releaseAny has Release remove whoever holds the lock.
func releaseAny(h *memory) {
	h.wrap = withFaults(func(f *faults) {
		f.release = func(_ context.Context, name string, err error) error { h.store.Expire(name); return err }
	})
}

// renewAny has Renew prolong each lock that was taken, whoever's turn it is.
func renewAny(h *memory) {
	var mu sync.Mutex
	var taken []driver.Lease
	h.wrap = withFaults(func(f *faults) {
		f.grant = func(g *driver.Grant) {
			mu.Lock()
			defer mu.Unlock()
			taken = append(taken, g.Lease)
		}
		f.confirm = func(*driver.Confirm) {
			mu.Lock()
			defer mu.Unlock()
			for _, l := range taken {
				l.Keeper().Renew(context.Background(), []driver.Kept{l})
			}
		}
	})
}

// queueRefused has refused requests served when the lock is free.
func queueRefused(h *memory) {
	var mu sync.Mutex
	var refused []driver.Request
	h.wrap = withFaults(func(f *faults) {
		f.request = func(*driver.Request) {
			mu.Lock()
			defer mu.Unlock()
			for _, req := range refused {
				_, _ = f.Driver.Acquire(context.Background(), req)
			}
		}
		f.acquire = func(req driver.Request, g driver.Grant, err error) (driver.Grant, error) {
			if errors.Is(err, driver.ErrHeld) {
				mu.Lock()
				defer mu.Unlock()
				req.Owner += "'" // the Store would refuse one that has been answered
				refused = append(refused, req)
			}
			return g, err
		}
	})
}

func sameNumber(g *driver.Grant) { g.Number = 1 }

// nobodys is a lease that is not one.
type nobodys struct{}

func (nobodys) Keeper() driver.Keeper         { return nobodys{} }
func (nobodys) Release(context.Context) error { return nil }
func (nobodys) Every() time.Duration          { return 0 }
func (nobodys) MaxBatch() int                 { return 1 }
func (nobodys) Retire(context.Context) error  { return nil }
func (nobodys) Renew(_ context.Context, ks []driver.Kept) []driver.Confirm {
	return make([]driver.Confirm, len(ks))
}

// Faults above the driver: in a Locker that is no distlock.Client.

type wrappedMemory struct {
	*memory
	wrap func(distlock.Locker) distlock.Locker
}

func wrapped(wrap func(distlock.Locker) distlock.Locker) func() conformance.Harness {
	return func() conformance.Harness { return &wrappedMemory{newMemory(membackend.Options{}), wrap} }
}

func (m *wrappedMemory) NewLocker(t testing.TB, opts ...distlock.Option) distlock.Locker {
	t.Helper()
	return m.wrap(m.memory.NewLocker(t, opts...))
}

type forgetful struct{ distlock.Locker }

func (l forgetful) Lock(ctx context.Context, name string, opts ...distlock.LockOption) (*distlock.Lock, error) {
	forgot, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return l.Locker.Lock(forgot, name, opts...)
}

type deaf struct{ distlock.Locker }

func (l deaf) Lock(ctx context.Context, name string, _ ...distlock.LockOption) (*distlock.Lock, error) {
	return l.Locker.Lock(ctx, name)
}

type open struct{ distlock.Locker }

func (open) Close() error { return nil }
