package bench

import (
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		claim span
		v     float64
		want  Verdict
		how   string
	}{
		{span{1, 3}, 2, Reproduced, "within the claim"},
		{span{1, 3}, 0.75, Reproduced, "1.3 times below the claim"}, // half of it still counts
		{span{1, 3}, 0.59, Borderline, "1.7 times below the claim"},
		{span{1, 3}, 0.45, Borderline, "2.2 times below the claim"},
		{span{1, 3}, 0.39, Differs, "2.6 times below the claim"},
		{span{1, 3}, 0.03, Differs, "33 times below the claim"},
		{span{1, 3}, 4.7, Reproduced, "1.6 times above the claim"},
		{span{1, 3}, 5, Borderline, "1.7 times above the claim"},
		{span{1, 3}, 7.1, Borderline, "2.4 times above the claim"},
		{span{1, 3}, 7.3, Differs, "2.4 times above the claim"},
		{span{100_000, infinity}, 1e9, Reproduced, "within the claim"},
		{span{100_000, infinity}, 70_000, Reproduced, "1.4 times below the claim"},
		{span{100_000, infinity}, 52_000, Borderline, "1.9 times below the claim"},
		{span{100_000, infinity}, 30_000, Differs, "3.3 times below the claim"},
		{span{10_000, 10_000}, 15_000, Reproduced, "1.5 times above the claim"},
	} {
		if got, how := c.claim.judge(c.v); got != c.want || how != c.how {
			t.Errorf("%v judged by %v: %s, %s; want %s, %s", c.v, c.claim, got, how, c.want, c.how)
		}
	}
}

// load with a throughput, for comparisons that look at nothing else.
func withMany(backend string, cyclesPerSecond float64) *Result {
	r := &Result{Backend: backend}
	r.Many.set(Load{CyclesPerSecond: cyclesPerSecond, RequestsPerCycle: 2}, nil)
	return r
}

func cellOf(t *testing.T, rows []Row, dimension, backend string) Cell {
	t.Helper()
	for _, r := range rows {
		if r.Dimension != dimension {
			continue
		}
		for _, c := range r.Cells {
			if c.Backend == backend {
				return c
			}
		}
	}
	t.Fatalf("no cell %q of %s", dimension, backend)
	return Cell{}
}

func TestOrderOfSpeed(t *testing.T) {
	for _, c := range []struct {
		redis, etcd, zookeeper float64
		backend, figure        string
		want                   Verdict
	}{
		{9000, 1000, 300, "redis", "first", Reproduced},
		{9000, 1000, 300, "etcd", "second", Reproduced},
		{9000, 1000, 300, "zookeeper", "third", Reproduced},
		{9000, 300, 1000, "etcd", "third", Differs},
		{9000, 300, 1000, "zookeeper", "second", Differs},
		{9000, 1000, 900, "etcd", "second", Borderline}, // within 20 %
		{0, 1000, 900, "etcd", "", NotMeasured},
	} {
		rows := compare([]*Result{withMany("redis", c.redis), withMany("etcd", c.etcd), withMany("zookeeper", c.zookeeper)})
		if got := cellOf(t, rows, "order of speed", c.backend); got.Verdict != c.want || got.Figure != c.figure {
			t.Errorf("%+v: %s, %q", c, got.Verdict, got.Figure)
		}
	}
	rows := compare([]*Result{withMany("redis", 9000), withMany("etcd", 1000), withMany("zookeeper", 300)})
	if got := cellOf(t, rows, "performance", "etcd"); got.Verdict != Reproduced {
		t.Errorf("etcd in the middle: %s, %s", got.Verdict, got.Reason)
	}
	rows = compare([]*Result{withMany("redis", 9000), withMany("etcd", 100), withMany("zookeeper", 300)})
	if got := cellOf(t, rows, "performance", "etcd"); got.Verdict != Differs {
		t.Errorf("etcd at the end: %s, %s", got.Verdict, got.Reason)
	}
}

func TestCrashVerdicts(t *testing.T) {
	const ttl = 3 * time.Second
	for _, c := range []struct {
		backend string
		took    time.Duration
		want    Verdict
	}{
		{"redis", 2500 * time.Millisecond, Reproduced},
		{"redis", 100 * time.Millisecond, Differs},
		{"zookeeper", 3200 * time.Millisecond, Differs},
		{"zookeeper", 20 * time.Millisecond, Reproduced},
		{"etcd", 3 * time.Second, Reproduced},
		{"redlock", 2500 * time.Millisecond, NotComparable}, // the chapter has no such column
	} {
		r := &Result{Backend: c.backend}
		r.Crash.set(Crash{TTL: ttl, Samples: []time.Duration{c.took}}, nil)
		if got := cellOf(t, compare([]*Result{r}), "client crash", c.backend); got.Verdict != c.want {
			t.Errorf("%s after %v: %s (%s), want %s", c.backend, c.took, got.Verdict, got.Reason, c.want)
		}
	}
}

func TestFairnessVerdicts(t *testing.T) {
	for _, c := range []struct {
		backend   string
		overtaken float64
		want      Verdict
	}{
		{"redis", 0.3, Reproduced}, {"redis", 0, Differs},
		{"zookeeper", 0, Reproduced}, {"zookeeper", 0.3, Differs},
		{"etcd", 0.004, Reproduced}, {"etcd", 0.02, Differs},
	} {
		r := &Result{Backend: c.backend}
		r.Hot.set(Load{Overtaken: c.overtaken}, nil)
		if got := cellOf(t, compare([]*Result{r}), "fairness", c.backend); got.Verdict != c.want {
			t.Errorf("%s, overtaken %v: %s, want %s", c.backend, c.overtaken, got.Verdict, c.want)
		}
	}
}

func TestFormats(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1500 * time.Nanosecond:   "1.5 µs",
		34 * time.Microsecond:    "34 µs",
		1234 * time.Microsecond:  "1.23 ms",
		45600 * time.Microsecond: "45.6 ms",
		345 * time.Millisecond:   "345 ms",
		2345 * time.Millisecond:  "2.35 s",
	} {
		if got := dur(d); got != want {
			t.Errorf("%d ns: %q, want %q", d, got, want)
		}
	}
	for v, want := range map[float64]string{0.5: "0.5", 57.83: "57.8", 304.4: "304", 1234: "1,230", 99960: "100,000", 1234567: "1,230,000"} {
		if got := count(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
