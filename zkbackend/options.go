package zkbackend

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"example.com/distlock"
)

// Options configures the backend. A nil *Options, and each field's zero value,
// mean the defaults.
type Options struct {
	// Root is the path under which everything is kept. It is made when missing.
	// Contenders of one lock must agree on it. Default "/distlock".
	Root string

	// Auth is sent on every connection before anything else. Default none.
	Auth []Auth

	// ACL is set on every node that is made. It must allow those who contend to
	// read, create and delete. Default zk.WorldACL(zk.PermAll), and with Auth
	// zk.AuthACL(zk.PermAll): all for that identity, nothing for others.
	ACL []zk.ACL

	// Tick is the servers' tickTime. It has to be told only if their
	// minSessionTimeout was set below two ticks. Default 0: not needed.
	Tick time.Duration

	// Dial makes the connections, for TLS for example with the method DialContext
	// of a tls.Dialer. Default that of a zero net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Auth is one identity, as for zk.Conn's AddAuth.
type Auth struct {
	Scheme      string // such as "digest"
	Credentials []byte // such as "user:password"
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a Locker on the ZooKeeper ensemble of servers, given as
// "host:port". It connects when the first lock is asked for; what is wrong with
// the arguments is reported at once, as distlock.ErrInvalid.
//
// distlock.WithTTL asks for the session timeout. The servers bound it, to 2 to
// 20 ticks unless configured otherwise, and what they grant counts.
func New(servers []string, opts *Options, options ...distlock.Option) (*distlock.Client, error) {
	d, err := newBackend(servers, opts)
	if err != nil {
		return nil, err
	}
	return distlock.New(d, options...)
}

func newBackend(servers []string, opts *Options) (*backend, error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if len(servers) == 0 {
		return nil, invalid("servers", "must name at least one server")
	}
	seen := make(map[string]bool, len(servers))
	for i, addr := range servers {
		field := fmt.Sprintf("servers[%d] %q", i, addr)
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" {
			return nil, invalid(field, "must be host:port")
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, invalid(field, "must have a port from 1 to 65535")
		}
		if seen[addr] {
			return nil, invalid(field, "must not be there twice")
		}
		seen[addr] = true
	}
	if o.Root == "" {
		o.Root = "/distlock"
	}
	if bad := validRoot(o.Root); bad != "" {
		return nil, invalid(fmt.Sprintf("Options.Root %q", o.Root), bad)
	}
	for i, a := range o.Auth {
		if a.Scheme == "" {
			return nil, invalid(fmt.Sprintf("Options.Auth[%d].Scheme", i), "must not be empty")
		}
	}
	if o.Tick < 0 {
		return nil, invalid("Options.Tick", "must not be negative")
	}
	if len(o.ACL) == 0 {
		o.ACL = zk.WorldACL(zk.PermAll)
		if len(o.Auth) > 0 {
			o.ACL = zk.AuthACL(zk.PermAll)
		}
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	return makeBackend(servers, o), nil
}

func invalid(field, rule string) error {
	return fmt.Errorf("%w: zkbackend: %s %s", distlock.ErrInvalid, field, rule)
}
