package testenv

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Required says whether a test that cannot have the named thing must fail
// instead of being skipped: in CI, and where PROCFLEET_REQUIRE, names with
// commas between them, has it.
func Required(name string) bool {
	return os.Getenv("CI") == "true" || slices.Contains(strings.Split(os.Getenv("PROCFLEET_REQUIRE"), ","), name)
}

// Need skips a test without a program, or fails it where that is [Required].
func Need(tb testing.TB, program, install string) {
	tb.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if Required(program) {
		tb.Fatalf("%s is not here; install it: %s", program, install)
	}
	tb.Skipf("%s is not here; install it: %s", program, install)
}
