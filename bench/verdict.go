package bench

import (
	"fmt"
	"math"
)

// A Verdict compares what the chapter claims with what was measured.
type Verdict string

// The verdicts.
const (
	Reproduced    Verdict = "reproduced"     // see span.judge for numbers
	Borderline    Verdict = "borderline"     // may come out either way next time
	Differs       Verdict = "differs"        // the claim does not hold here
	NotComparable Verdict = "not comparable" // no claim, or the set-up differs in kind
	NotMeasured   Verdict = "not measured"   // failed, interrupted or not asked for; Reason says which
	Violated      Verdict = "VIOLATION"      // exclusion or token order was broken: the figures are void
)

// A span is a claimed range; Hi is infinity for "at least Lo".
type span struct{ Lo, Hi float64 }

var infinity = math.Inf(1)

const (
	widen = 2.0 // a claim holds for machines like its author's: a factor of two either way is the same
	edge  = 0.2 // this near to a boundary, the next run might fall on the other side
)

// judge is the rule for claims that are numbers: reproduced if v lies in the
// claimed range widened by a factor of two, borderline if it is within 20 % of
// a boundary of that, else differs. How says in which direction.
func (s span) judge(v float64) (verdict Verdict, how string) {
	lo, hi := s.Lo/widen, s.Hi*widen
	switch {
	case near(v, lo) || near(v, hi):
		verdict = Borderline
	case v < lo || v > hi:
		verdict = Differs
	default:
		verdict = Reproduced
	}
	switch {
	case v < s.Lo:
		how = fmt.Sprintf("%s below the claim", times(s.Lo/v))
	case v > s.Hi:
		how = fmt.Sprintf("%s above the claim", times(v/s.Hi))
	default:
		how = "within the claim"
	}
	return verdict, how
}

// The directions of figures outside of a claimed range.
const (
	faster = "faster"
	slower = "slower"
)

// throughput judges v, of which more is faster.
func (s span) throughput(v float64) (Cell, string) { return s.cell(v, slower, faster) }

// latency judges v, of which less is faster.
func (s span) latency(v float64) (Cell, string) { return s.cell(v, faster, slower) }

func (s span) cell(v float64, below, above string) (c Cell, how string) {
	c.Verdict, how = s.judge(v)
	if c.Verdict == Differs {
		c.Direction = below
		if v > s.Hi {
			c.Direction = above
		}
	}
	return c, how
}

func near(v, boundary float64) bool {
	return boundary > 0 && !math.IsInf(boundary, 1) && math.Abs(v-boundary) <= edge*boundary
}

// times formats a ratio of at least 1: "1.4 times", "31 times".
func times(r float64) string {
	if r < 10 {
		return fmt.Sprintf("%.1f times", r)
	}
	return fmt.Sprintf("%.0f times", r)
}
