package distlock

import "time"

// SetWallSkew makes the wall clock of c run ahead of the monotonic one by d, as
// after a suspend, during which Linux's monotonic clock stands still.
func (c *Client) SetWallSkew(d time.Duration) { c.wallSkew.Store(int64(d)) }
