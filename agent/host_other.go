//go:build !linux

package agent

import "time"

// elapsedClock returns the monotonic clock. Where it stops while the machine is
// suspended, the wall clock shows how long that was.
func elapsedClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

// What a data folder is bound to is known on Linux alone; elsewhere a copy is
// noticed by its incarnation.

func machineID() string { return "" }

func bootID() string { return "" }

func inodeOf(string) (uint64, error) { return 0, nil }
