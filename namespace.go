package distlock

import (
	"context"
	"strings"
)

// Namespaced returns a Locker that puts every name under ns: the lock "b" of
// Namespaced(l, "a") is the lock "a/b" of l. A "/" or "%" in ns is escaped, so
// that different pairs of namespace and name never meet. A bad ns is reported by
// Lock and TryLock as ErrInvalid. Close closes l.
func Namespaced(l Locker, ns string) Locker {
	err := checkName("Namespace", ns)
	if l == nil {
		err = invalid("Locker", "must not be nil")
	}
	return &namespaced{l, nsEscaper.Replace(ns) + "/", err}
}

var nsEscaper = strings.NewReplacer("%", "%25", "/", "%2F")

type namespaced struct {
	l      Locker
	prefix string
	err    error
}

func (n *namespaced) full(name string) (string, error) {
	if n.err != nil {
		return "", n.err
	}
	return n.prefix + name, checkName("Name", name)
}

func (n *namespaced) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	full, err := n.full(name)
	if err != nil {
		return nil, &Error{Op: "lock", Name: name, Err: err}
	}
	return n.l.Lock(ctx, full, opts...)
}

func (n *namespaced) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	full, err := n.full(name)
	if err != nil {
		return nil, &Error{Op: "trylock", Name: name, Err: err}
	}
	return n.l.TryLock(ctx, full, opts...)
}

func (n *namespaced) Close() error {
	if n.l == nil {
		return n.err
	}
	return n.l.Close()
}
