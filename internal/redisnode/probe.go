package redisnode

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/driver"
)

//go:embed probe.lua
var probeSource string

//go:embed trial.lua
var trialSource string

var (
	probeScript = NewScript(probeSource)
	trialScript = NewScript(trialSource)
)

// A Report is what a probe found out.
type Report struct {
	Version  string   // the server's, "" if it does not say
	Cluster  bool     // the server is a node of a Redis Cluster
	Warnings []string // what does not prevent locking but endangers or slows it
}

// CheckClient refuses, before anything is sent, clients that cannot work. It
// returns what is wrong, or nil.
func CheckClient(c redis.UniversalClient) error {
	switch c := c.(type) {
	case nil:
		return errors.New("must not be nil")
	case *redis.Client:
		if c == nil {
			return errors.New("must not be nil")
		}
	case *redis.ClusterClient:
		if c == nil {
			return errors.New("must not be nil")
		}
	case *redis.Ring:
		return errors.New("must not be a Ring: it moves a lock to another server when one does not answer, and then two clients hold it")
	}
	return nil
}

// Probe finds out whether the server is new enough, takes writes and scripts, lets
// this user run their commands, and whether l's prefix is free for wire, a text
// like "redis 1". extra are commands on one key that are needed beside those of
// the shared scripts. What another try does not mend is a driver.PermanentError.
// Where the server does not let this user run INFO, it is used without having been
// asked, and a warning says so.
func Probe(ctx context.Context, c redis.UniversalClient, l Layout, wire string, extra ...string) (Report, error) {
	cluster, isCluster := c.(*redis.ClusterClient)
	info := c.Info
	if isCluster {
		// The node that has the version key answers for the others.
		n, err := cluster.MasterForKey(ctx, l.Version())
		if err != nil {
			return Report{}, Classify(err)
		}
		info = n.Info
	}
	var r Report
	text, err := info(ctx).Result()
	switch {
	case err == nil:
		if r, err = judge(parseInfo(text), isCluster); err != nil {
			return Report{}, err
		}
	case hasCode(err, "NOPERM") || hasCode(err, "ERR unknown command"):
		r.Cluster = isCluster
		r.Warnings = append(r.Warnings, "the server does not let this user run INFO: version, role and maxmemory-policy were not checked")
	default:
		return Report{}, Classify(err)
	}
	var v any
	err = tryOut(ctx, c, l, isCluster, extra)
	if err == nil {
		v, err = probeScript.Run(ctx, c, []string{l.Version()}, wire)
	}
	switch {
	case WrongType(err):
		return Report{}, Conflict(l.Version())
	case hasCode(err, "MOVED"):
		return Report{}, permanent("the server is a node of a Redis Cluster: pass a redis.ClusterClient (%w)", err)
	case err != nil && strings.Contains(err.Error(), "READONLY"):
		return Report{}, permanent("the server is read-only: locks need the primary (%w)", err)
	case err != nil:
		return Report{}, Classify(err)
	}
	if v != wire {
		return Report{}, permanent("prefix %q is in use by %q, this is %q: use another Prefix, or stop all users and delete the key %q", l.Prefix, v, wire, l.Version())
	}
	return r, nil
}

// tryOut finds out whether the user may do what the scripts do. A script is sent
// by its digest and, when the server has forgotten it, as text, so both are tried,
// in one round trip.
func tryOut(ctx context.Context, c Pipeliner, l Layout, cluster bool, extra []string) error {
	args := []any{PublishCommand(cluster), l.probe()}
	for _, command := range extra {
		args = append(args, command)
	}
	p := c.Pipeline()
	eval := p.Eval(ctx, trialScript.src, []string{l.probe()}, args...)
	evalSHA := p.EvalSha(ctx, trialScript.sha, []string{l.probe()}, args...)
	_, _ = p.Exec(ctx) // every command carries its own error
	var denials []denial
	var first, other error
	failed := func(command string, err error) {
		switch {
		case !forbidden(err.Error()):
			if other == nil {
				other = err
			}
		case len(denials) == 0:
			first = err
			fallthrough
		default:
			denials = append(denials, denial{command, err.Error()})
		}
	}
	if eval.Err() != nil {
		failed("EVAL", eval.Err())
	}
	if err := evalSHA.Err(); err != nil && (eval.Err() == nil || !noScript(err)) {
		failed("EVALSHA", err)
	}
	list, _ := eval.Val().([]any)
	for pair := range slices.Chunk(list, 2) {
		failed(fmt.Sprint(pair[0]), fmt.Errorf("%v", pair[len(pair)-1]))
	}
	if len(denials) > 0 { // these stay, the others may pass
		return refused(l, cluster, extra, denials, first)
	}
	return other
}

// judge looks at the fields of INFO.
func judge(info map[string]string, clusterClient bool) (Report, error) {
	r := Report{Version: info["redis_version"], Cluster: info["cluster_enabled"] == "1"}
	major, minor, known := parseVersion(r.Version)
	switch {
	case known && (major < 6 || major == 6 && minor < 2):
		return r, permanent("the server is Redis %s: 6.2 or newer is needed", r.Version)
	case info["role"] == "slave":
		return r, permanent("the server is a replica of %s:%s: locks need the primary", info["master_host"], info["master_port"])
	case r.Cluster && known && major < 7:
		return r, permanent("the server is Redis %s in a Cluster: 7.0 or newer is needed there", r.Version)
	case r.Cluster && !clusterClient:
		return r, permanent("the server is a node of a Redis Cluster: pass a redis.ClusterClient")
	case !r.Cluster && clusterClient:
		return r, permanent("the server is not in a Redis Cluster: pass a redis.Client")
	}
	if !known {
		r.Warnings = append(r.Warnings, "the server does not tell its version")
	}
	if p := info["maxmemory_policy"]; p != "" && p != "noeviction" && info["maxmemory"] != "0" {
		r.Warnings = append(r.Warnings, fmt.Sprintf("maxmemory-policy is %s: the server may evict held locks when memory runs out; set noeviction", p))
	}
	return r, nil
}

func parseInfo(s string) map[string]string {
	m := make(map[string]string)
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			m[k] = v
		}
	}
	return m
}

func parseVersion(s string) (major, minor int, ok bool) {
	f := strings.SplitN(s, ".", 3)
	if len(f) < 2 {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(f[0])
	minor, err2 := strconv.Atoi(f[1])
	return major, minor, err1 == nil && err2 == nil
}

func permanent(format string, args ...any) error {
	return &driver.PermanentError{Err: fmt.Errorf(format, args...)}
}
