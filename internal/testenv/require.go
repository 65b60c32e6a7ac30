package testenv

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Required says whether a test that cannot have the named thing must fail
// instead of being skipped: where PROCFLEET_REQUIRE, names with commas between
// them, has it. CI names what can be installed; what the kernel of a machine
// has or has not, such as "kmsg" and "cgroups", it takes as it is.
func Required(name string) bool {
	return slices.Contains(strings.Split(os.Getenv("PROCFLEET_REQUIRE"), ","), name)
}

// Missing ends a test that cannot have the named thing: as a failure where that
// is [Required], else as a skip. The message says what is missing, or why.
func Missing(tb testing.TB, name, format string, args ...any) {
	tb.Helper()
	if Required(name) {
		tb.Fatalf(format, args...)
	}
	tb.Skipf(format, args...)
}

// Need is [Missing] where a program is not here. In CI every program is required.
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

// NeedRoot is [Missing] for who is not root.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		Missing(tb, "root", "this needs root: run the suite as root")
	}
}
