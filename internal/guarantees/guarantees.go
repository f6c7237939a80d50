// Package guarantees makes the README's tables of what each backend promises.
//
// What a backend claims, and which conformance cases are run on it, is
// known only where its servers run. So each backend's tests call Check, which
// compares both with a record in this package's testdata, and the README is
// checked against the records, without any server. After a change of claims or
// cases, run the tests of the backends and then of this package with
// DISTLOCK_UPDATE=1.
package guarantees

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/distlock/conformance"
	"example.com/distlock/driver"
)

const updateEnv = "DISTLOCK_UPDATE"

// record is what the tests of one backend found.
type record struct {
	Capabilities driver.Capabilities `json:"capabilities"`
	Cases        []string            `json:"cases"`    // run, in the suite's order
	Untested     []string            `json:"untested"` // all that is missing is an ability of the harness
}

// Check compares the record of a backend with what its harnesses claim and the
// cases that are run on them; of several, the first speaks for the claims, and a
// case counts if it is run on any.
func Check(t testing.TB, hs ...conformance.Harness) {
	t.Helper()
	now := record{Capabilities: hs[0].Capabilities()}
	for _, c := range conformance.Cases() {
		run, claimed := false, false
		for _, h := range hs {
			claims, abilities := c.Missing(h)
			claimed = claimed || len(claims) == 0
			run = run || len(claims)+len(abilities) == 0
		}
		switch {
		case run:
			now.Cases = append(now.Cases, c.Name)
		case claimed:
			now.Untested = append(now.Untested, c.Name)
		}
	}
	want, err := json.MarshalIndent(now, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	file, err := inModule("internal/guarantees/testdata", now.Capabilities.Backend+".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := compare(file, want); err != nil {
		t.Error(err)
	}
}

// compare checks that file holds want, or writes it.
func compare(file string, want []byte) error {
	have, err := os.ReadFile(file)
	if bytes.Equal(have, want) {
		return nil
	}
	if os.Getenv(updateEnv) != "" {
		return os.WriteFile(file, want, 0o644)
	}
	return errors.Join(err, fmt.Errorf("%s is out of date: run this test with %s=1", file, updateEnv))
}

// inModule returns a path below the folder that holds go.mod.
func inModule(elem ...string) (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(append([]string{dir}, elem...)...), nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory")
		}
	}
	return "", err
}

// load reads the records of backends.
func load(backends []string) ([]record, error) {
	var rs []record
	for _, b := range backends {
		data, err := os.ReadFile(filepath.Join("testdata", b+".json"))
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", b, err)
		}
		rs = append(rs, r)
	}
	return rs, nil
}

// tables returns the README's tables as Markdown.
func tables(rs []record) string {
	var b strings.Builder
	row := func(first string, cell func(record) string) {
		fmt.Fprintf(&b, "| %s |", first)
		for _, r := range rs {
			fmt.Fprintf(&b, " %s |", cell(r))
		}
		b.WriteByte('\n')
	}
	head := func(first string) {
		row(first, func(r record) string { return r.Capabilities.Backend })
		row("---", func(record) string { return "---" })
	}
	head("capability")
	for _, c := range []struct {
		what string
		cell func(driver.Capabilities) string
	}{
		{"tokens increase from holder to holder (Fencing)", func(c driver.Capabilities) string { return mark(c.Fencing) }},
		{"contenders are served in order of arrival (FIFO)", func(c driver.Capabilities) string { return mark(c.FIFO) }},
		{"exclusion survives the loss of a minority of servers (Replicated)", func(c driver.Capabilities) string { return mark(c.Replicated) }},
		{"waiters are woken by the server (Push)", func(c driver.Capabilities) string { return mark(c.Push) }},
		{"each lock may have a TTL of its own (LockTTL)", func(c driver.Capabilities) string { return mark(c.LockTTL) }},
		{"one session carries a Locker's locks (SharedFate)", func(c driver.Capabilities) string { return mark(c.SharedFate) }},
		{"shortest TTL", func(c driver.Capabilities) string { return span(c.MinTTL) }},
		{"longest TTL", func(c driver.Capabilities) string { return span(c.MaxTTL) }},
		{"TTLs are rounded up to", func(c driver.Capabilities) string { return span(c.TTLQuantum) }},
		{"the token is made of", func(c driver.Capabilities) string { return c.NumberKind }},
	} {
		row(c.what, func(r record) string { return c.cell(r.Capabilities) })
	}

	area := ""
	for _, c := range conformance.Cases() {
		if c.Area() == "capabilities" {
			continue // they check the table above
		}
		if c.Area() != area {
			if area != "" {
				b.WriteString("\n</details>\n")
			}
			area = c.Area()
			fmt.Fprintf(&b, "\n<details><summary>%s</summary>\n\n", area)
			head("case and rule")
		}
		row("`"+c.Name+"`<br>"+c.Rule, func(r record) string {
			if slices.Contains(r.Untested, c.Name) {
				return "·"
			}
			return mark(slices.Contains(r.Cases, c.Name))
		})
	}
	b.WriteString("\n</details>\n")
	return b.String()
}

func mark(yes bool) string {
	if yes {
		return "✓"
	}
	return "–"
}

// span writes a duration as people do: 1h0m0s is 1h.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return "–"
	case d > 2*day:
		return fmt.Sprintf("%d days", d/day)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
