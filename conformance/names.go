package conformance

import (
	"errors"
	"strings"
	"unicode/utf8"

	"example.com/distlock"
)

func names() []clause {
	return []clause{
		{
			name: "names/any-utf8",
			rule: "Any valid UTF-8 of 1 to 512 bytes is a name on every backend: it can be locked, excludes others, and is reported as it was given.",
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				for _, name := range oddNames() {
					lk := e.take(a, name)
					if lk.Name() != name {
						e.Errorf("Name() = %q, want %q", lk.Name(), name)
					}
					e.refused(b, name)
					e.unlock(lk)
					e.unlock(e.take(b, name))
				}
			},
		},
		{
			name: "names/one-to-one",
			rule: "Different names are different locks, however much they look alike, escaped or not: all can be held at the same time.",
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				var lks []*distlock.Lock
				for i, name := range oddNames() {
					l := a
					if i%2 == 1 {
						l = b
					}
					lks = append(lks, e.take(l, name))
				}
				for _, lk := range lks {
					e.held(lk)
					e.unlock(lk)
				}
			},
		},
		{
			name: "names/prefix",
			rule: "A name that is a prefix of another has nothing to do with it: no waiting, no wake-up and no deletion across names.",
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				family := []string{"job", "job1", "job/1", "jo", "job/"}
				held := map[string]*distlock.Lock{}
				for _, name := range family {
					held[name] = e.take(a, name)
				}
				waiters := map[string]*pending{}
				for _, name := range family {
					waiters[name] = e.wait(e.ctx, b, name)
				}
				for i, name := range family {
					e.unlock(held[name])
					waiters[name].got()
					for _, other := range family[i+1:] {
						e.held(held[other])
						waiters[other].mustWait(other + " is held")
					}
				}
			},
		},
		{
			name: "names/longest",
			rule: "A name of 512 bytes works, and those that differ in their last byte only are different locks.",
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				stem := strings.Repeat("n", 511)
				x := e.take(a, stem+"x")
				y := e.take(b, stem+"y")
				e.refused(b, stem+"x")
				e.refused(a, stem+"y")
				e.unlock(x)
				e.refused(a, stem+"y")
				e.unlock(y)
			},
		},
		{
			name: "names/invalid",
			rule: "The empty name, names beyond 512 bytes and invalid UTF-8 are ErrInvalid for Lock and TryLock.",
			run: func(e *env) {
				l := e.locker()
				for _, name := range invalidNames() {
					e.invalidName(l, name)
				}
			},
		},
		{
			name:  "names/invalid-before-any-request",
			rule:  "A bad name is refused before anything is sent: with the backend out of reach the error is the same.",
			needs: all(partitions),
			run: func(e *env) {
				l := e.locker()
				e.unlock(e.lock(l, e.name("warm-up")))
				e.partition(l)
				for _, name := range invalidNames() {
					e.invalidName(l, name)
				}
			},
		},
		{
			name: "names/namespaces",
			rule: "Namespaced puts names under a namespace one to one: the same namespace and name are the same lock, all other pairs are others.",
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				pairs := [][2]string{
					{"a__b", "c"},
					{"a", "b__c"},
					{"a:b", "c"},
					{"a", "b:c"},
					{"a/b", "c"},
					{"a", "b/c"},
					{"a%2Fb", "c"},
					{"a.b", "c"},
					{"a", "b.c"},
					{"A", "b.c"},
					{"a", "c"},
				}
				e.take(a, "c")
				for _, p := range pairs {
					e.take(distlock.Namespaced(a, p[0]), p[1])
				}
				for _, p := range pairs {
					e.refused(distlock.Namespaced(b, p[0]), p[1])
				}
				e.take(distlock.Namespaced(distlock.Namespaced(b, "A"), "b"), "c")
			},
		},
		{
			name: "names/bad-namespace",
			rule: "A namespace that is no name is ErrInvalid when it is used, and so is a name that is bad without its namespace.",
			run: func(e *env) {
				l := e.locker()
				for _, bad := range invalidNames() {
					e.invalidName(distlock.Namespaced(l, bad), "n")
				}
				e.invalidName(distlock.Namespaced(l, "ns"), "")
				e.invalidName(distlock.Namespaced(l, "ns"), "\xff")
			},
		},
		{
			name: "names/in-errors",
			rule: "Errors name the lock as the caller named it.",
			run: func(e *env) {
				a, b := e.locker(), e.locker()
				for _, name := range []string{"a/b", "a%2Fb", "ü ", strings.Repeat("n", 512)} {
					e.take(a, name)
					_, err := e.try(e.ctx, b, name)
					e.wantErr("TryLock of a held name", err, distlock.ErrHeld)
					e.wantDetail(err, name)
				}
			},
		},
	}
}

// invalidName checks that l refuses name.
func (e *env) invalidName(l distlock.Locker, name string) {
	e.Helper()
	ctx, cancel := e.soon()
	defer cancel()
	if _, err := l.Lock(ctx, name); !errors.Is(err, distlock.ErrInvalid) {
		e.Errorf("Lock(%.20q, %d bytes): %v, want an error that matches ErrInvalid", name, len(name), err)
	}
	if _, err := l.TryLock(ctx, name); !errors.Is(err, distlock.ErrInvalid) {
		e.Errorf("TryLock(%.20q, %d bytes): %v, want an error that matches ErrInvalid", name, len(name), err)
	}
}

func invalidNames() []string {
	return []string{
		"",
		strings.Repeat("n", 513),
		strings.Repeat("ü", 257), // 514 bytes
		"\xff",
		"a\xc3",
		"\xed\xa0\x80", // a lone surrogate
	}
}

// oddNames returns valid names, all different, that a careless mapping to keys
// or paths rejects, changes or mixes up.
func oddNames() []string {
	return []string{
		"a", "A", "a ", " a", " ", "a b", "a+b",
		"a/b", "a//b", "/a/b", "a/b/", "a\\b", "a_b", "a__b", "a-b", "a.b", "a:b", "a::b", "/", "//",
		"a%2Fb", "a%2fb", "a%252Fb", "%", "%%", "a%", "=2F", "~2F",
		".", "..", "...", "../a", "./a", "~", "*", "?", "[a]", "^a$",
		"{a}b", "{b}a", "{}a", "{a", "a}", "{{a}}",
		"\x00", "a\x00", "a\x00b", "\x01", "\t", "\n", "a\r\nb", "\x7f",
		"\u00fc", "u\u0308", "\u00dc", "ß", "ss", // composed, decomposed, upper case
		"锁", "🔒", "\u202ea", "\ufeffa", "\u200ba", string(utf8.MaxRune), "\uffff",
		"http://example.com/a?b=c&d#e", `{"a":"b"}`, "'; --", `"`, "$(a)", "zookeeper", "lock-0000000000",
		"-1", "0", "00", "1e3", "true", "null",
	}
}
