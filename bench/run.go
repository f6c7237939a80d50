package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/distlock"
)

// Backends is every backend that Run knows; those of the comparison are Default.
var (
	Backends = []string{"redis", "redlock", "zookeeper", "etcd", "memory"}
	Default  = []string{"redis", "redlock", "zookeeper", "etcd"}
)

// Workloads is every workload that Run knows:
//
//   - alone: one caller locks and unlocks a free name
//   - many: 64 goroutines, each on a name of its own, share one Locker
//   - hot: 8 contenders for one name, each with its own Locker and connection
//   - local: 8 goroutines on one name share one Locker
//   - reentry: a holder asks for its own lock
//   - crash: the process that holds the lock is killed
//   - loss: servers are killed, a minority, then the majority
var Workloads = []string{"alone", "many", "hot", "local", "reentry", "crash", "loss"}

const (
	manyContenders = 64
	hotContenders  = 8
)

// Config configures Run.
type Config struct {
	Backends  []string      // default Default
	Workloads []string      // default Workloads
	Duration  time.Duration // of each closed loop, after a warm-up of a quarter of it; default 3 s
	TTL       time.Duration // in closed loops; default 10 s
	CrashTTL  time.Duration // in the crash workload; default 3 s
	Crashes   int           // processes killed per backend; default 5
	Provider  string        // of the servers: auto, containers, processes, external; default DISTLOCK_TESTBED, else auto

	Progress io.Writer // where progress is shown; nil means nowhere

	// Hold is the command that becomes the holder in the crash workload, which
	// must call HoldMain with the arguments that follow it. Default: this program
	// with HoldCommand.
	Hold []string

	// callLimit bounds each Lock and Unlock on servers that should work; default 10 s.
	callLimit time.Duration
}

func (cfg Config) withDefaults() (Config, error) {
	fill := func(list *[]string, standard, known []string, what string) error {
		if len(*list) == 0 {
			*list = standard
		}
		for _, name := range *list {
			if !slices.Contains(known, name) {
				return fmt.Errorf("unknown %s %q; there is %s", what, name, strings.Join(known, ", "))
			}
		}
		return nil
	}
	if err := fill(&cfg.Backends, Default, Backends, "backend"); err != nil {
		return cfg, err
	}
	if err := fill(&cfg.Workloads, Workloads, Workloads, "workload"); err != nil {
		return cfg, err
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
		name     string
	}{
		{&cfg.Duration, 3 * time.Second, "duration"},
		{&cfg.TTL, 10 * time.Second, "TTL"},
		{&cfg.CrashTTL, 3 * time.Second, "TTL of the crash workload"},
		{&cfg.callLimit, 10 * time.Second, "limit of a call"},
	} {
		if *d.value < 0 {
			return cfg, fmt.Errorf("%s %v is negative", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if cfg.Crashes <= 0 {
		cfg.Crashes = 5
	}
	var err error
	if cfg.Hold == nil {
		cfg.Hold, err = holderCommand()
	}
	return cfg, err
}

// A job is one thing to do, with its time for the progress.
type job struct {
	what string
	time time.Duration
	run  func(ctx context.Context)
}

// Run starts servers, measures and stops them. The Report holds what there is,
// also when ctx ends early; its Err says what is wrong with it. An error of Run
// means that there is no Report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &runner{cfg: cfg, report: &Report{Setup: describe(time.Now())}}
	r.servers = &servers{provider: cfg.Provider, log: r}
	r.report.Setup.Duration, r.report.Setup.TTL, r.report.Setup.CrashTTL = cfg.Duration, cfg.TTL, cfg.CrashTTL

	jobs := r.plan()
	steps := make([]step, len(jobs))
	for i, j := range jobs {
		steps[i] = step{j.what, j.time}
	}
	r.progress = newProgress(cfg.Progress, steps)
	for _, j := range jobs {
		if ctx.Err() != nil {
			break
		}
		r.progress.next()
		j.run(ctx)
	}
	if ctx.Err() != nil {
		r.report.Interrupted = true
		for _, res := range r.report.Results {
			res.missing = "the run was interrupted before it"
		}
	}
	r.report.Setup.Provider = r.servers.name()
	if r.report.Setup.Provider == "processes" { // their data are in the same folder
		// Measured last: at the start the servers would write beside it.
		if r.report.Setup.Fsync, err = fsyncTime(os.TempDir()); err != nil {
			r.progress.say("fsync: %v", err)
		}
	}
	if err := r.servers.close(); err != nil {
		r.progress.say("stopping the servers: %v", err)
	}
	r.progress.stop()
	r.report.finish(time.Now())
	return r.report, nil
}

type runner struct {
	cfg      Config
	servers  *servers
	progress *progress
	report   *Report
}

// Write shows a line of the servers' log.
func (r *runner) Write(p []byte) (int, error) {
	r.progress.say("%s", strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// subject is one backend under measurement.
type subject struct {
	*target
	res *Result
}

func (r *runner) plan() []job {
	var jobs []job
	var subjects []*subject
	for _, name := range r.cfg.Backends {
		s := &subject{res: &Result{Backend: name}}
		s.res.Code, _ = countCode(name)
		subjects = append(subjects, s)
		r.report.Results = append(r.report.Results, s.res)
		jobs = append(jobs, job{name + ": start servers", startTimes[name], func(ctx context.Context) { r.start(ctx, s) }})
	}
	// Backends come one after another, since they share the cores.
	for _, s := range subjects {
		for _, w := range []struct {
			name, what string
			run        func(context.Context, *subject)
			time       time.Duration
		}{
			{"alone", "one caller, a free name", r.loop(1, 1, 1, func(res *Result) *Outcome[Load] { return &res.Alone }), r.loopTime()},
			{"many", fmt.Sprintf("%d goroutines, a name each", manyContenders), r.loop(manyContenders, 1, manyContenders, func(res *Result) *Outcome[Load] { return &res.Many }), r.loopTime()},
			{"hot", fmt.Sprintf("one name, %d Lockers", hotContenders), r.loop(hotContenders, hotContenders, 1, func(res *Result) *Outcome[Load] { return &res.Hot }), r.loopTime()},
			{"local", fmt.Sprintf("one name, %d goroutines of one Locker", hotContenders), r.loop(hotContenders, 1, 1, func(res *Result) *Outcome[Load] { return &res.Local }), r.loopTime()},
			{"reentry", "re-entry", r.reentry, 100 * time.Millisecond},
		} {
			if slices.Contains(r.cfg.Workloads, w.name) {
				jobs = append(jobs, job{s.res.Backend + ": " + w.what, w.time, func(ctx context.Context) {
					if r.answers(ctx, s) {
						w.run(ctx, s)
					}
				}})
			}
		}
	}
	// A crash is noticed after seconds: all at the same time.
	if slices.Contains(r.cfg.Workloads, "crash") {
		jobs = append(jobs, job{"all: kill the holding process", 2*r.cfg.CrashTTL + 2*time.Second, func(ctx context.Context) {
			var wg sync.WaitGroup
			for _, s := range subjects {
				wg.Go(func() {
					if r.answers(ctx, s) {
						r.crash(ctx, s)
					}
				})
			}
			wg.Wait()
		}})
	}
	if slices.Contains(r.cfg.Workloads, "loss") { // last: it ends the servers
		for _, s := range subjects {
			jobs = append(jobs, job{s.res.Backend + ": kill servers", refusalWait + time.Second, func(ctx context.Context) {
				if r.answers(ctx, s) {
					r.loss(ctx, s)
				}
			}})
		}
	}
	return jobs
}

// startTimes is what starting takes on a small machine, for the progress.
var startTimes = map[string]time.Duration{
	"redis": time.Second, "redlock": time.Second, "zookeeper": 6 * time.Second, "etcd": 4 * time.Second,
}

const settle = 100 * time.Millisecond // for opening and closing connections

func (r *runner) loopTime() time.Duration { return r.cfg.Duration + r.cfg.Duration/4 + settle }

func (r *runner) start(ctx context.Context, s *subject) {
	t, err := r.servers.start(ctx, s.res.Backend)
	if err != nil {
		s.res.Failure = err.Error()
		return
	}
	s.target = t
	s.res.Servers, s.res.Durability, s.res.Loopback = len(t.addrs), t.durability, onLoopback(t.addrs)
	if s.res.Version, err = t.version(ctx); err != nil {
		r.progress.say("%s: version: %v", s.res.Backend, err)
	}
}

// answers reports whether a lock can be had, and notes it if not, so that the
// workloads after the death of a server do not each wait for it.
func (r *runner) answers(ctx context.Context, s *subject) bool {
	if s.res.Failure != "" || ctx.Err() != nil {
		return false
	}
	err := func() error {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.callLimit)
		defer cancel()
		c, err := s.dial(distlock.WithTTL(r.cfg.TTL))
		if err != nil {
			return err
		}
		defer c.Close()
		if err := s.reachable(ctx); err != nil {
			return err
		}
		lk, err := c.Lock(ctx, "answers")
		if err != nil {
			return err
		}
		return lk.Unlock(ctx)
	}()
	if err != nil && ctx.Err() == nil {
		s.res.Failure = fmt.Sprintf("the servers do not answer: %v", err)
		r.progress.say("%s: %s", s.res.Backend, s.res.Failure)
	}
	return err == nil
}

// loop returns a workload: contenders spread over lockers and names.
func (r *runner) loop(contenders, lockers, names int, where func(*Result) *Outcome[Load]) func(context.Context, *subject) {
	return func(ctx context.Context, s *subject) {
		out := where(s.res)
		conns, closeAll, err := s.dialAll(lockers, distlock.WithTTL(r.cfg.TTL))
		if err != nil {
			out.set(Load{}, err)
			return
		}
		defer closeAll()
		l := load{
			contenders: contenders, names: numbered(fmt.Sprintf("bench-%d-%d", contenders, lockers), names),
			warmup: r.cfg.Duration / 4, duration: r.cfg.Duration, opTimeout: r.cfg.callLimit,
			requests: s.requests,
		}
		for _, c := range conns {
			l.lockers = append(l.lockers, c)
		}
		out.set(l.run(ctx))
		if out.Ran && !r.answers(ctx, s) && ctx.Err() == nil {
			// They died under way, perhaps too late for a call to fail.
			out.Ran, out.Failure = false, s.res.Failure
			return
		}
		r.note(ctx, s, out.Failure)
	}
}

func (r *runner) reentry(ctx context.Context, s *subject) {
	s.res.Reentry.set(reentry(ctx, s.target))
	r.note(ctx, s, s.res.Reentry.Failure)
}

func (r *runner) crash(ctx context.Context, s *subject) {
	if s.backend == "memory" {
		return // a process and its memory die together: nothing to measure
	}
	s.res.Crash.set(crashes(ctx, s.target, r.cfg.Hold, r.cfg.CrashTTL, r.cfg.Crashes))
	r.note(ctx, s, s.res.Crash.Failure)
}

func (r *runner) loss(ctx context.Context, s *subject) {
	res, err := loss(ctx, s.target, r.cfg.TTL)
	if errors.Is(err, errNotOurs) {
		s.res.Loss.Skipped = err.Error()
		return
	}
	s.res.Loss.set(res, err)
	r.note(ctx, s, s.res.Loss.Failure)
}

// note tells of a failure at once; the report repeats it.
func (r *runner) note(ctx context.Context, s *subject, failure string) {
	if failure != "" && ctx.Err() == nil {
		r.progress.say("%s: %s", s.res.Backend, failure)
	}
}
