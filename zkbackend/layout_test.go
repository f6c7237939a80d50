package zkbackend

import (
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestParseEntry(t *testing.T) {
	for _, c := range []struct {
		node  string
		owner string
		seq   int32
	}{
		{"lock.zzz.0000000003", "zzz", 3},
		{"lock.a-b-7-.0000000000", "a-b-7-", 0},
		{"lock.a.2147483647", "a", math.MaxInt32},
		{"lock.a.-2147483648", "a", math.MinInt32},
		{"lock.a.-2147483647", "a", -2147483647},
		{"lock.a.-000000007", "a", -7},
		{"lock.a%2Eb.0000000001", "a.b", 1},
	} {
		e, ok := parseEntry(c.node)
		if !ok || e.owner != c.owner || e.seq != c.seq || e.node != c.node {
			t.Errorf("%s: %+v %v", c.node, e, ok)
		}
	}
	for _, foreign := range []string{
		"", "config", "a-b-c", "123", "lock", "lock.", "lock.a", "lock.a.", "lock..0000000001", "lock.a.1",
		"lock.a.b.0000000001", "lock.a.00000000001", "lock.a.2147483648", "lock.a.+000000001", "lock.a.0x00000001",
		"lock.%zz.0000000001", "_c_0123456789abcdef0123456789abcdef-lock-0000000001", "lock-0000000001",
	} {
		if e, ok := parseEntry(foreign); ok {
			t.Errorf("%q was taken for %+v", foreign, e)
		}
	}
}

// Only the number counts, 0 is one, and the highest below the own one is watched.
func TestAhead(t *testing.T) {
	e := func(owner string, seq int32, czxid int64) entry {
		return entry{node: owner, owner: owner, seq: seq, czxid: czxid}
	}
	for _, c := range []struct {
		name string
		own  entry
		rest []entry
		want string
	}{
		{"alone", e("own", 0, 1), nil, ""},
		{"behind zero", e("own", 1, 2), []entry{e("a", 0, 0)}, "a"},
		{"before all", e("own", 0, 1), []entry{e("a", 1, 0), e("b", 9, 0)}, ""},
		{"gaps", e("own", 9, 9), []entry{e("c", 7, 0), e("a", 0, 0), e("d", 12, 0), e("b", 3, 0)}, "a b c"},
		{"number before name", e("aaa", 4, 9), []entry{e("zzz", 3, 0)}, "zzz"},
		{"across the end", e("own", math.MinInt32+1, 9), []entry{e("b", math.MinInt32, 0), e("a", math.MaxInt32, 0), e("c", math.MinInt32+2, 0)}, "a b"},
		{"before the end", e("own", math.MaxInt32, 9), []entry{e("b", math.MinInt32, 0), e("a", math.MaxInt32-1, 0)}, "a"},
		{"counter at its end", e("own", math.MaxInt32, 20), []entry{e("b", math.MaxInt32, 10), e("c", math.MaxInt32, 30), e("a", math.MaxInt32-1, 0)}, "a b"},
	} {
		var got []string
		for _, x := range ahead(append([]entry{c.own}, c.rest...), c.own) {
			got = append(got, x.node)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q stand before, want %q", c.name, s, c.want)
		}
	}
}

// The vectors of docs/wire.md are what the code makes.
func TestWireDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## ZooKeeper\n")
	if !ok {
		t.Fatal("no section ZooKeeper")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	vectors := regexp.MustCompile("(?m)^\\| `([^`]*)` \\| `([^`]*)` \\|$").FindAllStringSubmatch(section, -1)
	if len(vectors) < 4 {
		t.Fatalf("%d vectors", len(vectors))
	}
	l := layout{"/distlock"}
	for _, v := range vectors {
		if got := l.lock(v[1]); got != v[2] {
			t.Errorf("lock %q: %s, the document says %s", v[1], got, v[2])
		}
	}
	for _, want := range []string{
		"`" + l.version() + "`", "`" + l.locks() + "`", "`" + l.sessions() + "`",
		"`" + l.heartbeat(0x100000d5a1b0002) + "`", "`" + l.heartbeat(-2) + "`",
		"`" + entryPrefix("0Ab_-xyz") + "0000000007`", "holds `" + layoutVersion + "`",
	} {
		if !strings.Contains(section, want) {
			t.Errorf("the document does not say %s", want)
		}
	}
}
