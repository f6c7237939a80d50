package zkbackend

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"example.com/distlock/driver"
)

var (
	errClosed      = errors.New("zookeeper: driver closed")
	errLinkLost    = errors.New("zookeeper: connection lost")
	errRetired     = errors.New("zookeeper: session retired")
	errExpired     = fmt.Errorf("zookeeper: %w", zk.ErrSessionExpired)
	errNodeDeleted = errors.New("zookeeper: lock node deleted by somebody else")
	errGivenUp     = errors.New("zookeeper: attempt was given up")
)

// isAnswer reports whether the server itself gave err, as its answer to the
// request; then the request had no effect. Everything else leaves that open.
func isAnswer(err error) bool {
	for _, e := range []error{
		zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals,
		zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrAuthFailed,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isUnimplemented(err)
}

// isUnimplemented reports that the server does not know the request. The client
// library has no name for that code.
func isUnimplemented(err error) bool {
	return err != nil && err.Error() == "unknown error: -6"
}

// classify adds to err, the answer to a request about path, whether trying
// again can help.
func classify(err error, path string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrNoAuth):
		return permanent("no permission on %s: %w", path, err)
	case errors.Is(err, zk.ErrInvalidACL):
		return permanent("ACL not accepted for %s (an ACL of scheme auth needs Options.Auth): %w", path, err)
	case errors.Is(err, zk.ErrAuthFailed):
		return permanent("credentials refused: %w", err)
	case isUnimplemented(err):
		return permanent("server has no container nodes; ZooKeeper 3.5 or newer is needed: %w", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("zookeeper: %s: %w", path, err)
}

func permanent(format string, args ...any) error {
	return &driver.PermanentError{Err: fmt.Errorf("zookeeper: "+format, args...)}
}

func isPermanent(err error) bool {
	var p *driver.PermanentError
	return errors.As(err, &p)
}
