package etcdbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/distlock/driver"
)

var (
	errDeleted   = errors.New("etcd: the lock's key was deleted")
	errLeaseGone = errors.New("etcd: the lease is gone")
	errRetired   = errors.New("etcd: the lease was given up")
	errClosed    = errors.New("etcd: backend closed")
)

// permanent lists what trying again does not mend. An invalid or outdated token
// is not here: the client gets a new one by itself, with the password it has.
var permanent = []error{
	rpctypes.ErrUserEmpty,
	rpctypes.ErrAuthFailed,
	rpctypes.ErrAuthNotEnabled,
	rpctypes.ErrPermissionDenied,
	rpctypes.ErrPermissionNotGranted,
	rpctypes.ErrRoleNotFound,
	rpctypes.ErrRequestTooLarge,
	rpctypes.ErrTooManyOps,
	rpctypes.ErrLeaseTTLTooLarge,
}

// classify turns what a request made with ctx returned into an error whose class
// the caller of the driver can see, and which names the servers. The client's
// error stays reachable.
func (b *backend) classify(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	err = clientv3.ContextError(ctx, err)
	err = fmt.Errorf("etcd at %s: %w", strings.Join(b.cli.Endpoints(), ","), err)
	if b.cli.Ctx().Err() != nil {
		return &driver.PermanentError{Err: fmt.Errorf("the client was closed: %w", err)}
	}
	for _, p := range permanent {
		if errors.Is(err, p) {
			return &driver.PermanentError{Err: err}
		}
	}
	if status.Code(err) == codes.Unimplemented {
		return &driver.PermanentError{Err: fmt.Errorf("not an etcd v3 server: %w", err)}
	}
	return err
}

// refused reports whether err, as classified, is a server's no before it applied
// anything. All other errors leave open whether the request took effect.
func refused(err error) bool {
	if errors.Is(err, rpctypes.ErrNoLeader) {
		return true
	}
	var e rpctypes.EtcdError
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument,
		codes.FailedPrecondition, codes.NotFound, codes.ResourceExhausted:
		return true
	}
	return false
}
