// Package redisbackend keeps locks on one Redis: a single server, a primary with
// replicas, or a Redis Cluster.
//
// # Algorithm
//
// A lock is a key with an expiry, written by one script that also gives the lock
// its number; it is extended and removed by scripts that compare its owner first.
// This is the pattern of https://redis.io/docs/latest/develop/use/patterns/distributed-locks/
// for one instance, with a fencing token. Every acquire, renewal and release is
// one round trip. Who waits subscribes to the channel on which releases are
// published, and tries again at each one and when the holder's time is over.
//
// # What it promises
//
// As long as the server keeps its data, a name has one holder, and its tokens
// rise from holder to holder. Numbers are the server's clock in units of 10 µs,
// or the last number + 1 if that is more. So they go on rising after a restart
// without data, FLUSHALL, or a failover to a replica that lacked the last writes,
// unless the clock of the server goes back at the same time.
//
// # What it does not promise
//
// A server that loses writes it confirmed (a failover, a restart without
// appendfsync always) can give a held lock to a second holder. Its token is
// larger, so a resource that checks tokens refuses the first one. ReplicaAck makes
// such a loss less likely, not impossible. Use ZooKeeper or etcd where that is not
// enough. Waiters are not served in order of arrival.
//
// A request that is delayed in the network for longer than the TTL after its
// caller gave up can still take the lock; nobody holds it then, and it ends with
// its TTL.
//
// # Servers
//
// Redis 6.2 or newer, in a Cluster 7.0; a primary, with scripts allowed. The user
// needs EVAL, EVALSHA, GET, SET, DEL, EXISTS, PTTL, PEXPIRE, TIME and PUBLISH (in a
// Cluster SPUBLISH and CLUSTER SLOTS) on the keys and channels that begin with the
// prefix, and WAIT for ReplicaAck. The first use tries all but WAIT, without a
// trace, and its error names what is missing and the ACL rules that are needed.
// Without SUBSCRIBE and UNSUBSCRIBE (in a Cluster SSUBSCRIBE and SUNSUBSCRIBE)
// waiters poll; INFO and PING are for being told of trouble early. A user who lacks
// one of these costs a warning only. maxmemory-policy should be
// noeviction: an evicted lock is a lost lock. TTLs may be 10 ms to 10 years.
//
// In a Cluster, taking or releasing a lock can fail while its slot moves to
// another shard, and is tried again; renewing it does not fail.
package redisbackend
