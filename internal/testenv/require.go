package testenv

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Required reports whether a test must fail, instead of being skipped, if the named
// prerequisite is missing. The environment variable PROCFLEET_REQUIRE lists the required
// names, separated by commas. CI requires all prerequisites that can be installed, but no
// kernel features such as "kmsg" and "cgroups".
func Required(name string) bool {
	return slices.Contains(strings.Split(os.Getenv("PROCFLEET_REQUIRE"), ","), name)
}

// Long skips a test that takes too long for each change, unless the environment variable
// PROCFLEET_TEST_LONG is set, as `make test/long` does. what describes what the test adds to
// the tests that always run.
func Long(tb testing.TB, what string) {
	tb.Helper()
	if !IsLong() {
		tb.Skipf("make test/long runs this: %s", what)
	}
}

// IsLong reports whether tests have the time of `make test/long`.
func IsLong() bool { return os.Getenv("PROCFLEET_TEST_LONG") != "" }

// Missing ends a test whose prerequisite name is missing. If name is [Required], the test
// fails, otherwise it is skipped. format and args describe what is missing.
func Missing(tb testing.TB, name, format string, args ...any) {
	tb.Helper()
	if Required(name) {
		tb.Fatalf(format, args...)
	}
	tb.Skipf(format, args...)
}

// Need calls [Missing] if program is not installed. In CI every program is required.
func Need(tb testing.TB, program, install string) {
	tb.Helper()
	_, err := exec.LookPath(program)
	if err != nil && os.Getenv("CI") == "true" {
		tb.Fatalf("%s is not here; install it: %s", program, install)
	}
	if err != nil {
		Missing(tb, program, "%s is not here; install it: %s", program, install)
	}
}

// NeedRoot calls [Missing] if the test does not run as root.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		Missing(tb, "root", "this needs root: run the suite as root")
	}
}
