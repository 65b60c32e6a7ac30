//go:build !linux

package agent

import "time"

// elapsedClock returns the monotonic clock. If it stops while the machine is suspended, the
// wall clock shows the difference.
func elapsedClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

// On systems other than Linux a data folder has no binding: a copy is detected by its
// incarnation.

func machineID() string { return "" }

func bootID() string { return "" }

func inodeOf(string) (uint64, error) { return 0, nil }

func kernelRelease() string { return "" }
