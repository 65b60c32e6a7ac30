package main

import (
	"os"
	"runtime/debug"
)

// How much garbage there may be before it is collected, in percent of the live
// data, in place of the 100 of the runtime: what a worker keeps is small, what
// it makes and drops for each message is not. A dispatcher has all of a big
// request in memory while it accepts it.
const (
	dispatcherGarbage = 200
	workerGarbage     = 300
)

// collectLater sets the percentage of garbage. GOGC, if it is set, counts
// instead.
func collectLater(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
