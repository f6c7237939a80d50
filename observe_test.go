package distlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/distlock"
	"example.com/distlock/membackend"
)

// Rules of events and logs.

func TestObserverIsToldEachStep(t *testing.T) {
	each(t, func(e *env) {
		seen := &events{}
		l := e.locker("a", distlock.WithObserver(seen))
		rival := e.lock(e.locker("rival"), "n")
		waits := e.waitsFor(bg, l, "n")
		time.Sleep(time.Second)
		if ev := seen.of(distlock.EventWaiting); len(ev) != 1 || ev[0].Name != "n" || ev[0].Backend != "memory" {
			e.Errorf("waiting: %+v", ev)
		}
		e.unlock(rival)
		lk := (<-waits).lk
		ev := seen.of(distlock.EventAcquired)
		if len(ev) != 1 || ev[0].Token != lk.Token() || ev[0].Waited < time.Second || ev[0].Attempts < 1 {
			e.Errorf("acquired: %+v", ev)
		}
		e.inject(membackend.Fault{Op: membackend.Renew, Locker: "a", Kind: membackend.FailBefore})
		time.Sleep(ttl)
		renewed, failed := 0, 0
		for _, ev := range seen.of(distlock.EventRenewed) {
			if ev.Err == nil {
				renewed++
			} else if errors.Is(ev.Err, membackend.ErrInjected) {
				failed++
			}
		}
		if renewed < 2 || failed != 1 {
			e.Errorf("%d renewals, %d failed", renewed, failed)
		}
		token := lk.Token()
		e.unlock(lk)
		if ev = seen.of(distlock.EventReleased); len(ev) != 1 || ev[0].Token != token || ev[0].Held < ttl || ev[0].Err != nil {
			e.Errorf("released: %+v", ev)
		}
		lost := e.lock(l, "n")
		e.s.Expire("n")
		e.lost(lost, ttl, distlock.Revoked)
		if ev = seen.of(distlock.EventLost); len(ev) != 1 || !errors.Is(ev[0].Err, distlock.ErrLost) {
			e.Errorf("lost: %+v", ev)
		}
		e.lock(e.locker("last"), "n")
		_, err := l.TryLock(bg, "n")
		e.is(err, distlock.ErrHeld)
		if ev = seen.of(distlock.EventFailed); len(ev) != 1 || !errors.Is(ev[0].Err, distlock.ErrHeld) {
			e.Errorf("failed: %+v", ev)
		}
	})
}

func TestObserverMayUseTheLock(t *testing.T) {
	each(t, func(e *env) {
		var lk atomic.Pointer[distlock.Lock]
		var told atomic.Int64
		l := e.locker("a", distlock.WithObserver(distlock.ObserverFunc(func(context.Context, distlock.Event) {
			told.Add(1)
			_ = lk.Load().Err() // would block for ever if the Locker's mutex were held
		})))
		lk.Store(e.lock(l, "n"))
		time.Sleep(ttl)
		e.unlock(lk.Load())
		if n := told.Load(); n < 3 {
			e.Errorf("told %d times", n)
		}
	})
}

func TestObserverThatPanicsDoesNotTakeTheMutexAlong(t *testing.T) {
	each(t, func(e *env) {
		l := e.locker("a", distlock.WithObserver(distlock.ObserverFunc(func(_ context.Context, ev distlock.Event) {
			if ev.Kind == distlock.EventWaiting && ev.Name == "n" {
				panic("observer")
			}
		})))
		lk := e.lock(l, "n")
		func() {
			defer func() {
				if recover() == nil {
					e.Error("no panic")
				}
			}()
			ctx, cancel := context.WithTimeout(bg, ttl)
			defer cancel()
			_, _ = l.Lock(ctx, "n")
		}()
		e.held(lk)
		e.unlock(lk)
		e.unlock(e.lock(l, "m"))
	})
}

// logText is what was logged, by several goroutines.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestWaitForASilentServerIsTold(t *testing.T) {
	each(t, func(e *env) {
		var out logText
		l := e.locker("a", distlock.WithLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))))
		heal := e.s.Partition("a")
		ctx, cancel := context.WithTimeout(bg, 6*ttl)
		defer cancel()
		waits := make(chan error)
		go func() {
			_, err := l.Lock(ctx, "n")
			waits <- err
		}()
		time.Sleep(4 * ttl)
		synctest.Wait()
		if n := strings.Count(out.String(), "waiting for the server"); n != 1 {
			e.Errorf("told %d times: %s", n, out.String())
		}
		e.is(<-waits, context.DeadlineExceeded)
		heal()
		if !strings.Contains(out.String(), "distlock: failed") {
			e.Errorf("the end is no warning: %s", out.String())
		}
	})
}

func TestLossesAndFailedRenewalsAreLoggedAsWarnings(t *testing.T) {
	bubble(t, membackend.Options{}, func(e *env) {
		var out bytes.Buffer
		l := e.locker("a", distlock.WithLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))))
		lk := e.lock(l, "quiet")
		e.unlock(lk)
		if out.Len() > 0 {
			e.Errorf("logged: %s", out.String())
		}
		lk = e.lock(l, "loud")
		e.inject(membackend.Fault{Op: membackend.Renew, Times: -1, Kind: membackend.FailBefore})
		e.lost(lk, ttl, distlock.Expired)
		_ = l.Close()
		text := out.String()
		for _, want := range []string{"distlock: renewal failed", "distlock: lost", "name=loud", "backend=memory", "injected fault", "level=WARN"} {
			if !strings.Contains(text, want) {
				e.Errorf("no %q in:\n%s", want, text)
			}
		}
	})
}
