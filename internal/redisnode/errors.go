package redisnode

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
)

// permanentCodes are the first words of replies that the same request meets again
// until someone changes the server or the program.
var permanentCodes = []string{
	"NOAUTH", "WRONGPASS", "DENIED", "CROSSSLOT", "NOPROTO",
	"ERR invalid password", "ERR DB index is out of range", "ERR AUTH",
	"ERR Error compiling script",
	"ERR This instance has cluster support disabled",
}

// Permanent reports whether trying again does not mend err. A read-only replica
// is not among them, because failovers pass through that state; a probe decides.
func Permanent(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, redis.ErrClosed) { // the program closed its client
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	for _, code := range permanentCodes {
		if hasCode(err, code) {
			return true
		}
	}
	return forbidden(err.Error())
}

// Classify returns err, as a driver.PermanentError if it is permanent.
func Classify(err error) error {
	var p *driver.PermanentError
	if errors.As(err, &p) || !Permanent(err) {
		return err
	}
	return &driver.PermanentError{Err: err}
}

// WrongType reports whether a script met a key of another type.
func WrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }

// Conflict is the error for a lock key that holds data of somebody else. It is
// permanent, and the data is left alone.
func Conflict(key string) error {
	return &driver.PermanentError{Err: fmt.Errorf("key %q holds data that is not a lock of this library; use another Prefix or remove it", key)}
}

// hasCode reports whether err is, or wraps, a reply of the server that begins so.
func hasCode(err error, code string) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if strings.HasPrefix(err.Error(), code) {
			return true
		}
	}
	return false
}
