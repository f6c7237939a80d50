package redlockbackend

import (
	_ "embed"
	"fmt"
	"strconv"

	"example.com/distlock/internal/redisnode"
)

// Every node has, under the prefix and, but for the version key, with the bucket
// b of the name, one of 1024:
//
//	<prefix>:version           string   "redlock 1"
//	<prefix>:{b}:lock:<name>   string   the lock; see redisnode.Value
//	<prefix>:{b}:clock         string   the largest number accepted in the bucket; no expiry
//	<prefix>:{b}:dead:<owner>  string   tombstone: the latest try of the owner that was given up
//	<prefix>:{b}:hints         channel  releases; the message is <owner>.<try> <name>
//
// In a lock's value the owner is <owner>.<try>, and the number is the one that
// this node accepted for it, 0 if it has accepted none. docs/wire.md has this with
// test vectors.

// wire is the value of the version key. A client that finds another one refuses
// to work.
const wire = "redlock 1"

var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed accept.lua
	acceptSource string
	//go:embed release.lua
	releaseSource string
	//go:embed refill.lua
	refillSource string

	acquireScript = redisnode.NewScript(acquireSource)
	acceptScript  = redisnode.NewScript(acceptSource)
	releaseScript = redisnode.NewScript(releaseSource)
	refillScript  = redisnode.NewScript(refillSource)
)

func wireOwner(owner string, try uint64) string {
	return owner + "." + strconv.FormatUint(try, 10)
}

// verdict is the first word of the replies of acquire.lua and accept.lua.
type verdict string

const (
	accepted verdict = "accepted"
	granted  verdict = "granted"
	held     verdict = "held"
	dead     verdict = "dead"
	behind   verdict = "behind"
	lost     verdict = "lost"
)

// vote is one node's reply in a round.
type vote struct {
	verdict verdict
	counter uint64
	left    int64  // held: PTTL
	holder  string // held: its owner
}

// parseVote reads a reply of acquire.lua or accept.lua.
func parseVote(reply any) (vote, error) {
	f, _ := reply.([]any)
	bad := fmt.Errorf("unexpected reply %v", reply)
	if len(f) < 2 {
		return vote{}, bad
	}
	word, _ := f[0].(string)
	text, _ := f[1].(string)
	if word == "conflict" {
		return vote{}, redisnode.Conflict(text)
	}
	v := vote{verdict: verdict(word)}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return vote{}, bad
	}
	v.counter = n
	switch v.verdict {
	case accepted, granted, dead, behind, lost:
		return v, nil
	case held:
		if len(f) != 4 {
			return vote{}, bad
		}
		var ok1, ok2 bool
		v.left, ok1 = f[2].(int64)
		v.holder, ok2 = f[3].(string)
		if ok1 && ok2 {
			return v, nil
		}
	}
	return vote{}, bad
}

// parseCount reads a reply that is 1 or 0. Anything else is an error, so that it
// never counts as success.
func parseCount(reply any) (bool, error) {
	n, ok := reply.(int64)
	if !ok || n != 0 && n != 1 {
		return false, fmt.Errorf("unexpected reply %v", reply)
	}
	return n == 1, nil
}
