package bench

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Row is one line of the comparison.
type Row struct {
	Dimension string `json:"dimension"`
	How       string `json:"how"`     // what was measured
	Claimed   bool   `json:"claimed"` // the chapter says something about it
	Cells     []Cell `json:"cells"`
}

// A Cell sets a claim of the chapter beside what was measured.
type Cell struct {
	Backend   string  `json:"backend"`
	Claim     string  `json:"claim,omitempty"`
	Figure    string  `json:"figure,omitempty"`
	Verdict   Verdict `json:"verdict"`
	Direction string  `json:"direction,omitempty"` // of a number that differs: faster or slower than claimed
	Reason    string  `json:"reason"`
}

// The backends of the chapter's table, in its order; it has none for Redlock.
var claimed = []string{"redis", "zookeeper", "etcd"}

const noClaim = "the chapter makes no claim here"

// A dimension is how a row comes about.
type dimension struct {
	name, how string
	claims    map[string]string
	cell      func(*Result, *comparison) Cell // Claim and Backend are filled in later
}

// A comparison is what a cell may look at beside its own backend.
type comparison struct{ results map[string]*Result }

// compare judges every cell.
func compare(results []*Result) []Row {
	all := &comparison{results: map[string]*Result{}}
	for _, r := range results {
		all.results[r.Backend] = r
	}
	var rows []Row
	for _, d := range dimensions {
		row := Row{Dimension: d.name, How: d.how}
		for _, r := range results {
			c := d.cell(r, all)
			c.Backend, c.Claim = r.Backend, d.claims[r.Backend]
			if c.Claim == "" && (c.Verdict == "" || c.Verdict == Reproduced || c.Verdict == Differs || c.Verdict == Borderline) {
				c.Verdict, c.Direction, c.Reason = NotComparable, "", noClaim
			}
			row.Claimed = row.Claimed || c.Claim != ""
			row.Cells = append(row.Cells, c)
		}
		rows = append(rows, row)
	}
	return rows
}

var dimensions = []dimension{
	{
		name:   "CAP tendency",
		how:    "servers are killed: a minority, then the majority; who can still lock?",
		claims: map[string]string{"redis": "AP", "zookeeper": "CP", "etcd": "CP (Raft)"},
		cell: func(r *Result, _ *comparison) Cell {
			return ofLoss(r, func(l Loss) Cell {
				then := "no lock"
				if l.Granted {
					then = "still a lock"
				}
				if l.Servers == 1 {
					return Cell{Figure: "the only server lost: " + then, Verdict: NotComparable,
						Reason: "the claim is about a replica that takes over; here is one server without a replica"}
				}
				c := Cell{Figure: fmt.Sprintf("%d of %d lost: lock; %d lost: %s", l.Minority, l.Servers, l.Majority, then)}
				c.Verdict, c.Reason = Reproduced, "a lock was granted while a majority of the servers was left, and not after: consistency before availability"
				if l.Granted {
					c.Verdict, c.Reason = Differs, "a lock was granted without a majority of the servers"
				}
				return c
			})
		},
	},
	{
		name:   "performance",
		how:    fmt.Sprintf("%d goroutines, a name each, one Locker, closed loop", manyContenders),
		claims: map[string]string{"redis": "100k+ QPS", "zookeeper": "low: each write needs a majority (Q6: 10k QPS)", "etcd": "middle"},
		cell: func(r *Result, all *comparison) Cell {
			return ofLoad(r, r.Many, func(l Load) Cell {
				figure := fmt.Sprintf("%s cycles/s", count(l.CyclesPerSecond))
				qps := l.CyclesPerSecond * l.RequestsPerCycle
				if qps > 0 {
					figure += fmt.Sprintf(", %s requests/s", count(qps))
				}
				var c Cell
				switch claim, ok := qpsClaims[r.Backend]; {
				case ok && qps == 0:
					c = Cell{Verdict: NotMeasured, Reason: "requests were not counted"}
				case ok:
					var how string
					c, how = claim.throughput(qps)
					c.Reason = fmt.Sprintf("requests/s are %s; %d cores are shared by servers and callers", how, runtime.GOMAXPROCS(0))
				case r.Backend == "etcd":
					c = all.middle(r, func(r *Result) float64 { return r.Many.Value.CyclesPerSecond })
				}
				c.Figure = figure
				return c
			})
		},
	},
	{
		name:   "order of speed",
		how:    "rank by the cycles/s of the row above, among the chapter's three",
		claims: map[string]string{"redis": "first", "etcd": "second", "zookeeper": "third"},
		cell: func(r *Result, all *comparison) Cell {
			if !slices.Contains(claimed, r.Backend) {
				return Cell{Verdict: NotComparable, Reason: "the chapter ranks Redis, etcd and ZooKeeper"}
			}
			return ofLoad(r, r.Many, func(l Load) Cell { return all.rank(r) })
		},
	},
	{
		name:   "acquire latency",
		how:    "Lock of a free name, one caller, closed loop",
		claims: map[string]string{"redis": "1–3 ms (Q6: 1 ms)", "zookeeper": "10–50 ms", "etcd": "5–20 ms"},
		cell: func(r *Result, _ *comparison) Cell {
			return ofLoad(r, r.Alone, func(l Load) Cell {
				q := l.Acquire
				var c Cell
				if claim, ok := latencyClaims[r.Backend]; ok {
					var how string
					c, how = claim.latency(float64(q.P50) / float64(time.Millisecond))
					c.Reason = fmt.Sprintf("p50 is %s; %s; %s", how, r.distance(), r.Durability)
				}
				c.Figure = fmt.Sprintf("p50 %s, p90 %s, p99 %s", dur(q.P50), dur(q.P90), dur(q.P99))
				return c
			})
		},
	},
	{
		name: "client crash",
		how:  "from kill -9 of the holding process until a waiter has the lock; median, range, and the median as a share of the TTL",
		claims: map[string]string{"redis": "by TTL expiry (coarse)", "zookeeper": "heartbeat lost, released at once (Q6: seconds)",
			"etcd": "lease heartbeat"},
		cell: func(r *Result, _ *comparison) Cell {
			if r.Backend == "memory" {
				return Cell{Verdict: NotComparable, Reason: "a process and its memory die together"}
			}
			return outcome(r, r.Crash, func(c Crash) []string { return c.Violations }, func(c Crash) Cell {
				cell := Cell{Figure: fmt.Sprintf("%s (%s–%s), %d kills, %.2f × TTL", dur(c.median()),
					dur(c.Samples[0]), dur(c.Samples[len(c.Samples)-1]), len(c.Samples), c.ofTTL())}
				atOnce := c.ofTTL() < 0.1
				expiry := c.ofTTL() >= 0.5 && c.ofTTL() <= 1.5
				switch {
				case r.Backend == "zookeeper" && atOnce:
					cell.Verdict, cell.Reason = Reproduced, "released within a tenth of the session timeout"
				case r.Backend == "zookeeper":
					cell.Verdict, cell.Reason = Differs, "a session ends at its timeout, not with its socket; what Q6 says, heartbeat and seconds, holds"
				case expiry:
					cell.Verdict, cell.Reason = Reproduced, "nothing but the end of the TTL, counted from the last renewal (every TTL/3), tells that the process is dead"
				default:
					cell.Verdict, cell.Reason = Differs, "the time is not that of a TTL that runs out after the last renewal"
				}
				return cell
			})
		},
	},
	{
		name:   "re-entry",
		how:    "the holder calls Lock again with the context of its lock, with and without the option Reentrant; requests that this sends",
		claims: map[string]string{"redis": "do it yourself", "zookeeper": "do it yourself (count in the node)", "etcd": "do it yourself"},
		cell: func(r *Result, _ *comparison) Cell {
			return outcome(r, r.Reentry, nil, func(re Reentry) Cell {
				c := Cell{Figure: "not counted"}
				if re.Counted {
					c.Figure = fmt.Sprintf("counted by the library, %d requests", re.Requests)
				}
				if re.Refused {
					c.Figure += "; without the option refused"
				}
				switch {
				case !re.Counted:
					c.Verdict, c.Reason = Reproduced, "a second Lock got another token or ended the first holding"
				case re.Requests > 0:
					c.Verdict, c.Reason = Differs, "requests were sent: the servers took part in it"
				case r.Backend == "zookeeper":
					c.Verdict, c.Reason = Differs, "the client has to count, as claimed, but no count in the node is needed: the library's is in the process, by context"
				default:
					c.Verdict, c.Reason = Reproduced, "the servers know nothing of it, so the client has to count; the library does, in the process, by context"
				}
				return c
			})
		},
	},
	{
		name: "fairness",
		how: fmt.Sprintf("%d contenders for one name, each with its own Locker and connection; overtaken = share of the waits during which some rival was served twice; up to %s counts as order of arrival",
			hotContenders, percent(fifoTolerance)),
		claims: map[string]string{"redis": "none by default; FIFO in Redisson", "zookeeper": "FIFO by nature", "etcd": "possible with watch"},
		cell: func(r *Result, _ *comparison) Cell {
			return ofLoad(r, r.Hot, func(l Load) Cell {
				fifo := l.Overtaken <= fifoTolerance
				c := Cell{Figure: fmt.Sprintf("overtaken in %s, Jain %.3f, longest wait %s", percent(l.Overtaken), l.Jain, dur(l.Acquire.Max))}
				if fifo {
					c.Reason = "served in order of arrival"
				} else {
					c.Reason = "not served in order of arrival: whoever asks at the right moment gets it"
				}
				c.Verdict = Differs
				if fifo == (r.Backend != "redis") {
					c.Verdict = Reproduced
				}
				return c
			})
		},
	},
	{
		name:   "complexity",
		how:    "requests per lock and unlock of a free name (renewals and heartbeats included); lines of code of the backend, without tests, comments and the shared core",
		claims: map[string]string{"redis": "simple (one command)", "zookeeper": "middle (needs Curator)", "etcd": "middle"},
		cell: func(r *Result, all *comparison) Cell {
			if r.Code.Own == 0 {
				return Cell{Verdict: NotMeasured, Reason: "the source of the backends is not on this machine"}
			}
			c := Cell{Figure: thousands(r.lines()) + " lines"}
			if l := r.Alone.Value; r.Alone.Ran && l.RequestsPerCycle > 0 {
				c.Figure = fmt.Sprintf("%.1f requests/cycle, %s", l.RequestsPerCycle, c.Figure)
			}
			redis := all.results["redis"]
			switch l := r.Alone.Value; {
			case r.Backend == "redis" && l.RequestsPerCycle == 0:
				c.Verdict, c.Reason = NotMeasured, "requests were not counted in this run"
			case r.Backend == "redis" && l.RequestsPerCycle < 2.5:
				c.Verdict, c.Reason = Reproduced, "one request (a script) takes the lock and one gives it back; the lines are what makes it safe to use"
			case r.Backend == "redis":
				c.Verdict, c.Reason = Differs, "a cycle takes more than one request each way"
			case redis == nil || redis.Code.Own == 0:
				c.Verdict, c.Reason = NotMeasured, "Redis, to which this compares, was not in this run"
			case near(float64(r.lines()), float64(redis.lines())):
				c.Verdict, c.Reason = Borderline, fmt.Sprintf("about as much code as for Redis (%s lines)", thousands(redis.lines()))
			case r.lines() > redis.lines():
				c.Verdict, c.Reason = Reproduced, fmt.Sprintf("more code than for Redis (%s lines), which holds the whole recipe: no library of recipes is needed", thousands(redis.lines()))
			default:
				c.Verdict, c.Reason = Differs, fmt.Sprintf("less code than for Redis (%s lines): what Redis lacks on the server is code in the client", thousands(redis.lines()))
			}
			return c
		},
	},
	{
		name: "typical use",
		how:  "advice, judged by the other rows",
		claims: map[string]string{"redis": "high concurrency, tolerates rare edge cases", "zookeeper": "strong consistency (finance, configuration)",
			"etcd": "Kubernetes controller election"},
		cell: func(r *Result, _ *comparison) Cell {
			return Cell{Figure: uses[r.Backend], Verdict: NotComparable, Reason: "advice is not a figure"}
		},
	},
	{
		name: "hot name",
		how:  fmt.Sprintf("%d contenders for one name, each with its own Locker and connection", hotContenders),
		cell: func(r *Result, _ *comparison) Cell { return ofLoad(r, r.Hot, throughput) },
	},
	{
		name: "hot name in one Locker",
		how:  fmt.Sprintf("%d goroutines, one name, one Locker: one at a time goes to the server", hotContenders),
		cell: func(r *Result, _ *comparison) Cell { return ofLoad(r, r.Local, throughput) },
	},
	{
		name: "hand-off",
		how:  "from the call of Unlock to the next holder's return from Lock, hot name, own Lockers",
		cell: func(r *Result, _ *comparison) Cell {
			return ofLoad(r, r.Hot, func(l Load) Cell {
				return Cell{Figure: fmt.Sprintf("p50 %s, p99 %s", dur(l.Handoff.P50), dur(l.Handoff.P99))}
			})
		},
	},
	{
		name:   "wake-up cost",
		how:    "requests per cycle on the hot name, own Lockers (renewals and heartbeats included)",
		claims: map[string]string{"redis": "polling or subscription, dearer than a watch", "zookeeper": "watch, cheaper than Redis"},
		cell: func(r *Result, all *comparison) Cell {
			return ofLoad(r, r.Hot, func(l Load) Cell {
				if l.RequestsPerCycle == 0 {
					return Cell{Verdict: NotMeasured, Reason: "requests were not counted"}
				}
				c := Cell{Figure: fmt.Sprintf("%.1f requests/cycle", l.RequestsPerCycle)}
				redis, zk := all.results["redis"], all.results["zookeeper"]
				if redis == nil || zk == nil || redis.Hot.Value.RequestsPerCycle == 0 || zk.Hot.Value.RequestsPerCycle == 0 {
					c.Verdict, c.Reason = NotMeasured, "needs Redis and ZooKeeper in one run"
					return c
				}
				a, b := redis.Hot.Value.RequestsPerCycle, zk.Hot.Value.RequestsPerCycle
				c.Reason = fmt.Sprintf("Redis %.1f, ZooKeeper %.1f requests per cycle at %d contenders", a, b, hotContenders)
				switch {
				case math.Abs(a-b) <= edge*b:
					c.Verdict = Borderline
				case b < a:
					c.Verdict = Reproduced
				default:
					c.Verdict = Differs
				}
				return c
			})
		},
	},
	{
		name: "loss of a minority",
		how:  "from the kill, the leader first where there is one, until the next lock is granted",
		cell: func(r *Result, _ *comparison) Cell {
			return ofLoss(r, func(l Loss) Cell {
				if l.Minority == 0 {
					return Cell{Verdict: NotComparable, Reason: "one server has no minority"}
				}
				return Cell{Figure: fmt.Sprintf("%d of %d killed: lock after %s", l.Minority, l.Servers, dur(l.Took))}
			})
		},
	},
	{
		name: "loss of the majority",
		how:  "one more is killed; a lock is asked for and waited for as long as the figure says",
		cell: func(r *Result, _ *comparison) Cell {
			return ofLoss(r, func(l Loss) Cell {
				if l.Granted {
					return Cell{Figure: fmt.Sprintf("%d of %d killed: granted", l.Majority, l.Servers)}
				}
				return Cell{Figure: fmt.Sprintf("%d of %d killed: no lock in %s", l.Majority, l.Servers, dur(l.Waited))}
			})
		},
	},
	{
		name: "fencing token",
		how:  "what its number is; order was checked at every grant of this run",
		cell: func(r *Result, _ *comparison) Cell {
			grants := r.grants()
			if vs := r.violations(); len(vs) > 0 {
				return Cell{Figure: "see the violations", Verdict: Violated, Reason: vs[0]}
			}
			if grants == 0 {
				return Cell{Verdict: NotMeasured, Reason: cmp.Or(r.Failure, r.missing, "no grant in this run")}
			}
			return Cell{Figure: fmt.Sprintf("%s; in order over %s grants", numbers[r.Backend], count(float64(grants)))}
		},
	},
	{
		name:   "operations",
		how:    "servers that were running, and their version",
		claims: map[string]string{"redis": "usually there already", "zookeeper": "deployed for it"},
		cell: func(r *Result, _ *comparison) Cell {
			if r.Servers == 0 {
				return Cell{Figure: "none", Verdict: NotComparable, Reason: "no server"}
			}
			return Cell{Figure: fmt.Sprintf("%d × %s", r.Servers, cmp.Or(r.Version, "unknown version")),
				Verdict: NotComparable, Reason: "what is there already differs from house to house"}
		},
	},
}

// What the chapter claims in numbers.
var (
	qpsClaims     = map[string]span{"redis": {100_000, infinity}, "zookeeper": {10_000, 10_000}}
	latencyClaims = map[string]span{"redis": {1, 3}, "zookeeper": {10, 50}, "etcd": {5, 20}} // ms
)

// fifoTolerance is the share of overtaken waits up to which the order counts as
// that of arrival: the witness sees the call of Lock, and a rival may be served
// twice before the request of that call is at the server.
const fifoTolerance = 0.01

var uses = map[string]string{
	"memory":    "tests of code that locks",
	"redis":     "where a rare double run does no harm, or is fenced",
	"redlock":   "as Redis, where one server may fail",
	"zookeeper": "where a grant must survive the loss of a server",
	"etcd":      "where a grant must survive the loss of a server",
}

var numbers = map[string]string{
	"memory": "counter", "redis": "hybrid clock (10 µs)", "redlock": "hybrid clock, agreed by a majority",
	"zookeeper": "czxid", "etcd": "create revision",
}

func throughput(l Load) Cell {
	return Cell{Figure: fmt.Sprintf("%s hand-offs/s, wait p50 %s, p99 %s, Jain %.3f",
		count(l.CyclesPerSecond), dur(l.Acquire.P50), dur(l.Acquire.P99), l.Jain)}
}

// outcome makes the cell of a measurement that came about, and says why another
// did not. A violation voids the figures: a lock that excludes nobody is fast.
func outcome[T any](r *Result, o Outcome[T], violations func(T) []string, cell func(T) Cell) Cell {
	if violations != nil {
		if vs := violations(o.Value); len(vs) > 0 {
			return Cell{Figure: "void", Verdict: Violated, Reason: vs[0]}
		}
	}
	if o.Ran {
		return cell(o.Value)
	}
	return Cell{Verdict: NotMeasured, Reason: cmp.Or(o.Failure, o.Skipped, r.Failure, r.missing, "not part of this run")}
}

func ofLoad(r *Result, o Outcome[Load], cell func(Load) Cell) Cell {
	return outcome(r, o, func(l Load) []string { return l.Violations }, func(l Load) Cell {
		c := cell(l)
		if l.Lost > 0 {
			c.Figure += fmt.Sprintf(" (%d lost while held)", l.Lost)
		}
		if l.Repeated > 0 {
			c.Figure += fmt.Sprintf(" (%d Unlocks repeated)", l.Repeated)
		}
		return c
	})
}

func ofLoss(r *Result, cell func(Loss) Cell) Cell {
	if r.Backend == "memory" {
		return Cell{Verdict: NotComparable, Reason: "there is no server"}
	}
	return outcome(r, r.Loss, func(l Loss) []string { return l.Violations }, cell)
}

// distance says how far the servers were.
func (r *Result) distance() string {
	if r.Loopback {
		return "over loopback, so without a network's time"
	}
	return "over the network"
}

// lines is the size of r's backend.
func (r *Result) lines() int { return r.Code.Own + r.Code.Lua + r.Code.Shared }

// middle judges "between the other two of the chapter".
func (c *comparison) middle(r *Result, of func(*Result) float64) (cell Cell) {
	redis, zk := c.results["redis"], c.results["zookeeper"]
	if redis == nil || zk == nil || of(redis) == 0 || of(zk) == 0 {
		cell.Verdict, cell.Reason = NotMeasured, "needs Redis and ZooKeeper in one run"
		return cell
	}
	cell.Verdict, cell.Reason = Differs, "not between the other two: "
	switch v := of(r); {
	case near(v, of(zk)) || near(v, of(redis)):
		cell.Verdict, cell.Reason = Borderline, "level with a neighbour: "
	case v > min(of(redis), of(zk)) && v < max(of(redis), of(zk)):
		cell.Verdict, cell.Reason = Reproduced, "between the other two: "
	}
	cell.Reason += fmt.Sprintf("Redis %s, etcd %s, ZooKeeper %s cycles/s", count(of(redis)), count(of(r)), count(of(zk)))
	return cell
}

// rank sets r's place among the chapter's three beside the claimed one.
func (c *comparison) rank(r *Result) Cell {
	want := []string{"redis", "etcd", "zookeeper"}
	order := slices.Clone(want)
	speed := func(b string) float64 {
		if res := c.results[b]; res != nil {
			return res.Many.Value.CyclesPerSecond
		}
		return 0
	}
	for _, b := range want {
		if speed(b) == 0 {
			return Cell{Verdict: NotMeasured, Reason: "needs all three in one run"}
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(speed(b), speed(a)) })
	at := slices.Index(order, r.Backend)
	cell := Cell{Figure: []string{"first", "second", "third"}[at], Verdict: Differs}
	if want[at] == r.Backend {
		cell.Verdict = Reproduced
	}
	for _, b := range want {
		if b != r.Backend && near(speed(r.Backend), speed(b)) {
			cell.Verdict = Borderline
		}
	}
	for i, b := range order {
		order[i] = fmt.Sprintf("%s %s", title(b), count(speed(b)))
	}
	cell.Reason = strings.Join(order, " > ") + " cycles/s"
	return cell
}

// dur formats with about three digits.
func dur(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms < 0.01:
		return fmt.Sprintf("%.2g µs", ms*1000)
	case ms < 1:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}

// count formats with three digits and thousands separators.
func count(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	step := math.Pow(10, math.Floor(math.Log10(v))-2)
	return thousands(int(math.Round(v/step) * step))
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func percent(v float64) string {
	if v > 0 && v < 0.001 {
		return "<0.1 %"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}
