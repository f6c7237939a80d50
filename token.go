package distlock

import (
	"fmt"
	"strconv"
)

// turnBits is the width of a token's turn; the rest is the backend's number.
const turnBits = 5

// Token is a fencing token: it grows each time a lock changes hands, so that a
// store which remembers the largest it has seen can refuse a late write of an
// earlier holder. 0 is no token: nothing is held, or the backend has none to give.
// Tokens of different backends, or of a backend that was rebuilt from nothing,
// cannot be compared.
//
// A token is number<<5 | turn. The number is what the backend gave, and turn
// counts hand-overs within a process on one grant. As text and JSON a token is a
// decimal string, since not every reader of JSON keeps 64 bits.
type Token uint64

// Number returns the backend's part of t: a create revision, a czxid, a reading
// of a hybrid clock.
func (t Token) Number() uint64 { return uint64(t) >> turnBits }

func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// MarshalText returns t in decimal.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (t *Token) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("distlock: token: %w", err)
	}
	*t = Token(n)
	return nil
}

// tokenOf makes the token of a grant's first holding. A backend that does not
// claim fencing may have no number.
func tokenOf(number uint64, fencing bool) (Token, error) {
	if number == 0 && fencing || number >= 1<<58 {
		return 0, fmt.Errorf("distlock: the backend's number %d is not between 1 and 2^58-1, so no fencing token can be made from it", number)
	}
	return Token(number << turnBits), nil
}
