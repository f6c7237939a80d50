package zkbackend

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"example.com/distlock/internal/pathname"
)

// layoutVersion is what the version node holds. docs/wire.md describes the layout.
const layoutVersion = "1"

// layout says where things are under the root.
type layout struct{ root string }

func (l layout) version() string         { return l.root + "/version" }
func (l layout) locks() string           { return l.root + "/locks" }
func (l layout) sessions() string        { return l.root + "/sessions" }
func (l layout) lock(name string) string { return l.locks() + "/" + pathname.Escape(name) }
func (l layout) heartbeat(session int64) string {
	return fmt.Sprintf("%s/%016x", l.sessions(), uint64(session))
}

// entryPrefix begins the name of a contender's node. The server appends the
// sequence number. A dot is in no escaped owner, so the parts come apart again.
func entryPrefix(owner string) string { return "lock." + pathname.Escape(owner) + "." }

// An entry is a contender's node in a lock's directory.
type entry struct {
	node  string // its name in the directory
	owner string
	seq   int32
	czxid int64 // 0: not read
}

// parseEntry reads a node's name; not ok: somebody else's, to be ignored.
func parseEntry(node string) (e entry, ok bool) {
	rest, ok := strings.CutPrefix(node, "lock.")
	if !ok {
		return entry{}, false
	}
	escaped, digits, ok := strings.Cut(rest, ".")
	if !ok {
		return entry{}, false
	}
	owner, err := pathname.Unescape(escaped)
	if err != nil || owner == "" {
		return entry{}, false
	}
	seq, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || digits != fmt.Sprintf("%010d", seq) {
		return entry{}, false
	}
	return entry{node: node, owner: owner, seq: int32(seq)}, true
}

// parseEntries picks the contenders out of a lock's children.
func parseEntries(children []string) []entry {
	es := make([]entry, 0, len(children))
	for _, c := range children {
		if e, ok := parseEntry(c); ok {
			es = append(es, e)
		}
	}
	return es
}

// before orders two contenders of one lock by the sequence number, which is the
// parent's signed 32-bit counter: a difference that wraps keeps the order as
// long as the queue spans less than half of it. Some servers stop counting at
// the end and give the same number to all who come later; then the transaction
// that created the node decides.
func (e entry) before(o entry) bool {
	if e.seq != o.seq {
		return e.seq-o.seq < 0
	}
	return e.czxid < o.czxid
}

// ahead returns who stands before own, in order of service.
func ahead(es []entry, own entry) []entry {
	es = slices.DeleteFunc(slices.Clone(es), func(e entry) bool { return e.node == own.node || !e.before(own) })
	slices.SortFunc(es, func(a, b entry) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	return es
}

// validRoot says what is wrong with a root path, or "".
func validRoot(root string) string {
	switch {
	case !strings.HasPrefix(root, "/"):
		return "must begin with /"
	case root == "/":
		return "must name a node"
	case root == "/zookeeper" || strings.HasPrefix(root, "/zookeeper/"):
		return "must not be in /zookeeper, which is the server's own"
	case len(root) > math.MaxUint8:
		return "must be 255 bytes at most"
	}
	for e := range strings.SplitSeq(root[1:], "/") {
		switch e {
		case "":
			return "must have no empty element and no / at its end"
		case ".", "..":
			return "must have no element . or .."
		}
		for _, r := range e {
			if r <= ' ' || r > '~' {
				return "must be printable ASCII without blanks"
			}
		}
	}
	return ""
}
