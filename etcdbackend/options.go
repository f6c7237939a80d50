package etcdbackend

import (
	"fmt"
	"strings"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"example.com/distlock"
)

const maxPrefix = 512

// Options configure the backend. A nil *Options means the defaults.
type Options struct {
	// Prefix is put before every key that this backend reads or writes. It is
	// valid UTF-8 of at most 512 bytes that ends with "/". Lockers exclude each
	// other only if their prefixes are equal; no prefix in use may begin with
	// another one. Default "distlock/".
	Prefix string
}

// New returns a Locker whose locks are kept by the etcd cluster of cli. It
// checks its arguments (an error matches distlock.ErrInvalid) and sends nothing;
// the cluster is looked at when the first lock is asked for.
//
// The client stays the caller's: Close does not close it. Requests use its
// connection, endpoints and credentials directly, so that wrappers put into its
// KV, Lease or Watcher fields (package namespace) have no effect; use
// Options.Prefix.
func New(cli *clientv3.Client, o *Options, opts ...distlock.Option) (*distlock.Client, error) {
	d, err := newBackend(cli, o)
	if err != nil {
		return nil, err
	}
	return distlock.New(d, opts...)
}

func (o *Options) layout() (layout, error) {
	prefix := "distlock/"
	if o != nil && o.Prefix != "" {
		prefix = o.Prefix
	}
	if len(prefix) > maxPrefix || !utf8.ValidString(prefix) || !strings.HasSuffix(prefix, "/") {
		return layout{}, fmt.Errorf("%w: Options.Prefix %.40q: must be valid UTF-8 of at most %d bytes that ends with \"/\"",
			distlock.ErrInvalid, prefix, maxPrefix)
	}
	return layout{prefix}, nil
}
