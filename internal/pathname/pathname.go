// Package pathname turns lock names into elements of a path, for stores whose
// keys are paths.
package pathname

import (
	"fmt"
	"strings"
)

const digits = "0123456789ABCDEF"

// Escape returns name as one path element: letters, digits, "_" and "-" stand
// for themselves, every other byte becomes "%" and two upper-case hexadecimal
// digits. Different names have different elements. A dot is escaped too, since
// "." and ".." mean something in a path, and so is "%".
func Escape(name string) string {
	n := 0
	for i := range len(name) {
		if !plain(name[i]) {
			n++
		}
	}
	if n == 0 {
		return name
	}
	b := make([]byte, 0, len(name)+2*n)
	for i := range len(name) {
		if c := name[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

// Unescape returns the name whose element this is. What Escape does not make is
// an error: a byte that should have been escaped, one that should not, or
// lower-case digits.
func Unescape(element string) (string, error) {
	b := make([]byte, 0, len(element))
	for i := 0; i < len(element); i++ {
		c := element[i]
		if c == '%' {
			if i+2 >= len(element) {
				return "", fmt.Errorf("pathname: %q: escape cut short at byte %d", element, i)
			}
			hi := strings.IndexByte(digits, element[i+1])
			lo := strings.IndexByte(digits, element[i+2])
			if hi < 0 || lo < 0 || plain(byte(hi<<4|lo)) {
				return "", fmt.Errorf("pathname: %q: %q at byte %d is no escape", element, element[i:i+3], i)
			}
			b = append(b, byte(hi<<4|lo))
			i += 2
		} else if plain(c) {
			b = append(b, c)
		} else {
			return "", fmt.Errorf("pathname: %q: byte %d should be escaped", element, i)
		}
	}
	return string(b), nil
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}
