package bench

import (
	"encoding/json"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A recorder keeps durations from 1 ns to 2 minutes with three significant
// digits. It is not safe for concurrent use: each contender has its own, and
// they are merged when the run is over, so that recording makes nobody wait.
type recorder struct{ h *hdrhistogram.Histogram }

const longest = 2 * time.Minute

func newRecorder() *recorder {
	return &recorder{hdrhistogram.New(1, int64(longest), 3)}
}

// add records d. What is out of range counts at the end it is beyond: a wait of
// three minutes must not vanish from the percentiles.
func (r *recorder) add(d time.Duration) {
	// The only error is "out of range", which min and max exclude.
	_ = r.h.RecordValue(int64(min(max(d, 1), longest)))
}

func (r *recorder) merge(o *recorder) { r.h.Merge(o.h) }

func (r *recorder) quantiles() Quantiles {
	if r.h.TotalCount() == 0 {
		return Quantiles{}
	}
	at := func(q float64) time.Duration { return time.Duration(r.h.ValueAtQuantile(q)) }
	return Quantiles{
		Count: r.h.TotalCount(),
		P50:   at(50), P90: at(90), P99: at(99), P999: at(99.9),
		Max: time.Duration(r.h.Max()),
	}
}

// Quantiles sums up recorded durations. With Count 0 the others mean nothing.
type Quantiles struct {
	Count                    int64
	P50, P90, P99, P999, Max time.Duration
}

// MarshalJSON writes durations in microseconds, and nothing for an empty record.
func (q Quantiles) MarshalJSON() ([]byte, error) {
	if q.Count == 0 {
		return []byte("null"), nil
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return json.Marshal(struct {
		Count int64   `json:"count"`
		P50   float64 `json:"p50_us"`
		P90   float64 `json:"p90_us"`
		P99   float64 `json:"p99_us"`
		P999  float64 `json:"p999_us"`
		Max   float64 `json:"max_us"`
	}{q.Count, us(q.P50), us(q.P90), us(q.P99), us(q.P999), us(q.Max)})
}

// jain is Jain's fairness index of shares: 1 when all got the same, 1/n when
// one got everything, 0 when nobody got anything.
func jain(shares []int64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}
