package redlockbackend

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/distlock/internal/redisnode"
	"example.com/distlock/internal/testbed"
)

// The vectors in docs/wire.md are what other programs are written to.
func TestWireVectors(t *testing.T) {
	doc, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## Redlock\n")
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
		case len(f) == 8 && number(1) > 0:
			values++
			try := uint64(number(1))
			v := redisnode.Value{
				Owner:    wireOwner(f[0], try),
				Number:   uint64(number(2)),
				Since:    time.UnixMilli(number(3)),
				TTL:      time.Duration(number(4)) * time.Millisecond,
				Metadata: strings.TrimPrefix(f[5], "(none)"),
			}
			if s := v.String(); s != f[6] {
				t.Errorf("value is %q, docs say %q", s, f[6])
			}
			if got, err := redisnode.ParseValue(f[6]); err != nil || got != v {
				t.Errorf("ParseValue(%q) = %+v, %v", f[6], got, err)
			}
			if m := hintMessage(f[0], try, "job"); m != f[7] {
				t.Errorf("message is %q, docs say %q", m, f[7])
			}
		}
	}
	if keys != 3 || values != 2 {
		t.Errorf("found %d keys and %d values in the tables", keys, values)
	}
	for got, want := range map[string]string{
		l.Version():        "distlock-redlock:version",
		l.Clock("job"):     "distlock-redlock:{988}:clock",
		l.Dead("job", "o"): "distlock-redlock:{988}:dead:o",
		l.Hints("job"):     "distlock-redlock:{988}:hints",
	} {
		if got != want {
			t.Errorf("key is %q, want %q", got, want)
		}
	}
}

// What the scripts write is what the layout says, whichever script wrote it.
func TestWrittenValues(t *testing.T) {
	r := nodes(t, 1)
	name, second := testbed.Name(t), uint64(100_000)
	now := uint64(time.Now().UnixMicro() / 10)
	req := request(name)
	req.Metadata = "host 7, with  spaces "
	l := &lease{d: r.redlockDriver, req: req, try: 3, state: make([]nodeState, 1)}
	want := redisnode.Value{Owner: req.Owner + ".3", TTL: ttl, Metadata: req.Metadata}
	check := func(when string, number uint64) {
		t.Helper()
		got := r.value(0, name)
		if d := time.Since(got.Since); d < -time.Minute || d > time.Minute {
			t.Errorf("%s: since is %v", when, got.Since)
		}
		want.Number, want.Since = number, got.Since
		if got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	v, err := l.acquireOn(t.Context(), r.nodes[0], now-3600*second)
	if err != nil {
		t.Fatal(err)
	}
	check("granted", 0)
	if _, err := l.acceptOn(t.Context(), r.nodes[0], v.counter+1); err != nil {
		t.Fatal(err)
	}
	check("accepted in the second round", v.counter+1)
	if n, err := r.raw[0].Get(t.Context(), r.layout.Clock(name)).Uint64(); err != nil || n != v.counter+1 {
		t.Errorf("clock is %d, %v; want %d", n, err, v.counter+1)
	}

	sub := r.raw[0].Subscribe(t.Context(), r.layout.Hints(name))
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.releaseOn(t.Context(), r.nodes[0]); err != nil {
		t.Fatal(err)
	}
	msg, err := sub.ReceiveMessage(t.Context())
	if err != nil || msg.Payload != hintMessage(req.Owner, 3, name) {
		t.Errorf("message %v, %v", msg, err)
	}

	l = &lease{d: r.redlockDriver, req: req, try: 4, state: make([]nodeState, 1)}
	want.Owner = req.Owner + ".4"
	number := uint64(time.Now().UnixMicro() / 10)
	if _, err := l.acquireOn(t.Context(), r.nodes[0], number); err != nil {
		t.Fatal(err)
	}
	check("accepted in the first round", number)
}

// hintMessage is what release.lua publishes.
func hintMessage(owner string, try uint64, name string) string {
	return wireOwner(owner, try) + " " + name
}
