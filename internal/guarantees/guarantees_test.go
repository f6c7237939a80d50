package guarantees

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/distlock"
	"example.com/distlock/conformance"
	"example.com/distlock/driver"
)

var backends = []string{"redis", "redlock", "zookeeper", "etcd", "memory"}

const (
	begin = "<!-- guarantees:begin -->\n"
	end   = "<!-- guarantees:end -->"
)

// TestREADME checks, or with DISTLOCK_UPDATE writes, the README's tables.
func TestREADME(t *testing.T) {
	rs, err := load(backends)
	if err != nil {
		t.Fatal(err)
	}
	file, err := inModule("README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(readme), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md has no place for the tables, between %q and %q", begin, end)
	}
	if err := compare(file, []byte(before+begin+tables(rs)+end+after)); err != nil {
		t.Error(err)
	}
}

// TestRecords checks the records against the suite as far as that goes without
// servers.
func TestRecords(t *testing.T) {
	rs, err := load(backends)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if r.Capabilities.Backend != backends[i] {
			t.Errorf("the record of %s speaks of %q", backends[i], r.Capabilities.Backend)
		}
		known := map[string]bool{}
		for _, c := range conformance.Cases() {
			known[c.Name] = true
			claims, abilities := c.Missing(claimant{r.Capabilities})
			run, untested := slices.Contains(r.Cases, c.Name), slices.Contains(r.Untested, c.Name)
			switch {
			case len(claims) > 0 && (run || untested):
				t.Errorf("%s: the record has case %s, whose claims %v are not made", backends[i], c.Name, claims)
			case len(claims) == 0 && !run && (!untested || len(abilities) == 0):
				t.Errorf("%s: the record lacks case %s", backends[i], c.Name)
			}
		}
		for _, name := range slices.Concat(r.Cases, r.Untested) {
			if !known[name] {
				t.Errorf("%s: the record has case %s, which the suite has not", backends[i], name)
			}
		}
	}
}

// claimant is a Harness without abilities.
type claimant struct{ claims driver.Capabilities }

func (claimant) NewLocker(testing.TB, ...distlock.Option) distlock.Locker { panic("not asked for") }
func (c claimant) Capabilities() driver.Capabilities                      { return c.claims }

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "–", time.Millisecond: "1ms", 2 * time.Second: "2s", time.Minute: "1m", 24 * time.Hour: "24h",
		49 * time.Hour: "2 days", 87600 * time.Hour: "3650 days",
		90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s", 100 * time.Second: "1m40s", 10 * time.Second: "10s",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%d) = %q, want %q", d, got, want)
		}
	}
}
