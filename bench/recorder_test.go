package bench

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

func TestRecorder(t *testing.T) {
	a, b := newRecorder(), newRecorder()
	for i := 1; i <= 500; i++ {
		a.add(time.Duration(i) * time.Microsecond)
		b.add(time.Duration(500+i) * time.Microsecond)
	}
	a.merge(b)
	q := a.quantiles()
	near := func(got time.Duration, want float64) bool {
		return math.Abs(float64(got)/float64(time.Microsecond)-want) <= want/1000+1
	}
	if q.Count != 1000 || !near(q.P50, 500) || !near(q.P90, 900) || !near(q.P99, 990) || !near(q.Max, 1000) {
		t.Errorf("%+v", q)
	}
}

func TestRecorderKeepsWhatIsOutOfRange(t *testing.T) {
	r := newRecorder()
	r.add(-time.Second)
	r.add(0)
	r.add(time.Hour)
	if q := r.quantiles(); q.Count != 3 || q.Max < longest {
		t.Errorf("%+v", q)
	}
}

func TestQuantilesJSON(t *testing.T) {
	empty, err := json.Marshal(newRecorder().quantiles())
	if err != nil || string(empty) != "null" {
		t.Errorf("%s, %v", empty, err)
	}
	full, err := json.Marshal(Quantiles{Count: 2, P50: 1500 * time.Nanosecond})
	if err != nil || !strings.Contains(string(full), `"count":2,"p50_us":1.5`) {
		t.Errorf("%s, %v", full, err)
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		shares []int64
		want   float64
	}{
		{[]int64{5, 5, 5, 5}, 1}, {[]int64{8, 0, 0, 0}, 0.25}, {[]int64{3, 1}, 0.8}, {[]int64{0, 0}, 0},
	} {
		if got := jain(c.shares); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v: %v, want %v", c.shares, got, c.want)
		}
	}
}

func TestCommandScanner(t *testing.T) {
	stream := "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" +
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$6\r\n*1\r\n$4\r\n" + // a value that looks like a header
		"*1\r\n$4\r\nPING\r\n" +
		"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"
	for cut := range len(stream) {
		var s commandScanner
		if n := s.commands([]byte(stream[:cut])) + s.commands([]byte(stream[cut:])); n != 4 {
			t.Fatalf("cut at %d: %d commands, want 4", cut, n)
		}
	}
	var s commandScanner
	var n int64
	for i := range len(stream) {
		n += s.commands([]byte{stream[i]})
	}
	if n != 4 {
		t.Errorf("byte by byte: %d commands, want 4", n)
	}
}

func TestGoCodeLines(t *testing.T) {
	src := "// Package p.\npackage p\n\n/* two\nlines */ var x = `a\n\nb` // end\n\nfunc f() {\n\t// nothing\n}\n"
	if n := goCodeLines([]byte(src)); n != 6 { // package, the three of the string, func, brace
		t.Errorf("%d lines, want 6", n)
	}
	if n := luaLines("-- header\n\nlocal x = 1\n  -- more\nreturn x\n"); n != 2 {
		t.Errorf("%d lines of Lua, want 2", n)
	}
}

func TestCountCode(t *testing.T) {
	for _, b := range Backends {
		c, ok := countCode(b)
		if !ok || c.Own < 100 {
			t.Errorf("%s: %+v, %v", b, c, ok)
		}
	}
	if c, _ := countCode("redis"); c.Lua == 0 {
		t.Errorf("redis: %+v: no Lua", c)
	}
}
