package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"example.com/distlock"
	"example.com/distlock/internal/testbed"
)

func writers(r *Report) map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{"terminal": r.WriteTerminal, "Markdown": r.WriteMarkdown, "JSON": r.WriteJSON}
}

func render(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// full is a Report with a figure in every cell.
func full() *Report {
	r := &Report{Setup: describe(time.Now())}
	for i, b := range Default {
		res := &Result{Backend: b, Servers: 3, Version: "v1", Durability: "on disk", Loopback: true, Code: Code{Own: 900 + i, Lua: 100}}
		l := Load{Cycles: 1000, CyclesPerSecond: 9000 / float64(i+1), RequestsPerCycle: 2, Jain: 1,
			Acquire: Quantiles{1, 1e6, 2e6, 3e6, 4e6, 5e6}, Handoff: Quantiles{1, 1e6, 2e6, 3e6, 4e6, 5e6}}
		res.Alone.set(l, nil)
		res.Many.set(l, nil)
		res.Hot.set(l, nil)
		res.Local.set(l, nil)
		res.Crash.set(Crash{TTL: 3 * time.Second, Samples: []time.Duration{2e9, 25e8, 3e9}}, nil)
		res.Reentry.set(Reentry{Counted: true, Refused: true}, nil)
		res.Loss.set(Loss{Servers: 3, Minority: 1, Took: 1e9, Majority: 2, Waited: 3e9}, nil)
		r.Results = append(r.Results, res)
	}
	r.finish(time.Now())
	return r
}

func TestTable(t *testing.T) {
	r := full()
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	for _, row := range r.Table {
		if len(row.Cells) != len(Default) {
			t.Errorf("%s has %d cells", row.Dimension, len(row.Cells))
		}
		for _, c := range row.Cells {
			if c.Verdict == "" || c.Verdict == NotMeasured || c.Reason == "" {
				t.Errorf("%s, %s: %+v", row.Dimension, c.Backend, c)
			}
			if c.Claim == "" && c.Verdict != NotComparable {
				t.Errorf("%s, %s: %s without a claim", row.Dimension, c.Backend, c.Verdict)
			}
		}
	}
	// What the chapter says about its three must be in every report.
	for _, want := range []string{"CAP tendency", "performance", "acquire latency", "client crash", "re-entry", "fairness", "complexity", "typical use"} {
		for _, b := range claimed {
			if cellOf(t, r.Table, want, b).Claim == "" {
				t.Errorf("%s of %s has no claim", want, b)
			}
		}
	}
}

func TestTerminal(t *testing.T) {
	out := render(t, full().WriteTerminal)
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 120 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	_, notes, _ := strings.Cut(out, "\nNotes\n")
	for _, ref := range regexp.MustCompile(`\[\d+\]`).FindAllString(out, -1) {
		if !strings.Contains(notes, ref+" ") {
			t.Errorf("no note %s", ref)
		}
	}
}

func TestMarkdown(t *testing.T) {
	r := full()
	r.Results[0].Hot.set(Load{}, errors.New("a | b\nc"))
	r.Table, r.Failures = nil, nil
	r.finish(time.Now())
	out := render(t, r.WriteMarkdown)
	rows := 0
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "|") {
			rows++
			if n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); n != len(Default)+2 {
				t.Errorf("%d bars: %s", n, line)
			}
		}
	}
	if rows != len(r.Table)+2 {
		t.Errorf("%d rows, want %d", rows, len(r.Table)+2)
	}
	if !strings.Contains(out, `a \| b c`) {
		t.Error("the failure is not shown, or breaks the table")
	}
}

func TestJSON(t *testing.T) {
	var back struct {
		Setup   struct{ CPU, Go string }
		Results []struct {
			Backend string
			Alone   struct {
				Cycles  int64
				Acquire struct {
					P50 float64 `json:"p50_us"`
				}
			}
		}
		Table []Row
	}
	if err := json.Unmarshal([]byte(render(t, full().WriteJSON)), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Results) != 4 || back.Results[0].Alone.Acquire.P50 != 1000 || back.Setup.Go == "" || len(back.Table) == 0 {
		t.Errorf("%+v", back)
	}
}

func TestErr(t *testing.T) {
	for _, c := range []struct {
		r    Report
		want error
	}{
		{Report{}, nil},
		{Report{Failures: []string{"x"}}, ErrIncomplete},
		{Report{Failures: []string{"x"}, Interrupted: true}, ErrInterrupted},
		{Report{Violations: []string{"x"}, Interrupted: true}, ErrViolation},
	} {
		if got := c.r.Err(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.r, got, c.want)
		}
	}
}

func TestRunInMemory(t *testing.T) {
	var progress bytes.Buffer
	r, err := Run(t.Context(), Config{Backends: []string{"memory"}, Duration: 300 * time.Millisecond, Progress: &progress})
	if err != nil || r.Err() != nil {
		t.Fatalf("%v, %v", err, r.Err())
	}
	if c := cellOf(t, r.Table, "re-entry", "memory"); !strings.HasPrefix(c.Figure, "counted") {
		t.Errorf("%+v", c)
	}
	if lines := strings.Split(strings.TrimSpace(progress.String()), "\n"); len(lines) != 8 || !strings.HasPrefix(lines[1], "[ 2/8] memory: one caller") {
		t.Errorf("progress:\n%s", progress.String())
	}
}

func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	start := time.Now()
	r, err := Run(ctx, Config{Backends: []string{"memory"}, Duration: 10 * time.Second})
	if err != nil || !errors.Is(r.Err(), ErrInterrupted) || time.Since(start) > 5*time.Second {
		t.Fatalf("%v, %v after %v", err, r.Err(), time.Since(start))
	}
	if c := cellOf(t, r.Table, "acquire latency", "memory"); c.Verdict != NotMeasured {
		t.Errorf("%+v", c)
	}
}

func TestRunRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, cfg := range []Config{
		{Backends: []string{"abacus"}}, {Workloads: []string{"sleep"}}, {Duration: -time.Second},
	} {
		if _, err := Run(t.Context(), cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

// onServers runs fn on each backend's servers.
func onServers(t *testing.T, fn func(t *testing.T, s *target)) {
	for _, b := range Default {
		t.Run(b, func(t *testing.T) { fn(t, serve(t, b)) })
	}
}

// serve starts what the backend needs, durable as in Run.
func serve(t testing.TB, backend string, opts ...testbed.Option) *target {
	t.Helper()
	s := &target{backend: backend}
	switch backend {
	case "redis":
		s.addrs = []string{testbed.Redis(t, opts...).Addr()}
	case "redlock":
		for _, n := range testbed.RedisNodes(t, 5, opts...) {
			s.addrs = append(s.addrs, n.Addr())
		}
	case "zookeeper":
		s.addrs = testbed.ZooKeeper(t, 3, append(slices.Clone(opts), testbed.Durable())...).Addrs()
	case "etcd":
		s.addrs = testbed.Etcd(t, 3, append(slices.Clone(opts), testbed.Durable())...).Addrs()
	}
	return s
}

func TestCrash(t *testing.T) {
	hold, err := holderCommand()
	if err != nil {
		t.Fatal(err)
	}
	onServers(t, func(t *testing.T, s *target) {
		t.Parallel()
		const ttl = 2 * time.Second
		got, err := crashes(t.Context(), s, hold, ttl, 1)
		if err != nil || len(got.Violations) > 0 {
			t.Fatalf("%v, %v", err, got.Violations)
		}
		// Neither at once, as if a broken connection were the end of a lock, nor long
		// after the TTL. A late renewal and a slow machine move it either way.
		if d := got.median(); d < ttl/10 || d > 5*ttl {
			t.Errorf("noticed after %v", d)
		}
	})
}

func TestRequestsAreCounted(t *testing.T) {
	onServers(t, func(t *testing.T, s *target) {
		t.Parallel()
		c, err := s.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l := load{
			contenders: 1, lockers: []distlock.Locker{c}, names: []string{testbed.Name(t)},
			warmup: 50 * time.Millisecond, duration: 2 * time.Second, opTimeout: 20 * time.Second, requests: s.requests,
		}
		got, err := l.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		least := map[string]float64{"redis": 1.9, "redlock": 5.9, "zookeeper": 1.9, "etcd": 1.9}[s.backend]
		least -= 1 / float64(got.Cycles)                               // the Lock of the first cycle may lie before the window
		if got.RequestsPerCycle < least || got.RequestsPerCycle > 50 { // heartbeats weigh the more, the fewer the cycles
			t.Errorf("%.2f requests per cycle", got.RequestsPerCycle)
		}
		if v, err := s.version(t.Context()); err != nil || !strings.ContainsAny(v, "0123456789") {
			t.Errorf("version %q, %v", v, err)
		}
	})
}

// One Redis is killed in the middle of a run: the workload under way and those
// after it say so, and nothing hangs.
func TestRunOnServersThatDie(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t, testbed.Own())
	s := &subject{target: &target{backend: "redis", addrs: []string{server.Addr()}}, res: &Result{Backend: "redis"}}
	r := &runner{cfg: Config{Duration: 20 * time.Second, TTL: 2 * time.Second, callLimit: 3 * time.Second}, progress: newProgress(nil, nil)}
	defer r.progress.stop()
	time.AfterFunc(time.Second, func() { server.Kill(t) })
	start := time.Now()
	r.loop(4, 4, 1, func(res *Result) *Outcome[Load] { return &res.Hot })(t.Context(), s)
	if s.res.Hot.Ran || s.res.Hot.Failure == "" {
		t.Errorf("hot: %+v", s.res.Hot)
	}
	if r.answers(t.Context(), s) || s.res.Failure == "" {
		t.Error("a dead server answers")
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	if c := cellOf(t, compare([]*Result{s.res}), "acquire latency", "redis"); c.Verdict != NotMeasured || !strings.Contains(c.Reason, "do not answer") {
		t.Errorf("%+v", c)
	}
}

// One of five nodes dies near the end: nothing fails, but the figures are not
// those of five nodes.
func TestRunOnServersOfWhichOneDies(t *testing.T) {
	t.Parallel()
	nodes := testbed.RedisNodes(t, 5, testbed.Own())
	s := &subject{target: &target{backend: "redlock"}, res: &Result{Backend: "redlock"}}
	for _, n := range nodes {
		s.addrs = append(s.addrs, n.Addr())
	}
	r := &runner{cfg: Config{Duration: 2 * time.Second, TTL: 2 * time.Second, callLimit: 10 * time.Second}, progress: newProgress(nil, nil)}
	defer r.progress.stop()
	time.AfterFunc(500*time.Millisecond, func() { nodes[3].Kill(t) })
	r.loop(2, 2, 1, func(res *Result) *Outcome[Load] { return &res.Hot })(t.Context(), s)
	if s.res.Hot.Ran || !strings.Contains(s.res.Hot.Failure, "server 4 of 5") {
		t.Errorf("hot: %+v", s.res.Hot)
	}
}

// Two of five nodes may be lost, three may not.
func TestLoss(t *testing.T) {
	t.Parallel()
	s := &target{backend: "redlock"}
	byAddr := map[string]*testbed.Server{}
	for _, n := range testbed.RedisNodes(t, 5, testbed.Own()) {
		s.addrs = append(s.addrs, n.Addr())
		byAddr[n.Addr()] = n
	}
	s.kill = func(ctx context.Context, addr string) error { return byAddr[addr].Fault().Kill(ctx) }
	got, err := loss(t.Context(), s, 10*time.Second)
	if err != nil || len(got.Violations) > 0 {
		t.Fatalf("%v, %v", err, got.Violations)
	}
	if got.Minority != 2 || got.Majority != 3 || got.Granted || got.Error == "" || got.Took == 0 || got.Waited < refusalWait {
		t.Errorf("%+v", got)
	}
	res := &Result{Backend: "redlock"}
	res.Loss.set(got, err)
	if c := cellOf(t, compare([]*Result{res}), "loss of the majority", "redlock"); !strings.HasPrefix(c.Figure, "3 of 5 killed: no lock in ") {
		t.Errorf("%+v", c)
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		s     string
		width int
		parts bool
		want  []string
	}{
		{"p50 36 µs, p90 68 µs, p99 121 µs", 25, true, []string{"p50 36 µs, p90 68 µs,", "p99 121 µs"}},
		{"p50 1.59 ms, p90 2.31 ms, p99 5.17 ms", 23, true, []string{"p50 1.59 ms,", "p90 2.31 ms,", "p99 5.17 ms"}},
		{"one, two three", 9, false, []string{"one, two", "three"}},
		{"one, two three", 9, true, []string{"one,", "two three"}},
		{"one, two three", 8, true, []string{"one, two", "three"}}, // the part is too long for any line
		{"takes 249 µs", 10, false, []string{"takes", "249 µs"}},
		{"abcdefgh", 3, true, []string{"abc", "def", "gh"}},
		{"", 3, true, nil},
	} {
		if got := wrap(c.s, c.width, c.parts); !slices.Equal(got, c.want) {
			t.Errorf("%q in %d columns: %q, want %q", c.s, c.width, got, c.want)
		}
	}
}

func TestDirections(t *testing.T) {
	for _, c := range []struct {
		p50  time.Duration
		qps  float64
		want [2]string // of latency, of throughput
	}{
		{30 * time.Microsecond, 1_000, [2]string{faster, slower}},
		{2 * time.Millisecond, 200_000, [2]string{"", ""}},
		{time.Second, 200_000, [2]string{slower, ""}},
	} {
		r := &Result{Backend: "redis"}
		l := Load{Acquire: Quantiles{Count: 1, P50: c.p50}, CyclesPerSecond: c.qps, RequestsPerCycle: 1}
		r.Alone.set(l, nil)
		r.Many.set(l, nil)
		rows := compare([]*Result{r})
		got := [2]string{cellOf(t, rows, "acquire latency", "redis").Direction, cellOf(t, rows, "performance", "redis").Direction}
		if got != c.want {
			t.Errorf("%v, %v: %q, want %q", c.p50, c.qps, got, c.want)
		}
	}
}
