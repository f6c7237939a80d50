package distlock

import "context"

// reenter answers a Lock whose ctx carries the lock already: with a counted
// second handle on the holding, or with an error, since Go has no identity of
// goroutines by which waiting could make sense. It returns nil, nil if ctx
// carries no living holding of name.
//
// The count is kept here and not at the server, so that all operations there can
// be repeated after a lost reply.
func (c *Client) reenter(ctx context.Context, name string, allowed bool) (*Lock, error) {
	h, _ := ctx.Value(heldKey{c, name}).(*holding)
	if h == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.unlock()
	h.checkClock()
	switch {
	case h.ended != nil:
		return nil, nil
	case !allowed:
		return nil, errDeadlock{}
	}
	return h.newHandle(ctx), nil
}

// errDeadlock matches ErrDeadlock and ErrHeld.
type errDeadlock struct{}

func (errDeadlock) Error() string   { return ErrDeadlock.Error() }
func (errDeadlock) Unwrap() []error { return []error{ErrDeadlock, ErrHeld} }
