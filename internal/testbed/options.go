package testbed

import (
	"fmt"
	"strings"
	"time"
)

// Option says what kind of servers are wanted.
type Option func(*options)

type options struct {
	own       bool
	durable   bool
	cut       bool
	tick      time.Duration
	redisArgs []string
}

// Own asks for servers that belong to this test alone, which may pause, kill,
// restart and cut them; they end with the test. Servers that a Bed starts for a
// program are always its own.
func Own() Option { return func(o *options) { o.own, o.cut = true, true } }

// Durable is [Config.Durable] for these servers.
func Durable() Option { return func(o *options) { o.durable = true } }

// Cuttable connects the members of an ensemble through fault proxies, so that
// [Cluster.Cut] works. Own implies it.
func Cuttable() Option { return func(o *options) { o.cut = true } }

// Tick sets ZooKeeper's tickTime; sessions last 2 to 20 ticks. Default: 500 ms.
func Tick(d time.Duration) Option { return func(o *options) { o.tick = d } }

// RedisArgs adds arguments to redis-server's, for example "--requirepass", "x".
func RedisArgs(args ...string) Option {
	return func(o *options) { o.redisArgs = append(o.redisArgs, args...) }
}

func (b *Bed) options(opts []Option) options {
	o := options{durable: b.cfg.Durable, tick: 500 * time.Millisecond}
	for _, f := range opts {
		f(&o)
	}
	return o
}

// key is the same for options that ask for the same servers.
func (o options) key() string {
	return fmt.Sprintf("durable=%t cut=%t tick=%v %s", o.durable, o.cut, o.tick, strings.Join(o.redisArgs, " "))
}
