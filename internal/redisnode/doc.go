// Package redisnode is what the backends for one Redis and for several
// independent ones share: running embedded scripts, the layout of keys and
// values, telling permanent errors from transient ones, and finding out at first
// use whether a server can do what is needed.
package redisnode
