package redisbackend

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/distlock/internal/redisnode"
)

// The vectors in docs/wire.md are what other programs are written to.
func TestWireVectors(t *testing.T) {
	doc, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## Redis\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !strings.Contains(section, "Wire version `"+wire+"`") {
		t.Errorf("the section does not speak of wire version %q", wire)
	}
	l := redisnode.Layout{Prefix: defaultPrefix}
	keys, values := 0, 0
	for line := range strings.Lines(section) {
		f := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range f {
			f[i] = strings.TrimPrefix(strings.TrimSuffix(strings.TrimSpace(f[i]), "`"), "`")
		}
		number := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
		switch {
		case len(f) == 3 && number(1) > 0:
			keys++
			if b := redisnode.Bucket(f[0]); int64(b) != number(1) {
				t.Errorf("bucket of %q is %d, docs say %s", f[0], b, f[1])
			}
			if key := l.Lock(f[0]); key != f[2] {
				t.Errorf("key of %q is %q, docs say %q", f[0], key, f[2])
			}
		case len(f) == 6 && number(1) > 0:
			values++
			v := redisnode.Value{
				Owner:    f[0],
				Number:   uint64(number(1)),
				Since:    time.UnixMilli(number(2)),
				TTL:      time.Duration(number(3)) * time.Millisecond,
				Metadata: strings.TrimPrefix(f[4], "(none)"),
			}
			if s := v.String(); s != f[5] {
				t.Errorf("value is %q, docs say %q", s, f[5])
			}
			if got, err := redisnode.ParseValue(f[5]); err != nil || got != v {
				t.Errorf("ParseValue(%q) = %+v, %v", f[5], got, err)
			}
		}
	}
	if keys != 5 || values != 2 {
		t.Errorf("found %d keys and %d values in the tables", keys, values)
	}
	for got, want := range map[string]string{
		l.Version():        "distlock:version",
		l.Clock("job"):     "distlock:{988}:clock",
		l.Dead("job", "o"): "distlock:{988}:dead:o",
		l.Hints("job"):     "distlock:{988}:hints",
	} {
		if got != want {
			t.Errorf("key is %q, want %q", got, want)
		}
	}
}
