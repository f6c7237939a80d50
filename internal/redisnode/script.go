package redisnode

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Script is a Lua script that the server is asked to run by its digest. Its
// text is sent only when the server does not know it (yet, or any more: after a
// restart, a failover or SCRIPT FLUSH).
type Script struct{ src, sha string }

// NewScript prepares a script. It sends nothing.
func NewScript(src string) *Script {
	sum := sha1.Sum([]byte(src))
	return &Script{src: src, sha: hex.EncodeToString(sum[:])}
}

// An Evaler runs scripts: any client of go-redis, a connection, a pipeline.
type Evaler interface {
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
}

// Run runs s in one round trip, or two if the server does not know the script.
func (s *Script) Run(ctx context.Context, c Evaler, keys []string, args ...any) (any, error) {
	cmd := c.EvalSha(ctx, s.sha, keys, args...)
	if noScript(cmd.Err()) {
		forgetSends(args)
		cmd = c.Eval(ctx, s.src, keys, args...)
	}
	v, err := cmd.Result()
	return v, s.explain(keys, err)
}

// A Call is one run of a script.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any
}

// A Reply is the answer to a Call.
type Reply struct {
	Value any
	Err   error
}

// A Pipeliner makes pipelines: any client of go-redis.
type Pipeliner interface{ Pipeline() redis.Pipeliner }

// RunAll sends all calls in one pipeline, and in a second one, with their text,
// those that the server did not know. A pipeline of one node's client runs on one
// connection; then(p), if not nil, appends to it.
func RunAll(ctx context.Context, c Pipeliner, calls []Call, then func(redis.Pipeliner)) []Reply {
	replies := make([]Reply, len(calls))
	all := make([]int, len(calls))
	for i := range all {
		all[i] = i
	}
	unknown := runSome(ctx, c, calls, all, replies, then, func(p redis.Pipeliner, k Call) *redis.Cmd {
		return p.EvalSha(ctx, k.Script.sha, k.Keys, k.Args...)
	})
	if len(unknown) > 0 {
		for _, i := range unknown {
			forgetSends(calls[i].Args)
		}
		runSome(ctx, c, calls, unknown, replies, then, func(p redis.Pipeliner, k Call) *redis.Cmd {
			return p.Eval(ctx, k.Script.src, k.Keys, k.Args...)
		})
	}
	return replies
}

// runSome runs the calls with the given indexes and returns those whose script
// the server did not know.
func runSome(ctx context.Context, c Pipeliner, calls []Call, which []int, replies []Reply,
	then func(redis.Pipeliner), add func(redis.Pipeliner, Call) *redis.Cmd) (unknown []int) {
	p := c.Pipeline()
	cmds := make([]*redis.Cmd, len(which))
	for j, i := range which {
		cmds[j] = add(p, calls[i])
	}
	if then != nil {
		then(p)
	}
	_, _ = p.Exec(ctx) // every command carries its own error
	for j, i := range which {
		replies[i].Value, replies[i].Err = cmds[j].Result()
		if noScript(replies[i].Err) {
			unknown = append(unknown, i)
		}
		replies[i].Err = calls[i].Script.explain(calls[i].Keys, replies[i].Err)
	}
	return unknown
}

// noScript looks at the text too: a hook or a proxy may have wrapped the error in
// a type of its own.
func noScript(err error) bool {
	return err != nil && (errors.Is(err, redis.ErrNoScript) || hasCode(err, "NOSCRIPT"))
}

// Sends is a script argument that notices how often and when the request it is
// part of is written. The client library repeats a request after a connection
// error on its own, so that one call can reach the server twice: the first copy
// may arrive after the second. The argument reads "0" in the first copy and "1"
// in every later one, which lets a script know that an earlier copy may still be
// on its way. Read its fields only after the call has returned.
type Sends struct {
	Before bool      // an earlier call with the same effect may still be on its way
	Count  int       // copies written whose fate is not known, the answered one included
	Last   time.Time // just before the last copy was written
}

// MarshalBinary is called by the client library for each copy that it writes.
func (s *Sends) MarshalBinary() ([]byte, error) {
	s.Last = time.Now()
	s.Count++
	if s.Doubt() {
		return []byte("1"), nil
	}
	return []byte("0"), nil
}

// Doubt reports whether another copy than the answered one may reach the server.
func (s *Sends) Doubt() bool { return s.Before || s.Count > 1 }

// forgetSends is called when the server has said that it ran nothing.
func forgetSends(args []any) {
	for _, a := range args {
		if s, ok := a.(*Sends); ok {
			s.Before = s.Doubt()
			s.Count = 0
		}
	}
}
