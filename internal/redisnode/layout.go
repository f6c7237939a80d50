package redisnode

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Buckets is the number of hash tags over which names are spread. It is part of
// the wire version: clients that disagree about it would not exclude each other.
const Buckets = 1024

// MaxPrefix is the longest prefix in bytes.
const MaxPrefix = 64

// Layout says which keys belong to a lock. All keys and channels of one lock have
// the same hash tag, its bucket, so that they share a slot in Redis Cluster. The
// tag is the first pair of braces in the key, whatever the name contains, because
// a prefix has none.
type Layout struct{ Prefix string }

// Check returns what is wrong with the prefix, or nil.
func (l Layout) Check() error {
	switch {
	case l.Prefix == "":
		return errors.New("must not be empty")
	case len(l.Prefix) > MaxPrefix:
		return fmt.Errorf("has %d bytes; at most %d are allowed", len(l.Prefix), MaxPrefix)
	case !utf8.ValidString(l.Prefix):
		return errors.New("is not valid UTF-8")
	case strings.ContainsAny(l.Prefix, "{}"):
		return errors.New("must not contain braces: they would move its keys to another slot")
	}
	return nil
}

// Bucket is the bucket of a name: its 32-bit FNV-1a hash modulo Buckets.
func Bucket(name string) int {
	h := fnv.New32a()
	h.Write([]byte(name))
	return int(h.Sum32() % Buckets)
}

func (l Layout) bucket(b int) string { return l.Prefix + ":{" + strconv.Itoa(b) + "}:" }

// Lock is the key of the lock itself: a string that holds a Value.
func (l Layout) Lock(name string) string { return l.bucket(Bucket(name)) + "lock:" + name }

// Clock is the key of the bucket's counter: the last number given in it.
func (l Layout) Clock(name string) string { return l.bucket(Bucket(name)) + "clock" }

// Dead is the key of the tombstone of an owner that was given up.
func (l Layout) Dead(name, owner string) string { return l.bucket(Bucket(name)) + "dead:" + owner }

// Hints is the channel on which releases of the bucket's locks are published;
// the message is the name.
func (l Layout) Hints(name string) string { return l.bucket(Bucket(name)) + "hints" }

// Version is the key that says which backend and wire version use the prefix.
func (l Layout) Version() string { return l.Prefix + ":version" }

// probe is a key that is never there, and a channel that nobody listens to, in the
// slot of the version key.
func (l Layout) probe() string { return l.Prefix + ":{" + l.Version() + "}:probe" }

// A Value is what a lock key holds.
//
//	dl1 <owner> <number> <since> <ttl> <metadata>
//
// Fields are separated by one space; number is decimal, since is the server's
// time of the grant in milliseconds since 1970, ttl is in milliseconds, and the
// metadata is the rest, spaces included. "dl1" names the format.
type Value struct {
	Owner    string
	Number   uint64
	Since    time.Time
	TTL      time.Duration
	Metadata string
}

const valueTag = "dl1"

// String encodes v.
func (v Value) String() string {
	return fmt.Sprintf("%s %s %d %d %d %s", valueTag, v.Owner, v.Number, v.Since.UnixMilli(), v.TTL.Milliseconds(), v.Metadata)
}

// ParseValue decodes what a lock key holds. It fails for data that no version of
// this library wrote.
func ParseValue(s string) (Value, error) {
	f := strings.SplitN(s, " ", 6)
	if len(f) != 6 || f[0] != valueTag || f[1] == "" {
		return Value{}, errors.New("not a lock value")
	}
	n, err1 := strconv.ParseUint(f[2], 10, 64)
	since, err2 := strconv.ParseInt(f[3], 10, 64)
	ttl, err3 := strconv.ParseInt(f[4], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return Value{}, fmt.Errorf("not a lock value: %w", err)
	}
	return Value{f[1], n, time.UnixMilli(since), time.Duration(ttl) * time.Millisecond, f[5]}, nil
}
