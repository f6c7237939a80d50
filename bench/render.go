package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
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
		fmt.Sprintf("distlock %s, measured %s, %v in all", cmp.Or(s.Revision, "of unknown revision"), s.Date.Format("2006-01-02 15:04 MST"), s.Took),
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
	if s.Fsync > 0 {
		lines = append(lines, fmt.Sprintf("a write of 4 KiB with fsync to the servers' disk takes %s (median)", dur(s.Fsync)))
	}
	if len(clients) > 0 {
		lines = append(lines, "clients: "+strings.Join(clients, ", "))
	}
	return append(lines,
		fmt.Sprintf("closed loops of %v each after a warm-up, TTL asked for %v; crashes with a TTL of %v", s.Duration, s.TTL, s.CrashTTL),
		"a closed loop sends the next request when the last is answered: a stall delays the next instead of counting against it",
		"verdicts: reproduced = in the claimed range widened by a factor of two; borderline = within 20 % of a boundary of that; differs = outside; not comparable = the set-up differs in kind",
		"claims: of a textbook's chapter that compares Redis, ZooKeeper and etcd as locks (Q6 is one of its questions); none is about Redlock")
}

// notMeasured is what the chapter's comparison implies and this run has no row for.
const notMeasured = "No row yet: the price of fairness, overlap under a partition, how long a rare double hold lasts, where writes are the bottleneck, latency with a network's round trip added."

func (r *Report) closing() []string {
	lines := []string{notMeasured}
	if load, err := strconv.ParseFloat(r.Setup.Load, 64); err == nil && load > float64(r.Setup.Cores) {
		lines = append(lines, fmt.Sprintf("The machine was busy before the start (load average %s on %d cores): if that work went on, all is faster without it.", r.Setup.Load, r.Setup.Cores))
	}
	for _, v := range r.Violations {
		lines = append(lines, "VIOLATION: "+v)
	}
	var grants int64
	for _, res := range r.Results {
		grants += res.grants()
	}
	if len(r.Violations) == 0 && grants > 0 {
		lines = append(lines, fmt.Sprintf("No violation: exclusion and token order were checked at each of %s grants.", thousands(int(grants))))
	}
	for _, res := range r.Results {
		lines = append(lines, res.remarks()...)
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

// WriteTerminal writes the comparison for a terminal, 120 columns wide with four
// backends. Each cell holds figure, claim and verdict; reasons follow
// as notes.
func (r *Report) WriteTerminal(w io.Writer) error {
	const first, column = 16, 25 // with four backends as wide as terminalWidth
	var b strings.Builder
	for _, line := range r.intro() {
		hang(&b, "", line)
	}
	b.WriteByte('\n')

	var n notes
	head := [][]string{{"dimension"}}
	for _, res := range r.Results {
		head = append(head, []string{title(res.Backend)})
	}
	rule := strings.Repeat("─", first+(column+1)*len(r.Results)-1) + "\n"
	writeCells(&b, first, column, head)
	b.WriteString(rule)
	for _, row := range r.Table {
		label := wrap(row.Dimension, first-1, true)
		if !row.Claimed {
			label = append(label, noClaimShort)
		}
		cells := [][]string{label}
		for _, c := range row.Cells {
			lines := wrap(c.Figure, column, true)
			if c.Claim != "" {
				lines = append(lines, wrap("claim: "+c.Claim, column, true)...)
			}
			if v := c.verdict(row, &n); v != "" {
				lines = append(lines, wrap(v, column, false)...)
			}
			cells = append(cells, lines)
		}
		writeCells(&b, first, column, cells)
		b.WriteString(rule)
	}
	b.WriteString("\nRows\n")
	for _, row := range r.Table {
		hang(&b, "  ", row.Dimension+": "+row.How)
	}
	b.WriteString("\nNotes\n")
	for i, reason := range n.list {
		hang(&b, fmt.Sprintf("%4s ", fmt.Sprintf("[%d]", i+1)), reason)
	}
	b.WriteByte('\n')
	for _, line := range r.closing() {
		hang(&b, "", line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const terminalWidth = 120

const noClaimShort = "(no claim)"

// verdict is what stands under figure and claim, with the number of the note that
// gives the reason; "" if nobody of the row has a claim and there is no other
// reason to tell.
func (c Cell) verdict(row Row, n *notes) string {
	switch {
	case c.Reason == noClaim && !row.Claimed:
		return ""
	case c.Reason == noClaim:
		return noClaimShort
	case c.Direction != "":
		return fmt.Sprintf("→ %s: %s [%d]", c.Verdict, c.Direction, n.number(c.Reason))
	}
	return fmt.Sprintf("→ %s [%d]", c.Verdict, n.number(c.Reason))
}

// hang writes text after lead, in lines that fit a terminal; those after the first
// are indented as far as the first begins, by two columns at least.
func hang(b *strings.Builder, lead, text string) {
	indent := max(2, utf8.RuneCountInString(lead))
	for i, line := range wrap(text, terminalWidth-indent, false) {
		if i > 0 {
			lead = strings.Repeat(" ", indent)
		}
		b.WriteString(lead + line + "\n")
	}
}

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

// unit is a number and its unit, which stay together.
var unit = regexp.MustCompile(`([0-9]) (µs|ms|s|%|KiB|×)`)

const glue = "\u00a0" // a space that does not break

// wrap breaks s into lines of at most width characters, at spaces; a longer word
// is broken too. With parts, what stands between commas or semicolons is kept on
// one line where it fits into one.
func wrap(s string, width int, parts bool) []string {
	var lines []string
	line := ""
	words := strings.FieldsFunc(unit.ReplaceAllString(s, "$1"+glue+"$2"), func(r rune) bool { return r == ' ' || r == '\n' || r == '\t' })
	for i, word := range words {
		// A part that begins here and does not fit into this line, but into one
		// of its own, gets one.
		if parts && line != "" && ends(words[i-1]) {
			n := utf8.RuneCountInString(word)
			for j := i + 1; j < len(words) && !ends(words[j-1]); j++ {
				n += 1 + utf8.RuneCountInString(words[j])
			}
			if n <= width && utf8.RuneCountInString(line)+1+n > width {
				lines, line = append(lines, line), ""
			}
		}
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
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], glue, " ")
	}
	return lines
}

// ends reports whether a part of a sentence ends with word.
func ends(word string) bool { return strings.HasSuffix(word, ",") || strings.HasSuffix(word, ";") }

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
			if v := c.verdict(row, &n); v != "" {
				parts = append(parts, "*"+v+"*")
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
