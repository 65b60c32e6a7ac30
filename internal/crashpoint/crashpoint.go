// Package crashpoint kills its own process at a named point, for tests of crash
// recovery. Without PROCFLEET_CRASH_AT it does nothing.
package crashpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// Variable is the environment variable with the point: "<point>", or
// "<point>:<n>" to crash when the point is reached for the n-th time.
const Variable = "PROCFLEET_CRASH_AT"

// FromEnv returns a function to call with the name of each point that the process
// reaches. It kills the process at the point in [Variable], as by SIGKILL: deferred
// functions do not run, and buffers are not flushed.
func FromEnv() func(point string) {
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
	select {} // wait for the signal
}
