package conformance_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"example.com/distlock/conformance"
	"example.com/distlock/membackend"
)

func TestCases(t *testing.T) {
	cases := conformance.Cases()
	if len(cases) < 60 {
		t.Errorf("%d cases, want at least 60", len(cases))
	}
	form := regexp.MustCompile(`^[a-z]+/[a-z][a-z0-9-]*$`)
	names, areas := map[string]bool{}, map[string]int{}
	for _, c := range cases {
		if !form.MatchString(c.Name) {
			t.Errorf("name %q, want area/what", c.Name)
		}
		if names[c.Name] {
			t.Errorf("two cases are called %q", c.Name)
		}
		names[c.Name] = true
		areas[c.Area()]++
		if len(c.Rule) < 20 || c.Rule[len(c.Rule)-1] != '.' {
			t.Errorf("case %q: rule %q is no sentence", c.Name, c.Rule)
		}
		if c.Run == nil {
			t.Errorf("case %q does nothing", c.Name)
		}
	}
	for _, area := range []string{
		"exclusion", "waiting", "fairness", "loss", "fencing", "names", "ttl", "reentry", "errors", "close", "driver", "capabilities",
	} {
		if areas[area] < 3 {
			t.Errorf("area %q has %d cases", area, areas[area])
		}
		delete(areas, area)
	}
	for area := range areas {
		t.Errorf("unknown area %q", area)
	}
}

// TestEveryCaseRuns checks that each case is registered for some backend of this
// package's tests: one that never is would never be tested itself.
func TestEveryCaseRuns(t *testing.T) {
	hs := []conformance.Harness{
		newTownHall(t), newMemory(membackend.Options{}),
		newMemory(membackend.Options{SharedFate: true, SingleTTL: true}),
		newMemory(membackend.Options{MaxTTL: 1 << 40}),
		unfenced(),
	}
	registered := map[string]bool{}
	for _, h := range hs {
		for _, c := range conformance.For(h) {
			registered[c.Name] = true
		}
	}
	for _, c := range conformance.Cases() {
		if !registered[c.Name] {
			t.Errorf("case %q runs nowhere", c.Name)
		}
	}
}

// TestNotRun checks what Run logs of a harness without abilities.
func TestNotRun(t *testing.T) {
	bare := struct{ conformance.Harness }{newTownHall(t)}
	got := conformance.NotRun(bare)
	for _, want := range []string{
		fmt.Sprintf("%d of %d cases were not run\n", len(conformance.Cases())-len(conformance.For(bare)), len(conformance.Cases())),
		"need a harness that is a DriverOpener:\n", "\tdriver/release-checks-the-owner\n",
		"1 need a harness that is a Delayer:\n\tloss/deadline-counts-from-the-request",
		"need a harness that is a Restarter:\n", "need a backend that claims FIFO:\n", "1 need a backend that claims no Fencing:\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	for _, c := range conformance.For(bare) {
		if strings.Contains(got, c.Name+"\n") {
			t.Errorf("%s is said not to run", c.Name)
		}
	}
}
