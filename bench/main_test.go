package bench

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"example.com/distlock/internal/testbed"
)

// TestMain is also the main of the process that the crash workload kills, as
// cmd/distlock is outside of tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == HoldCommand {
		if err := HoldMain(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	redis.SetLogger(silent{}) // servers are killed on purpose
	// What dials a dead node in the Redis client sees only once a second that its
	// pool was closed.
	testbed.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
