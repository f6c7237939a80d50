package conformance

import "time"

// SetPatience is for tests in which cases are to fail.
func SetPatience(d time.Duration) { patience, limit = d, 4*d }
