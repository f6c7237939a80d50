package pathname_test

import (
	"strings"
	"testing"

	"example.com/distlock/internal/pathname"
)

func TestEscape(t *testing.T) {
	for name, want := range map[string]string{
		"orders":    "orders",
		"Az09_-":    "Az09_-",
		"a/b":       "a%2Fb",
		".":         "%2E",
		"..":        "%2E%2E",
		"%":         "%25",
		"%2F":       "%252F",
		"\x00\x7f":  "%00%7F",
		"schlüssel": "schl%C3%BCssel",
		"{a} b":     "%7Ba%7D%20b",
	} {
		if got := pathname.Escape(name); got != want {
			t.Errorf("Escape(%q) = %q, want %q", name, got, want)
		}
		if got, err := pathname.Unescape(want); err != nil || got != name {
			t.Errorf("Unescape(%q) = %q, %v, want %q", want, got, err, name)
		}
	}
}

func TestUnescapeRefuses(t *testing.T) {
	for _, element := range []string{"a/b", ".", "%", "%2", "a%2", "%2f", "%41", "%GG", "ü", "%%25"} {
		if got, err := pathname.Unescape(element); err == nil {
			t.Errorf("Unescape(%q) = %q, want an error", element, got)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "a", "a/b", "..", "%2F", "\xff\x00", "名前"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		e := pathname.Escape(name)
		if strings.Trim(e, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%") != "" {
			t.Fatalf("Escape(%q) = %q: a byte outside the alphabet", name, e)
		}
		if back, err := pathname.Unescape(e); err != nil || back != name {
			t.Fatalf("Unescape(Escape(%q)) = %q, %v", name, back, err)
		}
	})
}

// Whatever Unescape accepts is what Escape makes, so no name has two elements.
func FuzzUnescape(f *testing.F) {
	for _, s := range []string{"a", "%2F", "%2f", "%41", "%", "a%2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, element string) {
		if name, err := pathname.Unescape(element); err == nil && pathname.Escape(name) != element {
			t.Fatalf("%q and %q both stand for %q", element, pathname.Escape(name), name)
		}
	})
}
