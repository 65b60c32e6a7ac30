// Package crashpoint kills its own process at a named point, so that tests
// can show what survives. Without PROCFLEET_CRASH_AT nothing ever happens.
package crashpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// Variable is the environment variable that names the point: "<point>" or
// "<point>:<n>" for the n-th time that it is reached.
const Variable = "PROCFLEET_CRASH_AT"

// Func is called with each point that the process reaches.
type Func func(point string)

// FromEnv returns what [Variable] asks for. The process ends as by SIGKILL:
// nothing deferred runs, nothing buffered is written.
func FromEnv() Func {
	want, nth := parse(os.Getenv(Variable))
	if want == "" {
		return func(string) {}
	}
	var reached atomic.Int64
	return func(point string) {
		if point == want && reached.Add(1) == nth {
			die()
		}
	}
}

func parse(value string) (point string, nth int64) {
	point, count, _ := strings.Cut(value, ":")
	nth, err := strconv.ParseInt(count, 10, 64)
	if err != nil || nth < 1 {
		nth = 1
	}
	return point, nth
}

func die() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {} // the signal arrives before anything else may happen
}
