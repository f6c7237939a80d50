package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"example.com/distlock"
)

// The suite and a worker process talk in JSON, one object a line: requests on
// the worker's standard input, answers on its standard output. Requests run
// concurrently; an answer carries the id of its request.
type (
	workerRequest struct {
		ID   int           `json:"id"`
		Op   string        `json:"op"` // open, lock, trylock, unlock, state
		Name string        `json:"name,omitempty"`
		TTL  time.Duration `json:"ttl,omitempty"` // open
	}
	workerAnswer struct {
		ID         int            `json:"id"`
		Waiting    bool           `json:"waiting,omitempty"` // lock has begun to wait; its own answer follows
		Token      distlock.Token `json:"token,omitempty"`
		ValidUntil time.Time      `json:"valid_until,omitzero"`
		Err        string         `json:"err,omitempty"`
		Held       bool           `json:"held,omitempty"` // Err matches ErrHeld
		Lost       bool           `json:"lost,omitempty"` // Err matches ErrLost
	}
)

// WorkerMain is the main of the process that a Spawner starts: it makes one
// Locker with newLocker, locks and unlocks as the suite tells it to, and returns
// when its standard input ends.
func WorkerMain(newLocker func(opts ...distlock.Option) (distlock.Locker, error)) {
	w := &worker{newLocker: newLocker, out: json.NewEncoder(os.Stdout), locks: map[string]*distlock.Lock{}, ids: map[string]int{}}
	if err := w.serve(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "conformance worker:", err)
		os.Exit(1)
	}
}

type worker struct {
	newLocker func(opts ...distlock.Option) (distlock.Locker, error)
	l         distlock.Locker

	mu    sync.Mutex
	out   *json.Encoder
	locks map[string]*distlock.Lock
	ids   map[string]int // of the last lock request for a name
}

func (w *worker) serve(in io.Reader) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var req workerRequest
		if err := json.Unmarshal(lines.Bytes(), &req); err != nil {
			return err
		}
		if req.Op == "open" {
			if err := w.open(req); err != nil {
				return err
			}
			continue
		}
		w.mu.Lock()
		w.ids[req.Name] = req.ID
		w.mu.Unlock()
		go func() { w.answer(w.do(req)) }()
	}
	if w.l != nil {
		_ = w.l.Close() // the process ends; the backend frees what is left
	}
	return lines.Err()
}

func (w *worker) open(req workerRequest) error {
	l, err := w.newLocker(distlock.WithTTL(req.TTL), distlock.WithObserver(distlock.ObserverFunc(w.observe)))
	if err != nil {
		return err
	}
	w.l = l
	w.answer(workerAnswer{ID: req.ID})
	return nil
}

func (w *worker) observe(_ context.Context, ev distlock.Event) {
	if ev.Kind == distlock.EventWaiting {
		w.mu.Lock()
		id := w.ids[ev.Name]
		w.mu.Unlock()
		w.answer(workerAnswer{ID: id, Waiting: true})
	}
}

func (w *worker) answer(a workerAnswer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(a) // nobody is left to tell if the suite is gone; standard input ends too then
}

func (w *worker) do(req workerRequest) workerAnswer {
	ctx := context.Background()
	var err error
	w.mu.Lock()
	lk := w.locks[req.Name]
	w.mu.Unlock()
	switch req.Op {
	case "lock":
		lk, err = w.l.Lock(ctx, req.Name)
	case "trylock":
		lk, err = w.l.TryLock(ctx, req.Name)
	case "unlock":
		err = lk.Unlock(ctx)
	case "state":
		err = lk.Err()
	default:
		err = fmt.Errorf("unknown request %q", req.Op)
	}
	a := workerAnswer{ID: req.ID, Token: lk.Token(), ValidUntil: lk.ValidUntil()}
	if err != nil {
		a.Err, a.Held, a.Lost = err.Error(), errors.Is(err, distlock.ErrHeld), errors.Is(err, distlock.ErrLost)
		return a
	}
	w.mu.Lock()
	w.locks[req.Name] = lk
	w.mu.Unlock()
	return a
}
