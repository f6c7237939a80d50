// Command counter shows what the lock is for, on real servers: many workers each
// read a number from a store, add one, and write it back. Without the lock most
// of the increments are lost; with it none is.
//
//	go run ./examples/counter -backend etcd
//	go run ./examples/counter -backend etcd -nolock
//
// Every worker has a Locker and a connection of its own, as if it were a process
// of its own: nothing but the backend keeps them apart. The number lives in the
// same servers as the lock.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.com/distlock"
)

// A worker is what one process would have: a Locker, and a way to the number.
type worker struct {
	distlock.Locker
	get   func(ctx context.Context) (int, error)
	set   func(ctx context.Context, n int) error
	close func() error // of the connection; the Locker has its own Close
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Stderr, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "counter:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, stdout, stderr io.Writer, args []string) error {
	flags := flag.NewFlagSet("counter", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		backend    = flags.String("backend", "memory", "redis, redlock, zookeeper, etcd or memory")
		addr       = flags.String("addr", "", "`addresses` of running servers, separated by commas; without it the program starts its own")
		workers    = flags.Int("workers", 30, "how many there are")
		increments = flags.Int("increments", 200, "by each worker")
		nolock     = flags.Bool("nolock", false, "go without the lock, and see what is lost")
		limit      = flags.Duration("timeout", 5*time.Minute, "for everything but the start of servers")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}

	var connect func(addrs []string) (*worker, error)
	switch *backend {
	case "redis":
		connect = onRedis
	case "redlock":
		connect = onRedlock
	case "zookeeper":
		connect = onZooKeeper
	case "etcd":
		connect = onEtcd
	case "memory":
		connect = inMemory()
	default:
		return fmt.Errorf("unknown backend %q", *backend)
	}

	addrs := strings.Split(*addr, ",")
	if *addr == "" {
		var stop func() error
		var err error
		if addrs, stop, err = startServers(ctx, *backend, stderr); err != nil {
			return err
		}
		defer func() {
			if err := stop(); err != nil {
				fmt.Fprintln(stderr, err)
			}
		}()
	}

	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	total, err := count(ctx, connect, addrs, *workers, *increments, *nolock, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, total)
	if want := *workers * *increments; total != want && !*nolock {
		return fmt.Errorf("%d increments were lost", want-total)
	}
	return nil
}

// count lets the workers work and returns what the number is in the end.
func count(ctx context.Context, connect func([]string) (*worker, error), addrs []string, n, increments int, nolock bool, progress io.Writer) (int, error) {
	workers := make([]*worker, n)
	for i := range workers {
		w, err := connect(addrs)
		if err != nil {
			return 0, err
		}
		defer func() { _, _ = w.Close(), w.close() }() // nothing is left to lose
		workers[i] = w
	}
	if err := workers[0].set(ctx, 0); err != nil {
		return 0, err
	}

	add := (*worker).increment
	if nolock {
		add = (*worker).incrementUnlocked
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	// ZooKeeper's client takes no context: closing it is what ends its calls.
	defer context.AfterFunc(ctx, func() {
		for _, w := range workers {
			_ = w.close()
		}
	})()

	var done atomic.Int64
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() {
			for range increments {
				if err := add(w, ctx); err != nil {
					fail(err)
					return
				}
				done.Add(1)
			}
		})
	}
	stop := report(progress, &done, n*increments)
	all.Wait()
	stop()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return workers[0].get(ctx)
}

// increment does it under the lock. If the lock should be lost meanwhile, the
// context ends and the write is not made.
func (w *worker) increment(ctx context.Context) error {
	return distlock.Do(ctx, w, "counter", func(ctx context.Context, _ *distlock.Lock) error {
		return w.incrementUnlocked(ctx)
	})
}

// incrementUnlocked is the read-modify-write that needs protection.
func (w *worker) incrementUnlocked(ctx context.Context) error {
	n, err := w.get(ctx)
	if err != nil {
		return err
	}
	runtime.Gosched() // let somebody else in, if nothing keeps them out
	return w.set(ctx, n+1)
}

// report says every second how far they are, until stop is called.
func report(w io.Writer, done *atomic.Int64, total int) (stop func()) {
	quit := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(w, "%d of %d increments\n", done.Load(), total)
			case <-quit:
				return
			}
		}
	})
	return func() { close(quit); ended.Wait() }
}
