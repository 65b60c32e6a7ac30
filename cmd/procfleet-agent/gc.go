package main

import (
	"os"
	"runtime/debug"
)

// garbage is how much garbage there may be before it is collected, in percent
// of the live data: half of the runtime's default. An agent is idle for most of
// its life, and shares its host with the programs that it supervises.
const garbage = 50

// collectSooner sets the percentage of garbage. GOGC, if it is set, counts
// instead.
func collectSooner() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
