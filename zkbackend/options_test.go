package zkbackend

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"example.com/distlock"
)

func TestNewRefuses(t *testing.T) {
	good := []string{"127.0.0.1:2181"}
	for _, c := range []struct {
		name    string
		servers []string
		opts    *Options
		says    string
	}{
		{"no servers", nil, nil, "servers"},
		{"empty list", []string{}, nil, "servers"},
		{"empty address", []string{""}, nil, "servers[0]"},
		{"no port", []string{"zk-1"}, nil, "host:port"},
		{"no host", []string{":2181"}, nil, "host:port"},
		{"port 0", []string{"zk-1:0"}, nil, "port"},
		{"port too large", []string{"zk-1:65536"}, nil, "port"},
		{"port by name", []string{"zk-1:zookeeper"}, nil, "port"},
		{"chroot", []string{"zk-1:2181/x"}, nil, "port"},
		{"twice", []string{"zk-1:2181", "zk-2:2181", "zk-1:2181"}, nil, "servers[2]"},
		{"relative root", good, &Options{Root: "locks"}, "Options.Root"},
		{"root of all", good, &Options{Root: "/"}, "Options.Root"},
		{"root ends with /", good, &Options{Root: "/a/"}, "Options.Root"},
		{"root with //", good, &Options{Root: "/a//b"}, "Options.Root"},
		{"root with ..", good, &Options{Root: "/a/../b"}, "Options.Root"},
		{"root with a blank", good, &Options{Root: "/a b"}, "Options.Root"},
		{"root of the server", good, &Options{Root: "/zookeeper/quota"}, "Options.Root"},
		{"root too long", good, &Options{Root: "/" + strings.Repeat("a", 255)}, "Options.Root"},
		{"no scheme", good, &Options{Auth: []Auth{{}}}, "Options.Auth[0]"},
		{"negative tick", good, &Options{Tick: -time.Second}, "Options.Tick"},
	} {
		_, err := New(c.servers, c.opts)
		if !errors.Is(err, distlock.ErrInvalid) || !mentions(err, c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestDefaults(t *testing.T) {
	d, err := newBackend([]string{"zk-1:2181", "[::1]:2181"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d.layout.root != "/distlock" || d.opts.ACL[0] != zk.WorldACL(zk.PermAll)[0] {
		t.Errorf("root %q, ACL %v", d.layout.root, d.opts.ACL)
	}
	d, err = newBackend([]string{"zk-1:2181"}, &Options{Auth: []Auth{{"digest", []byte("u:p")}}})
	if err != nil {
		t.Fatal(err)
	}
	if d.opts.ACL[0] != zk.AuthACL(zk.PermAll)[0] {
		t.Errorf("ACL with Auth: %v", d.opts.ACL)
	}
	// What needs no server is told without one.
	if caps, err := d.Capabilities(canceled(t)); err == nil || caps.Backend != "zookeeper" {
		t.Errorf("%+v %v", caps, err)
	}
}
