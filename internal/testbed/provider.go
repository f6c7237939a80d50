package testbed

import (
	"context"
	"errors"
	"fmt"
)

// kind is a kind of server.
type kind string

const (
	kindRedis     kind = "redis"
	kindZooKeeper kind = "zookeeper"
	kindEtcd      kind = "etcd"
)

// spec says how one server is started, whatever starts it.
type spec struct {
	kind kind
	name string // distinct within the bed
	port int    // where clients connect

	// args and files get the directory under which the server's files lie: its
	// data goes to dir/data, its configuration to dir/conf. Files' keys are paths
	// relative to dir.
	args  func(dir string) []string
	files func(dir string) map[string]string
	jvm   string // flags for java

	mustKeepData bool // the server cannot start again without its data
}

// provider makes servers run.
type provider interface {
	// describe names the provider and what it uses, in a few words.
	describe() string
	// launch starts a server; it does not wait until the server answers.
	launch(ctx context.Context, s *spec) (instance, error)
	close() error
}

// instance is a server that was launched. Its methods are not called
// concurrently, but for exited.
type instance interface {
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	// kill ends the server at once, without a chance to write anything, and
	// returns when it is gone. Killing what is gone is no error.
	kill(ctx context.Context) error
	// start runs a killed server again.
	start(ctx context.Context) error
	// wipe removes a killed server's data.
	wipe(ctx context.Context) error
	// remove kills the server and deletes all that is left of it.
	remove(ctx context.Context) error
	// exited reports that the server has ended by itself or was killed.
	exited(ctx context.Context) bool
	// logs returns the end of the server's output.
	logs(ctx context.Context) string
}

// MissingError says that a kind of server cannot be had on this machine, what is
// missing and what helps.
type MissingError struct {
	What string // what was wanted
	Why  string // what is missing
	Help string // what to do
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("testbed: no %s: %s; %s", e.What, e.Why, e.Help)
}

// errExited is matched when a server ended before it answered.
var errExited = errors.New("the server ended before it answered")
