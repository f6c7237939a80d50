package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// An Outcome is a measurement that may not have come about.
type Outcome[T any] struct {
	Value   T
	Ran     bool   // Value holds
	Failure string // why it does not, if it was tried or cut off
	Skipped string // why it was not tried, if there is more to say than that nobody asked
}

func (o *Outcome[T]) set(v T, err error) {
	o.Value, o.Ran = v, err == nil
	if err != nil {
		o.Failure = err.Error()
	}
}

// MarshalJSON writes the value, or why there is none.
func (o Outcome[T]) MarshalJSON() ([]byte, error) {
	switch {
	case o.Ran:
		return json.Marshal(o.Value)
	case o.Failure != "":
		return json.Marshal(map[string]string{"failure": o.Failure})
	}
	return []byte("null"), nil
}

// Result is all that was measured of one backend.
type Result struct {
	Backend    string `json:"backend"`
	Servers    int    `json:"servers"`
	Version    string `json:"version"`
	Durability string `json:"durability"`
	Loopback   bool   `json:"loopback"`
	Code       Code   `json:"code"`

	// Failure is why nothing can be measured (any more): the servers did not
	// start, or do not answer.
	Failure string `json:"failure,omitempty"`

	missing string // why what was not even tried is not there

	Alone   Outcome[Load]    `json:"alone"`      // one caller, one name
	Many    Outcome[Load]    `json:"many_names"` // many callers, a name each, one Locker
	Hot     Outcome[Load]    `json:"hot_name"`   // one name, a Locker for each caller
	Local   Outcome[Load]    `json:"hot_local"`  // one name, one Locker
	Crash   Outcome[Crash]   `json:"crash"`
	Reentry Outcome[Reentry] `json:"reentry"`
	Loss    Outcome[Loss]    `json:"server_loss"`
}

// violations lists every broken exclusion or token order.
func (r *Result) violations() []string {
	var all []string
	for _, vs := range [][]string{
		r.Alone.Value.Violations, r.Many.Value.Violations, r.Hot.Value.Violations,
		r.Local.Value.Violations, r.Crash.Value.Violations, r.Loss.Value.Violations,
	} {
		for _, v := range vs {
			all = append(all, r.Backend+": "+v)
		}
	}
	return all
}

// grants is how many grants the witnesses of the closed loops checked, at least:
// those of the warm-up were too.
func (r *Result) grants() int64 {
	return r.Alone.Value.Cycles + r.Many.Value.Cycles + r.Hot.Value.Cycles + r.Local.Value.Cycles
}

// remarks lists what went on besides the figures.
func (r *Result) remarks() []string {
	var all []string
	for _, l := range []struct {
		what string
		load Load
	}{{"uncontended", r.Alone.Value}, {"many names", r.Many.Value}, {"hot name", r.Hot.Value}, {"hot name in one Locker", r.Local.Value}} {
		if l.load.Repeated > 0 {
			all = append(all, fmt.Sprintf("%s, %s: %d calls of Unlock left open whether the lock was released, and were repeated; the first: %s",
				r.Backend, l.what, l.load.Repeated, l.load.Open))
		}
		if l.load.Lost > 0 {
			all = append(all, fmt.Sprintf("%s, %s: %d locks were lost while held, and their holders told", r.Backend, l.what, l.load.Lost))
		}
	}
	return all
}

// failures lists what was tried and did not come about.
func (r *Result) failures() []string {
	var all []string
	if r.Failure != "" {
		return []string{r.Backend + ": " + r.Failure}
	}
	for _, f := range []struct{ what, why string }{
		{"uncontended", r.Alone.Failure}, {"many names", r.Many.Failure}, {"hot name", r.Hot.Failure},
		{"hot name in one Locker", r.Local.Failure}, {"crash", r.Crash.Failure},
		{"re-entry", r.Reentry.Failure}, {"loss of servers", r.Loss.Failure},
	} {
		if f.why != "" {
			all = append(all, r.Backend+": "+f.what+": "+f.why)
		}
	}
	return all
}

// Report is one run of the benchmark.
type Report struct {
	Setup       Setup     `json:"setup"`
	Results     []*Result `json:"results"`
	Table       []Row     `json:"table"`
	Violations  []string  `json:"violations,omitempty"`
	Failures    []string  `json:"failures,omitempty"`
	Interrupted bool      `json:"interrupted,omitempty"`
}

var (
	// ErrViolation is the error of a run in which two held at once, or tokens went back.
	ErrViolation = errors.New("exclusion or token order was violated")

	// ErrIncomplete is the error of a run in which something could not be measured.
	ErrIncomplete = errors.New("not everything could be measured")

	// ErrInterrupted is the error of a run that was cut short.
	ErrInterrupted = errors.New("interrupted")
)

// Err says what is wrong with the run as a whole: nil, ErrViolation,
// ErrInterrupted or ErrIncomplete.
func (r *Report) Err() error {
	switch {
	case len(r.Violations) > 0:
		return ErrViolation
	case r.Interrupted:
		return ErrInterrupted
	case len(r.Failures) > 0:
		return ErrIncomplete
	}
	return nil
}

// finish judges what was measured.
func (r *Report) finish(now time.Time) {
	for _, res := range r.Results {
		r.Violations = append(r.Violations, res.violations()...)
		r.Failures = append(r.Failures, res.failures()...)
	}
	r.Setup.Took = now.Sub(r.Setup.Date).Round(time.Second)
	r.Table = compare(r.Results)
}
