package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Config configures a Bed. The zero value is what tests use.
type Config struct {
	// Provider is where servers come from: auto, containers, processes or
	// external. Default: the environment variable DISTLOCK_TESTBED, else auto.
	Provider string

	// Durable makes servers write to disk before they answer, as they do in
	// production: Redis with appendonly and appendfsync always, ZooKeeper and etcd
	// with fsync. Without it they lose nothing when they are killed, but may when
	// the machine crashes. It also lets ZooKeeper's JVM optimise fully. A
	// benchmark wants it. Default: false.
	Durable bool

	// Log gets one line that names the chosen provider. Default: os.Stderr.
	Log io.Writer
}

// Bed starts servers and stops them together. Its methods are safe for
// concurrent use.
type Bed struct {
	cfg      Config
	name     string
	slot     *slot    // nil with external servers
	provider provider // nil with external servers

	ended context.Context // cancelled by Close
	end   context.CancelFunc

	mu       sync.Mutex
	count    int
	closers  map[int]func() error // what Close undoes, by number
	closed   bool
	starting sync.WaitGroup // servers that are being started; added to under mu
}

// startTimeout bounds the wait for a server to answer after its start.
const startTimeout = 60 * time.Second

// Open chooses the provider and prepares a directory; it starts no server. Close
// must be called.
func Open(ctx context.Context, cfg Config) (*Bed, error) {
	if cfg.Provider == "" {
		cfg.Provider = os.Getenv("DISTLOCK_TESTBED")
	}
	if cfg.Provider == "" {
		cfg.Provider = "auto"
	}
	if cfg.Log == nil {
		cfg.Log = os.Stderr
	}
	b := &Bed{cfg: cfg, name: cfg.Provider, closers: make(map[int]func() error)}
	b.ended, b.end = context.WithCancel(context.Background())
	describe := "servers that run already"
	if cfg.Provider != "external" {
		var err error
		if describe, err = b.choose(ctx); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(cfg.Log, "testbed: provider %s: %s\n", b.name, describe)
	return b, nil
}

func (b *Bed) choose(ctx context.Context) (describe string, err error) {
	if !supported {
		return "", &MissingError{
			What: "servers",
			Why:  "this operating system can run none",
			Help: "set DISTLOCK_TESTBED=external and the addresses of servers that run elsewhere",
		}
	}
	s, err := takeSlot()
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = s.close()
		}
	}()
	why := ""
	switch b.cfg.Provider {
	case "processes":
		b.provider = &processes{slot: s}
	case "containers":
		if b.provider, err = newContainers(ctx, s, true); err != nil {
			return "", err
		}
	case "auto":
		p, err := newContainers(ctx, s, false)
		if err != nil {
			b.name, b.provider = "processes", &processes{slot: s}
			why = fmt.Sprintf(" (no containers: %v)", err)
		} else {
			b.name, b.provider = "containers", p
		}
	default:
		return "", fmt.Errorf("testbed: DISTLOCK_TESTBED=%s: want auto, containers, processes or external", b.cfg.Provider)
	}
	if err := s.watch(b.name == "containers"); err != nil {
		return "", errors.Join(err, b.provider.close())
	}
	b.slot = s
	return b.provider.describe() + why, nil
}

// Provider is the provider in use: containers, processes or external.
func (b *Bed) Provider() string { return b.name }

// Close stops all servers and removes their files. A second Close does nothing.
func (b *Bed) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.end()
	b.starting.Wait()

	b.mu.Lock()
	closers := b.closers
	b.closers = nil
	b.mu.Unlock()
	var wg sync.WaitGroup
	errs := make(chan error, len(closers))
	for _, f := range closers {
		wg.Go(func() { errs <- f() })
	}
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	if b.provider != nil {
		all = append(all, b.provider.close(), b.slot.close())
	}
	return errors.Join(all...)
}

// keep registers what Close has to undo and returns a function that undoes it
// earlier.
func (b *Bed) keep(undo func() error) (early func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	n := b.count
	b.closers[n] = undo
	return func() error {
		b.mu.Lock()
		_, ok := b.closers[n]
		delete(b.closers, n)
		b.mu.Unlock()
		if !ok {
			return nil
		}
		return undo()
	}
}

func (b *Bed) serial() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	return b.count
}

// group is servers that are started and stopped together.
type group struct {
	servers []*Server
	links   []io.Closer // proxies between the servers
	ports   []int
	cluster *Cluster // nil for Redis
	close   func() error
}

// start runs servers of one kind together and waits until each answers. plan
// makes their specs from free ports; it is asked again if a server could not
// start, since somebody else may have taken a port meanwhile.
func (b *Bed) start(ctx context.Context, ports int, plan func(ports []int) ([]*Server, []io.Closer, error)) (*group, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, errors.New("testbed: the bed is closed")
	}
	b.starting.Add(1)
	b.mu.Unlock()
	defer b.starting.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ended, cancel)()

	const attempts = 3
	for try := 1; ; try++ {
		g, err := b.tryStart(ctx, ports, plan)
		if err == nil || try == attempts || !errors.Is(err, errExited) {
			return g, err
		}
	}
}

func (b *Bed) tryStart(ctx context.Context, ports int, plan func([]int) ([]*Server, []io.Closer, error)) (g *group, err error) {
	g = &group{}
	if g.ports, err = b.slot.ports(ports); err != nil {
		return nil, err
	}
	undo := func() error {
		var errs []error
		for _, s := range g.servers {
			if s.inst != nil {
				ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
				errs = append(errs, s.inst.remove(ctx))
				cancel()
			}
		}
		for _, l := range g.links {
			errs = append(errs, l.Close())
		}
		b.slot.free(g.ports...)
		return errors.Join(errs...)
	}
	if g.servers, g.links, err = plan(g.ports); err != nil {
		return nil, errors.Join(err, undo())
	}
	for _, s := range g.servers {
		s.bed = b
		if s.inst, err = b.provider.launch(ctx, s.spec); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	for _, s := range g.servers {
		if err := s.waitReady(ctx); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	g.close = b.keep(undo)
	return g, nil
}

// external returns the servers at the addresses in an environment variable.
func (b *Bed) external(ctx context.Context, what kind, variable string, atLeast int, ready func(context.Context, string) error) (*group, error) {
	var addrs []string
	for a := range strings.SplitSeq(os.Getenv(variable), ",") {
		if a = strings.TrimSpace(a); a != "" {
			addrs = append(addrs, a)
		}
	}
	if len(addrs) < atLeast {
		return nil, &MissingError{
			What: fmt.Sprintf("%d external %s server(s)", atLeast, what),
			Why:  fmt.Sprintf("%s names %d", variable, len(addrs)),
			Help: "set it to host:port addresses, separated by commas, or choose another DISTLOCK_TESTBED",
		}
	}
	g := &group{close: func() error { return nil }}
	for _, a := range addrs {
		s := &Server{kind: what, addr: a, bed: b, ready: ready}
		if err := s.waitReady(ctx); err != nil {
			return nil, err
		}
		g.servers = append(g.servers, s)
	}
	return g, nil
}
