package redlockbackend

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock"
	"example.com/distlock/internal/redisnode"
)

// Options configure New. The zero value and nil mean the defaults.
type Options struct {
	// Prefix begins every key and channel on every node. Lockers exclude each
	// other if they have the same prefix on the same nodes. Valid UTF-8, 1 to 64
	// bytes, no braces. It must not be one that redisbackend uses on the same
	// server. Default "distlock-redlock".
	Prefix string

	// NodeTimeout is how long an attempt waits for one node, the time to connect
	// included. It should be some round trips long and must be small against the
	// TTL, which it shortens: at most a quarter of the TTL is used. A renewal waits
	// for a majority for an eighth of the TTL if that is longer. A release, which
	// shortens no TTL, waits for a majority as long as its context allows. At least
	// 1 ms. Default 50 ms.
	NodeTimeout time.Duration

	// AllowSameServer lets several clients reach one server, for instance five
	// databases of it. That shows how the algorithm works and keeps no promise of
	// it: all nodes fail together. For demonstrations only. Default false.
	AllowSameServer bool

	// Logger is told, once each, of server settings that endanger locks. Default
	// none.
	Logger *slog.Logger
}

const (
	defaultPrefix      = "distlock-redlock"
	defaultNodeTimeout = 50 * time.Millisecond
)

// New returns a Locker over the servers that clients reach, one client for each
// of N independent ones: no replicas or cluster nodes of each other. N is odd as a
// rule; a majority of floor(N/2)+1 must agree, so an even N stands no more losses
// than N − 1. All Lockers must have the same servers, in any order.
//
// New sends nothing: what is wrong with the servers, two clients that reach the
// same one by different addresses among it, is told by the first Lock or TryLock.
// Close of the Locker leaves the clients open, and they must stay open until then.
// Close waits about a second for requests to nodes that do not answer, or
// NodeTimeout if that is longer; those end when the client gives them up.
//
// What is wrong with the arguments is an error that matches distlock.ErrInvalid.
func New(clients []redis.UniversalClient, o *Options, opts ...distlock.Option) (*distlock.Client, error) {
	d, err := newDriver(clients, o)
	if err != nil {
		return nil, err
	}
	return distlock.New(d, opts...)
}

func newDriver(clients []redis.UniversalClient, o *Options) (*redlockDriver, error) {
	var opt Options
	if o != nil {
		opt = *o
	}
	if opt.Prefix == "" {
		opt.Prefix = defaultPrefix
	}
	if opt.NodeTimeout == 0 {
		opt.NodeTimeout = defaultNodeTimeout
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(checkClients(clients), checkServers(clients, &opt), checkOptions(&opt)); err != nil {
		return nil, fmt.Errorf("%w: redlockbackend: %w", distlock.ErrInvalid, err)
	}
	return makeDriver(clients, opt), nil
}

func checkClients(clients []redis.UniversalClient) error {
	if len(clients) == 0 {
		return errors.New("clients must not be empty")
	}
	for i, c := range clients {
		if err := redisnode.CheckClient(c); err != nil {
			return fmt.Errorf("clients[%d] %w", i, err)
		}
		if _, ok := c.(*redis.ClusterClient); ok {
			return fmt.Errorf("clients[%d] must not be a ClusterClient: each node is one independent server", i)
		}
		if v := reflect.ValueOf(c); v.Kind() != reflect.Pointer {
			continue
		}
		for j, o := range clients[:i] {
			if o == c {
				return fmt.Errorf("clients[%d] must not be clients[%d] again: each node has one vote", i, j)
			}
		}
	}
	return nil
}

// checkServers finds what a look at the addresses tells. What it does not is found
// at the first use.
func checkServers(clients []redis.UniversalClient, o *Options) error {
	if o.AllowSameServer {
		return nil
	}
	first := make(map[string]int)
	for i, c := range clients {
		c, ok := c.(*redis.Client)
		if !ok || c == nil || c.Options().Addr == failoverAddr {
			continue
		}
		at := c.Options().Network + " " + c.Options().Addr
		if j, ok := first[at]; ok {
			return fmt.Errorf("clients[%d] must not have the address of clients[%d], %s: each node must be a server of its own", i, j, c.Options().Addr)
		}
		first[at] = i
	}
	return nil
}

// failoverAddr is what all clients have that find their server with Sentinel.
const failoverAddr = "FailoverClient"

func checkOptions(o *Options) error {
	if err := (redisnode.Layout{Prefix: o.Prefix}).Check(); err != nil {
		return fmt.Errorf("Options.Prefix %w", err)
	}
	if o.NodeTimeout < time.Millisecond {
		return fmt.Errorf("Options.NodeTimeout is %v; it must be at least 1 ms", o.NodeTimeout)
	}
	return nil
}
