package redisnode

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Address says, for people, where c's servers are.
func Address(c redis.UniversalClient) string {
	switch c := c.(type) {
	case *redis.Client:
		return c.Options().Addr
	case *redis.ClusterClient:
		return strings.Join(c.Options().Addrs, ", ")
	}
	return "the server"
}

// Calls makes calls of the client library end when their context does. The
// library looks at a context between its attempts, but while it reads a reply it
// honours at most the context's deadline, and by default not even that. So each
// call runs in a goroutine of its own and is left to its read timeout when nobody
// waits for it any more. The zero value is ready to use.
type Calls struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0; made by Wait
}

// Go runs fn and waits for it or for the end of ctx, whose cause it returns then.
// fn must not write to what the caller reads after an error.
func (c *Calls) Go(ctx context.Context, fn func(ctx context.Context)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if ctx.Done() == nil {
		fn(ctx)
		return nil
	}
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer c.end()
		defer close(done)
		fn(ctx)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-done: // both: the answer counts
		return nil
	default:
		return context.Cause(ctx)
	}
}

func (c *Calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// Wait returns when no call runs any more, or with ctx's cause.
func (c *Calls) Wait(ctx context.Context) error {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return nil
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
