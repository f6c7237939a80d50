package distlock

import (
	"container/heap"
	"time"
)

// alarms is the one scheduler of a Client: a heap of what is due when, and one
// timer for the earliest. What rings runs with the Client's mutex held and never
// waits for I/O, so that no slow server can make a deadline late.
type alarms struct {
	heap  alarmHeap
	timer *time.Timer
	fire  func() // called by the timer, without the mutex
	off   bool
}

// alarm is something that becomes due. Its zero value with ring set is unset.
type alarm struct {
	at   time.Time
	ring func(now time.Time)
	pos  int // in the heap, from 1; 0: not set
}

func (s *alarms) set(a *alarm, at time.Time) {
	if s.off {
		return
	}
	a.at = at
	if a.pos == 0 {
		heap.Push(&s.heap, a)
	} else {
		heap.Fix(&s.heap, a.pos-1)
	}
	if s.heap[0] == a {
		s.wind()
	}
}

func (s *alarms) unset(a *alarm) {
	if a.pos != 0 {
		heap.Remove(&s.heap, a.pos-1)
	}
}

// wind sets the timer to the earliest alarm.
func (s *alarms) wind() {
	if len(s.heap) == 0 {
		return
	}
	d := time.Until(s.heap[0].at)
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.fire)
		return
	}
	s.timer.Reset(d)
}

// ring rings all that is due.
func (s *alarms) ring() {
	for len(s.heap) > 0 {
		now := time.Now()
		a := s.heap[0]
		if a.at.After(now) {
			break
		}
		heap.Pop(&s.heap)
		a.ring(now)
	}
	if !s.off {
		s.wind()
	}
}

// stop unsets everything for good.
func (s *alarms) stop() {
	s.off = true
	for _, a := range s.heap {
		a.pos = 0
	}
	s.heap = nil
	if s.timer != nil {
		s.timer.Stop()
	}
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}
func (h *alarmHeap) Push(x any) {
	a := x.(*alarm)
	*h = append(*h, a)
	a.pos = len(*h)
}
func (h *alarmHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.pos = 0
	return a
}
