// Package etcdbackend keeps locks in etcd.
package etcdbackend
