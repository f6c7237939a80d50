package conformance

import "time"

// SetPatience is for tests in which cases are to fail.
func SetPatience(d time.Duration) { patience, limit = d, 4*d }

// NotRun is what Run logs at its end.
func NotRun(h Harness) string { return notRun(subject{h, h.Capabilities()}) }
