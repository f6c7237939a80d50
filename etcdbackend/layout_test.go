package etcdbackend

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The vectors of docs/wire.md are what the code makes.
func TestWireDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## etcd\n")
	if !ok {
		t.Fatal("no section etcd")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	vectors := regexp.MustCompile("(?m)^\\| `([^`]*)` \\| `(distlock/[^`]*/)` \\| ([0-9]+) \\|$").FindAllStringSubmatch(section, -1)
	if len(vectors) < 6 {
		t.Fatalf("%d vectors", len(vectors))
	}
	l, err := (*Options)(nil).layout()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		if got := l.dir(v[1]); got != v[2] {
			t.Errorf("lock %q: %s, the document says %s", v[1], got, v[2])
		}
		if got := fmt.Sprint(bucketOf(v[1])); got != v[3] {
			t.Errorf("lock %q: bucket %s, the document says %s", v[1], got, v[3])
		}
	}
	const lease = 0x7587890c5d1a7a02
	for _, want := range []string{
		"`" + l.version() + "` | none | `" + layoutVersion + "`",
		fmt.Sprintf("a decimal number below %d", buckets),
		"`" + l.entry("job", lease, "0Ab_-xyz") + "`",
		"`" + l.abort(lease, bucketOf("job")) + "`",
	} {
		if !strings.Contains(section, want) {
			t.Errorf("the document does not say %s", want)
		}
	}
}
