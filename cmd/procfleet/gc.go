package main

import (
	"os"
	"runtime/debug"
)

// collectLater has the garbage of a server role collected when there is four
// times as much of it as live data, instead of as much: what a role keeps is
// small, what it makes and drops for each message is not. GOGC, if it is
// set, counts instead.
func collectLater() {
	const percent = 400
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
