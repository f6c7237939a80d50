// Package redlockbackend keeps locks on several independent Redis servers, with
// the Redlock algorithm and an ordered fencing token on top of it.
//
// # Algorithm
//
// A lock is held by who has its key on a majority of N servers, as described in
// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/. All nodes
// are asked at the same time, each with a short timeout; a lock is taken as soon as
// a majority has given it, and nodes known to be silent are not waited for. What
// the attempt took is subtracted from the TTL, and a hundredth of the TTL plus 2 ms
// for drift; an attempt with nothing left has failed. A failed attempt is undone on
// every node that took part or may have. A lock is released when a majority has
// confirmed it, since that is what the next holder needs; the other nodes get as
// long again, and are cleaned in the background, until Close. Renewal needs a
// majority again. A node that lost a key (it restarted without its data) gets it
// back after a majority has proved the lock, so that the majority of a long-held
// lock does not wear away.
//
// Nodes that fail are detail: an operation that has its majority succeeds, and one
// that has none says why in a [QuorumError], node by node.
//
// # What it promises
//
// The lock survives the loss of a minority of its servers: with five, of two.
// While no node loses a lock it has confirmed, no node's clock runs away, and no
// client is stopped for long without noticing, a name has one holder.
//
// # What it does not promise
//
// That is more than can be taken for granted, so mutual exclusion is likely, not
// certain. There can be two holders after the restart of a node without its data
// (a node should write with appendfsync always, and have no replica that can take
// its place), after a jump of nodes' clocks, or when a holder is suspended and
// goes on without looking at its Lock. Waiters are not served in order of arrival.
// Use ZooKeeper or etcd where two holders must not be.
//
// # Fencing
//
// The token orders holders even when there are two, so that a resource which
// checks tokens refuses the earlier one. A client proposes its clock's time, in
// units of 10 µs. A node that gives the lock also accepts the number if it is
// larger than all it has accepted for the names of that bucket, and still gives it
// only to the present owner. A majority must both give and accept. If nodes were
// ahead, a second round proposes the largest counter that they reported, plus 1,
// without nodes whose clock is far off. Two holders share a node that accepted
// both, one after the other; so the later has the larger number. No clock is
// needed for that.
//
// Clocks are the second line, for nodes that lose their data. A node refuses what
// lies more than 2 s behind its own clock, and, in the first round, what lies more
// than 2 s ahead of it; so no client's clock, however wrong, moves the numbers by
// more. Tokens stay in order unless a node loses its data within 4 s plus the
// difference of the nodes' clocks of a grant that needed its vote, or loses it
// while its clock goes back. Tokens do not make Redlock exclusive: a resource that
// does not check them, on reads too, has two clients then.
//
// # Servers
//
// N independent servers, five as a rule, Redis 6.2 or newer, with scripts allowed
// and no Cluster. The user needs EVAL, EVALSHA, GET, SET, DEL, PTTL, PEXPIRE, TIME,
// PUBLISH and SUBSCRIBE on the keys and channels that begin with the prefix (INFO
// and PING too, to be told of trouble early, such as one server behind two
// clients). maxmemory-policy should be noeviction, and their clocks synchronised.
// TTLs are 100 ms to 10 years.
//
// A client should have small DialTimeout and ReadTimeout, or
// ContextTimeoutEnabled: not for speed, since NodeTimeout bounds every attempt,
// but so that less waits for a dead node in the background.
package redlockbackend
