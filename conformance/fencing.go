package conformance

import (
	"strconv"
	"sync"

	"example.com/distlock"
)

func fencing() []clause {
	return []clause{
		{
			name:  "fencing/tokens-grow",
			rule:  "With Fencing, tokens strictly increase from holder to holder of a name, and none is 0.",
			needs: all(fences),
			run: func(e *env) {
				ls, name := e.lockers(3), e.name("x")
				var f fence
				for i := range 30 {
					lk := e.take(ls[i%len(ls)], name)
					f.next(e, lk.Token())
					e.unlock(lk)
				}
			},
		},
		{
			name:  "fencing/tokens-grow-under-contention",
			rule:  "With Fencing, tokens increase in the order in which contenders hold the name, however many wait.",
			needs: all(fences),
			run: func(e *env) {
				const contenders, rounds = 5, 6
				name := e.name("x")
				var f fence // guarded by the lock under test, and by its own mutex against the race detector
				var wg sync.WaitGroup
				for _, l := range e.lockers(contenders) {
					wg.Go(func() {
						for range rounds {
							ctx, cancel := e.soon()
							lk, err := l.Lock(ctx, name)
							cancel()
							if err != nil {
								e.Errorf("contender failed: %v", err)
								return
							}
							f.next(e, lk.Token())
							if err := e.release(lk); err != nil {
								e.Errorf("Unlock: %v", err)
							}
						}
					})
				}
				wg.Wait()
			},
		},
		{
			name:  "fencing/token-is-constant",
			rule:  "A holding has one token from Lock to its end: renewals don't change it. Afterwards Token is 0.",
			needs: all(fences),
			run: func(e *env) {
				lk := e.take(e.locker(), e.name("x"))
				tok := lk.Token()
				for range 3 {
					if err := lk.Renew(e.ctx); err != nil {
						e.Fatalf("Renew: %v", err)
					}
					if lk.Token() != tok {
						e.Fatalf("token %d became %d by a renewal", tok, lk.Token())
					}
				}
				e.unlock(lk)
				if lk.Token() != 0 {
					e.Errorf("Token = %d after Unlock, want 0", lk.Token())
				}
			},
		},
		{
			name:  "fencing/grows-over-end-of-lease",
			rule:  "With Fencing, tokens increase over leases that ended without an unlock.",
			needs: all(fences),
			waits: true,
			run: func(e *env) {
				a, b, name := e.brief(), e.locker(), e.name("x")
				var f fence
				for range 2 {
					f.next(e, e.lock(a, name, distlock.WithFixedLease(e.ttl)).Token())
					lk := e.lock(b, name)
					f.next(e, lk.Token())
					e.unlock(lk)
				}
			},
		},
		{
			name:  "fencing/grows-over-dropped-holders",
			rule:  "With Fencing, tokens increase over holders whose lease or session the backend has dropped.",
			needs: all(fences, expires),
			run: func(e *env) {
				a, b, name := e.brief(), e.locker(), e.name("x")
				var f fence
				for range 3 {
					lk := e.lock(a, name)
					f.next(e, lk.Token())
					e.expire(name)
					e.lost(lk)
					next := e.lock(b, name)
					f.next(e, next.Token())
					e.unlock(next)
				}
			},
		},
		{
			name:  "fencing/grows-over-new-lockers",
			rule:  "With Fencing, tokens increase although every Locker that ever held the name has been closed: the backend remembers, not the client.",
			needs: all(fences),
			run: func(e *env) {
				name := e.name("x")
				var f fence
				for range 5 {
					l := e.locker()
					lk := e.take(l, name)
					f.next(e, lk.Token())
					e.unlock(lk)
					e.close(l)
				}
			},
		},
		{
			name:  "fencing/grows-over-restart",
			rule:  "With Fencing, tokens increase over a restart of the backend that keeps its data.",
			needs: all(fences, restarts),
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				var f fence
				for range 5 {
					lk := e.take(a, name)
					f.next(e, lk.Token())
					e.unlock(lk)
				}
				e.h.(Restarter).Restart(e.T)
				lk := e.lock(b, name)
				f.next(e, lk.Token())
				e.unlock(lk)
			},
		},
		{
			name:  "fencing/grows-over-failed-attempts",
			rule:  "With Fencing, attempts that failed or were given up don't disturb the order of the tokens.",
			needs: all(fences),
			run: func(e *env) {
				a, b, name := e.locker(), e.locker(), e.name("x")
				var f fence
				for range 5 {
					lk := e.lock(a, name)
					f.next(e, lk.Token())
					e.refused(b, name)
					p := e.wait(e.ctx, b, name)
					p.cancel()
					_ = p.failed()
					e.unlock(lk)
				}
			},
		},
		{
			name:  "fencing/many-names",
			rule:  "With Fencing, every name has an order of its own that use of other names does not disturb.",
			needs: all(fences),
			run: func(e *env) {
				const n = 8
				a, b := e.locker(), e.locker()
				var fs [n]fence
				for round := range 3 {
					for i := range n {
						l := a
						if (round+i)%2 == 0 {
							l = b
						}
						lk := e.take(l, e.name(strconv.Itoa(i)))
						fs[i].next(e, lk.Token())
						e.unlock(lk)
					}
				}
			},
		},
		{
			name:  "fencing/stale-write-refused",
			rule:  "A holder that stood still while a rival got in and wrote is refused by a store that remembers the highest token.",
			needs: all(fences, stops),
			waits: true,
			run: func(e *env) {
				name := e.name("x")
				b, p := e.locker(), e.spawn(e.ttl)
				stale := p.lock(name).Token // what the process would send with its write
				p.stop()
				var f fence
				f.next(e, e.lock(b, name).Token())
				p.resume()
				if f.accepts(stale) {
					e.Errorf("the store accepts the stale holder's token %d after its successor's %d", stale, f.last)
				}
			},
		},
		{
			name:  "fencing/grows-over-killed-process",
			rule:  "With Fencing, tokens increase over a holder whose process was killed.",
			needs: all(fences, spawns),
			waits: true,
			run: func(e *env) {
				name := e.name("x")
				b, p := e.locker(), e.spawn(e.ttl)
				var f fence
				f.next(e, p.lock(name).Token)
				p.kill()
				f.next(e, e.lock(b, name).Token())
			},
		},
	}
}

// fence is a store that remembers the highest token.
type fence struct {
	mu   sync.Mutex
	last distlock.Token
}

// next checks that tok is above all before it.
func (f *fence) next(e *env, tok distlock.Token) {
	e.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if tok == 0 {
		e.Error("a held lock has token 0")
	}
	if tok <= f.last {
		e.Errorf("token %d of a later holder is not above %d of an earlier one", tok, f.last)
	}
	f.last = max(f.last, tok)
}

func (f *fence) accepts(tok distlock.Token) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return tok > f.last
}
