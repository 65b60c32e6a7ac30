//go:build !linux

package agent

import "time"

// elapsedClock returns the monotonic clock. Where it stops while the machine is
// suspended, the wall clock shows how long that was.
func elapsedClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
