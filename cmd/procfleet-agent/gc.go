package main

import (
	"os"
	"runtime/debug"
)

// garbage is the GC percentage, half of the runtime's default: an agent is mostly
// idle and shares its host with the programs that it supervises.
const garbage = 50

// collectSooner sets the GC percentage unless GOGC is set.
func collectSooner() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
