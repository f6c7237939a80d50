package redisbackend

import "example.com/distlock/internal/redisnode"

// Everything of a lock lives under the prefix and, but for the version key, in
// its bucket b, one of 1024, which is the hash tag of its keys and channels:
//
//	<prefix>:version             string   "redis 1"
//	<prefix>:{b}:lock:<name>     string   the lock; see redisnode.Value
//	<prefix>:{b}:clock           string   the last number given in the bucket; no expiry
//	<prefix>:{b}:dead:<owner>    string   tombstone of an owner that was given up
//	<prefix>:{b}:hints           channel  releases; the message is the name
//
// A first use tries what the user may do on <prefix>:{<prefix>:version}:probe, a
// key that is never there and a channel that nobody listens to.
//
// The name stands in keys as it is: it is the last part, so nothing in it can be
// taken for another part. Reserved for a queue of waiters, and used by nothing
// else:
//
//	<prefix>:{b}:queue:<name>    sorted set of owners in order of arrival
//	<prefix>:{b}:places:<name>   hash, the TTL and deadline of each
//	<prefix>:{b}:inbox:<client>  channel, grants for one client
//
// The queue leaves the lock key as it is, so that clients which queue and
// clients which do not exclude each other on one name. docs/wire.md has this with
// test vectors.

// wire is the value of the version key. A client that finds another one refuses
// to work.
const wire = "redis 1"

func (d *redisDriver) acquireKeys(name, owner string) []string {
	return []string{d.layout.Lock(name), d.layout.Clock(name), d.layout.Dead(name, owner)}
}

func (d *redisDriver) releaseKeys(name, owner string) []string {
	return []string{d.layout.Lock(name), d.layout.Dead(name, owner)}
}

func (d *redisDriver) extendCall(l *lease) redisnode.Call {
	return redisnode.Call{
		Script: redisnode.Extend,
		Keys:   []string{d.layout.Lock(l.name)},
		Args:   []any{l.owner, l.ttl.Milliseconds()},
	}
}
