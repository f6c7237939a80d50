// Package zkbackend keeps locks in ZooKeeper.
//
// # Algorithm
//
// It is ZooKeeper's lock recipe: each contender makes an ephemeral sequential
// node in the lock's directory, the one with the lowest number has the lock, and
// everyone else watches the one next before it, so that a release wakes one
// contender. The node's name carries an id of the attempt. After a lost
// connection the attempt finds its node by that id, on a server that has first
// caught up with the leader, and holds by it only if the node belongs to the
// present session. Directories are container nodes, which the server removes when
// they have been empty for a while. It does so only after they had a node in
// them: an attempt that is given up between the two requests removes the
// directory itself. If its process or session ends at that moment, an empty one
// is left until the name is locked again.
//
// All locks of one Locker share one session: they are kept by one heartbeat and
// lost together. Nodes of attempts that were given up are removed, after each
// reconnect too, until that is confirmed or the session has ended.
//
// The fencing token is made of the transaction id (czxid) that created the node.
// It is 64 bits wide and grows over the life of the ensemble. The number in the
// node's name does not do: it starts again with the directory and runs over. An
// ensemble set up anew without its data starts again, too: give what checks the
// tokens a new name space then.
//
// # Loss
//
// A connected session proves nothing. A client whose server is cut off from the
// leader goes on getting answers to pings and reads for seconds after the leader
// has ended the session and a rival has the lock. So a lock's deadline counts
// from writes that a quorum has confirmed, to one heartbeat node for each
// session, every sixth of the session timeout. By what rule they count is said
// at type proof in proof.go. With a server that stays silent the driver turns to
// the next one, and usually the lock is kept.
//
// The rule takes for granted that session timeouts are two ticks or longer, as
// servers see to by themselves (else tell Options.Tick), that the leader's ping
// loop is late by less than a sixteenth of the session timeout, and that the
// client is on no observer that gets its updates from another observer. All
// servers of an ensemble must have the same minSessionTimeout and
// maxSessionTimeout: a session that a server shortens when it is taken over is
// given up.
//
// A lock is also lost, at once, when its node is deleted by somebody else or the
// session ends.
//
// # What it does not promise
//
// Two holders at the same time are excluded under the assumptions of every lease:
// clocks of client and leader run at about the same rate, and the holder stops at
// its deadline. A process that is paused beyond it, or a request that travels
// longer, is stopped only by the fencing token. The crash of a holder is noticed
// when its session times out, not when its connection breaks.
//
// A TryLock that fails was in the queue for a moment. Another TryLock at that
// moment can be told that the lock is held when the holder has just released it.
//
// Other libraries' recipes are not recognised: see docs/wire.md for what is.
//
// # Servers
//
// ZooKeeper 3.5 or later; an older one is refused, as it has no container nodes.
// The identity needs the permissions to read, create and delete under
// Options.Root, and to make Root if it is missing.
//
// distlock.WithTTL asks for the session timeout; ensembles grant between 2 and 20
// ticks unless configured otherwise, that is 4 to 40 seconds with the usual tick,
// and what is granted counts. A TTL for a single lock is not supported. Leave
// room: heartbeats are a sixth of the timeout apart, so below 2 s a busy machine
// loses locks.
package zkbackend
