package etcdbackend

import (
	"fmt"
	"hash/fnv"

	"example.com/distlock/internal/pathname"
)

// layoutVersion is the value of the version key. It changes when Lockers of the
// old and the new layout would not exclude each other.
const layoutVersion = "1"

// layout makes keys. docs/wire.md describes them.
type layout struct{ prefix string }

func (l layout) version() string { return l.prefix + "version" }

// dir is the queue of one lock: every key in it is an entry, the one with the
// lowest create revision is the holder's. The slash at its end keeps names
// apart of which one is the beginning of the other.
func (l layout) dir(name string) string {
	return l.prefix + "lock/" + pathname.Escape(name) + "/"
}

// entry is the key of one acquisition. No two acquisitions share one, even on
// one lease: the same key for both would let the second take itself for the first.
func (l layout) entry(name string, lease int64, owner string) string {
	return l.dir(name) + fmt.Sprintf("%016x-", lease) + owner
}

// abort is the key whose modification makes transactions that were sent before
// fail: one for each lease and bucket, outside the queues.
func (l layout) abort(lease int64, bucket int) string {
	return l.prefix + fmt.Sprintf("abort/%016x/%d", lease, bucket)
}

// buckets bounds the abort keys of a lease. None of them can be deleted before
// the lease ends, since a transaction may be on its way for any time, and names
// made of ids would add up. In exchange an abort makes those transactions fail
// and be sent again that are under way at that moment in 1/64 of the names.
const buckets = 64

// bucketOf is the bucket of a name: its 32-bit FNV-1a hash modulo buckets.
func bucketOf(name string) int {
	h := fnv.New32a()
	h.Write([]byte(name))
	return int(h.Sum32() % buckets)
}
