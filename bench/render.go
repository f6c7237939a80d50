package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// WriteJSON writes everything that was measured.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// intro is the set-up in words, one fact per line.
func (r *Report) intro() []string {
	s := r.Setup
	lines := []string{
		fmt.Sprintf("%s, %v in all", s.Date.Format("2006-01-02 15:04 MST"), s.Took),
		fmt.Sprintf("%s, %d cores for servers and callers together, %s, %s", s.CPU, s.Cores, s.OS, s.Go),
		fmt.Sprintf("load average before the start %s; servers: %s", s.Load, s.Provider),
	}
	for _, res := range r.Results {
		if res.Servers == 0 {
			continue
		}
		where := "over the network"
		if res.Loopback {
			where = "on loopback"
		}
		lines = append(lines, fmt.Sprintf("%s: %d × %s, %s, %s", title(res.Backend), res.Servers, orUnknown(res.Version), where, res.Durability))
	}
	var clients []string
	for _, path := range slices.Sorted(maps.Keys(s.Clients)) {
		clients = append(clients, path+" "+s.Clients[path])
	}
	if s.Revision != "" {
		clients = append([]string{"distlock " + s.Revision}, clients...)
	}
	if len(clients) > 0 {
		lines = append(lines, "clients: "+strings.Join(clients, ", "))
	}
	return append(lines,
		fmt.Sprintf("closed loops of %v each after a warm-up, TTL asked for %v; crashes with a TTL of %v", s.Duration, s.TTL, s.CrashTTL),
		"a closed loop sends the next request when the last is answered: a stall delays the next instead of counting against it",
		"verdicts: reproduced = in the claimed range widened by a factor of two; borderline = within 20 % of its edge; differs = outside")
}

// notMeasured is what the chapter's comparison implies and this run has no row for.
const notMeasured = "No row yet: the price of fairness, overlap under a partition, how long a rare double hold lasts, latency with a network's round trip added."

func (r *Report) closing() []string {
	lines := []string{notMeasured}
	for _, v := range r.Violations {
		lines = append(lines, "VIOLATION: "+v)
	}
	if len(r.Violations) == 0 {
		lines = append(lines, "No violation: at every grant exclusion and token order were checked.")
	}
	for _, f := range r.Failures {
		lines = append(lines, "Not measured: "+f)
	}
	if r.Interrupted {
		lines = append(lines, "Interrupted: what is missing was not measured.")
	}
	return lines
}

func orUnknown(version string) string {
	if version == "" {
		return "unknown version"
	}
	return version
}

// notes numbers the reasons of a table, equal ones once.
type notes struct{ list []string }

func (n *notes) number(reason string) int {
	if i := slices.Index(n.list, reason); i >= 0 {
		return i + 1
	}
	n.list = append(n.list, reason)
	return len(n.list)
}

// WriteTerminal writes the comparison for a terminal, about 120 columns wide
// with four backends. Each cell holds figure, claim and verdict; reasons follow
// as notes.
func (r *Report) WriteTerminal(w io.Writer) error {
	const first, column = 18, 25
	var b strings.Builder
	for _, line := range r.intro() {
		fmt.Fprintln(&b, line)
	}
	b.WriteByte('\n')

	var n notes
	head := [][]string{{"dimension"}}
	for _, res := range r.Results {
		head = append(head, []string{title(res.Backend)})
	}
	rule := strings.Repeat("─", first+(column+1)*len(r.Results)) + "\n"
	writeCells(&b, first, column, head)
	b.WriteString(rule)
	for _, row := range r.Table {
		label := wrap(row.Dimension, first-1)
		if !row.Claimed {
			label = append(label, "(no claim)")
		}
		cells := [][]string{label}
		for _, c := range row.Cells {
			lines := wrap(c.Figure, column-1)
			if c.Claim != "" {
				lines = append(lines, wrap("claim: "+c.Claim, column-1)...)
			}
			if !c.unclaimed(row) {
				lines = append(lines, wrap(fmt.Sprintf("→ %s [%d]", c.Verdict, n.number(c.Reason)), column-1)...)
			}
			cells = append(cells, lines)
		}
		writeCells(&b, first, column, cells)
		b.WriteString(rule)
	}
	b.WriteString("\nRows\n")
	for _, row := range r.Table {
		fmt.Fprintf(&b, "  %s: %s\n", row.Dimension, row.How)
	}
	b.WriteString("\nNotes\n")
	for i, reason := range n.list {
		fmt.Fprintf(&b, "%4s %s\n", fmt.Sprintf("[%d]", i+1), reason)
	}
	b.WriteByte('\n')
	for _, line := range r.closing() {
		fmt.Fprintln(&b, line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// unclaimed reports whether there is nothing to say about c but its figure: no
// cell of the row has a claim, and the figure is there.
func (c Cell) unclaimed(row Row) bool { return !row.Claimed && c.Reason == noClaim }

// writeCells writes cells of several lines side by side.
func writeCells(b *strings.Builder, first, column int, cells [][]string) {
	height := 0
	for _, c := range cells {
		height = max(height, len(c))
	}
	for i := range height {
		var line strings.Builder
		for j, c := range cells {
			width, text := column+1, ""
			if j == 0 {
				width = first
			}
			if i < len(c) {
				text = c[i]
			}
			line.WriteString(text)
			line.WriteString(strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text))))
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
}

// wrap breaks s at spaces into lines of at most width characters; a longer word
// is broken too.
func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		for utf8.RuneCountInString(word) > width {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			runes := []rune(word)
			lines, word = append(lines, string(runes[:width])), string(runes[width:])
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// WriteMarkdown writes the comparison as a document.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Locks over Redis, Redlock, ZooKeeper and etcd, measured\n\n")
	for _, line := range r.intro() {
		fmt.Fprintf(&b, "- %s\n", escape(line))
	}
	b.WriteString("\n| dimension |")
	for _, res := range r.Results {
		fmt.Fprintf(&b, " %s |", title(res.Backend))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(r.Results)) + "\n")
	var n notes
	for _, row := range r.Table {
		fmt.Fprintf(&b, "| **%s** |", escape(row.Dimension))
		for _, c := range row.Cells {
			var parts []string
			if c.Figure != "" {
				parts = append(parts, escape(c.Figure))
			}
			if c.Claim != "" {
				parts = append(parts, "claim: "+escape(c.Claim))
			}
			if !c.unclaimed(row) {
				parts = append(parts, fmt.Sprintf("*%s* [%d]", c.Verdict, n.number(c.Reason)))
			}
			fmt.Fprintf(&b, " %s |", strings.Join(parts, "<br>"))
		}
		b.WriteByte('\n')
	}
	b.WriteString("\n## Rows\n\n")
	for _, row := range r.Table {
		how := row.How
		if !row.Claimed {
			how += " (the chapter makes no claim)"
		}
		fmt.Fprintf(&b, "- **%s**: %s\n", escape(row.Dimension), escape(how))
	}
	b.WriteString("\n## Notes\n\n")
	for i, reason := range n.list {
		fmt.Fprintf(&b, "%d. %s\n", i+1, escape(reason))
	}
	b.WriteByte('\n')
	for _, line := range r.closing() {
		fmt.Fprintf(&b, "%s\n\n", escape(line))
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

// escape keeps text from being taken for Markdown. Error texts of servers come
// through here, so line ends too.
func escape(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`, "`", "\\`", "\n", " ").Replace(s)
}
