// Package membackend is a lock backend in memory: the reference for the other
// backends, the backend of this module's examples, and a fake for the unit
// tests of programs that use distlock.
//
// # Algorithm
//
// A [Store] plays the server. Lockers made with [New] on the same Store contend
// with each other as processes on one server would; the Store never learns
// anything from them but by requests. By default waiters stand in a queue at the
// Store and are served in order of arrival, each lock has a TTL of its own, and
// a waiter's place in the queue lapses like a lease if it is not renewed.
// [Options] choose the other kinds of backend: polling with or without hints, and
// one session that carries many locks.
//
// # What it promises
//
// Exclusion and order hold within one process only, since the Store lives in its
// memory. Numbers come from one counter per Store, so that tokens grow from
// holder to holder whatever happens to locks, sessions and Lockers; a new Store
// counts from 1 again.
//
// The Store takes the time from time.Now and starts no goroutine. In a
// testing/synctest bubble it therefore runs in virtual time, provided that it is
// made inside the bubble.
//
// # Testing your code
//
// Give the code under test a Locker from New, and make the Store misbehave:
// [Store.Expire] takes a lock from its holder, [Store.ExpireAll] ends all that
// one Locker has, [Store.Partition] cuts a Locker off until it is healed, and
// [Store.Inject] makes single requests fail, hang, or lose their reply.
// [Store.Leftovers] tells whether everything was released.
package membackend
