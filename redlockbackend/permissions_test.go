package redlockbackend

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/internal/testbed"
)

// A user who lacks a command on a minority of the nodes can lock; on a majority it
// is an error that names the command and what the user needs, and leaves nothing.
func TestCapabilitiesOfAUserWhoLacksACommand(t *testing.T) {
	s := testbed.RedisNodes(t, 3)
	admins := make([]*redis.Client, len(s))
	for i, srv := range s {
		admins[i] = redis.NewClient(&redis.Options{Addr: srv.Addr()})
		defer admins[i].Close()
		defer admins[i].Do(context.Background(), "ACL", "DELUSER", "lacking")
	}
	login := func(o *redis.Options) { o.Username, o.Password = "lacking", "pw" }
	for _, command := range []string{"get", "set", "del", "pttl", "pexpire", "time", "publish"} {
		for lacking := 1; lacking <= 2; lacking++ {
			for i, admin := range admins {
				rules := []any{"ACL", "SETUSER", "lacking", "reset", "on", ">pw", "~*", "&*", "+@all", "-exists"}
				if i < lacking {
					rules = append(rules, "-"+command)
				}
				if err := admin.Do(t.Context(), rules...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			r := open(t, s, addrs(s), nil, login)
			_, err := r.Capabilities(t.Context())
			if lacking == 1 {
				if err != nil {
					t.Errorf("without %s on one of three: %v", command, err)
					continue
				}
				r.release(r.must(request("n")).Lease)
				continue
			}
			wantQuorum(t, err, true)
			for _, text := range []string{"lacks the permission to run " + strings.ToUpper(command) + ":", "~" + r.opt.Prefix + ":* ", " +" + command + " "} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("without %s on two of three: %v; want %q", command, err, text)
				}
			}
			for i := range lacking {
				if left := admins[i].Keys(t.Context(), "*"+r.opt.Prefix+"*").Val(); len(left) != 0 {
					t.Errorf("keys %q are left", left)
				}
			}
		}
	}
}
