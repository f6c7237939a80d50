// Package etcdbackend keeps locks in etcd.
//
// # Algorithm
//
// It is the queue of etcd's concurrency recipes (order by create revision, wait
// for the key before one's own), with the changes that follow. All locks of one
// Locker and TTL hang on one lease, so one keepalive keeps ten thousand of them;
// each acquisition has a key of its own, so that two goroutines on one lease are
// two contenders. Taking a free lock is one transaction, releasing it another,
// which deletes the key only if its create revision is that of the acquisition.
//
// The fencing token is made of the key's create revision. It grows from holder
// to holder as long as the cluster keeps its data; after a restore from a backup
// it does only with etcdutl snapshot restore --bump-revision --mark-compacted.
//
// An acquire whose outcome stayed unknown and which is given up is undone by
// deleting its key and writing an abort key, which each acquire's transaction
// compares: one that arrives later is refused. So no key is left in the queue
// that nobody knows of, though the lease lives on. A lease has at most 64 abort
// keys, each for the names with one hash, and they end with the lease. A
// transaction that is refused because another of these names was given up
// meanwhile is sent again within the attempt.
//
// A waiter is woken by the deletion of the key before its own. All names that a
// Locker waits for or holds are watched on one stream, each from the present on,
// and stay watched for ten seconds after: the server serves watches that begin
// in the past only every 100 ms. Waiters look again by themselves whenever the
// watch was interrupted, and every third of the TTL.
//
// # Loss
//
// A lock's deadline counts from the time at which the lease's last confirmed
// keepalive was sent, never from the acquire, which prolongs no lease. That a
// keepalive is confirmed does not alone prove that the lock's key is there: a
// lock held for more than a fifth of a second is watched, and lost at once when
// its key is deleted or its lease revoked. All locks of one lease are lost
// together, when it ends.
//
// # What it does not promise
//
// Two holders at the same time are excluded under the assumptions of every lease:
// clocks of client and server run at about the same rate, and the holder stops
// at its deadline. A process that is paused beyond it, or a request that travels
// longer, is stopped only by the fencing token. A change of the cluster's leader
// starts the leases anew, so that after a crash of holder and leader the next may
// wait for up to two TTLs.
//
// # Servers
//
// etcd 3.5.13 or later; older ones are refused, because their leader, hanging in
// its disk, could confirm leases that were gone. Before 3.5.23 and 3.6.5 a
// keepalive may still be confirmed for a lease that was just revoked; the watch
// notices that, but do update. With authentication, the user needs read and write
// permission for everything under Options.Prefix.
//
// Give the client all members' endpoints, so that it can go on while one is down,
// and set clientv3.Config.DialKeepAliveTime and DialKeepAliveTimeout (5 s or so),
// without which gRPC takes minutes to notice a connection that has gone silent.
//
// TTLs are whole seconds, rounded up, from 2 s (the server grants no less with
// its default election timeout; where it grants more, that is reported) to
// 9,000,000,000 s.
package etcdbackend
