package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.CleanUp()
	os.Exit(code)
}

// call runs the command in this process.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestEveryCommandShowsAnExampleAndItsFlagsInAFewWords(t *testing.T) {
	t.Parallel()
	for _, cmd := range newRoot().Commands() {
		code, stdout, _ := call(t, cmd.Name(), "--help")
		if code != 0 || !strings.Contains(stdout, "Examples:\n  procfleet-bench "+cmd.Name()) {
			t.Errorf("%s --help: exit %d, no example in\n%s", cmd.Name(), code, stdout)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if n := len(strings.Fields(f.Usage)); n > 12 || !strings.Contains(stdout, " --"+f.Name+" ") {
				t.Errorf("%s: --%s is in no group, or its help has more than 12 words: %s", cmd.Name(), f.Name, f.Usage)
			}
		})
	}
}

func TestWrongUsageEndsWith2AndPointsToHelp(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no command":          {},
		"unknown command":     {"fly"},
		"unexpected argument": {"fanout", "now"},
		"bad value of a flag": {"simulate", "--agents", "many"},
		"an impossible fleet": {"simulate", "--agents", "0"},
		"an exposed NATS":     {"nats-server", "--listen", "0.0.0.0:4222"},
		"a bench of nothing":  {"fanout", "--runs", "0"},
		"no task at a time":   {"small", "--in-flight", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := call(t, args...)
			if code != command.ExitUsage || !strings.Contains(stderr, "--help") {
				t.Errorf("procfleet-bench %v: exit %d, want %d; %s", args, code, command.ExitUsage, stderr)
			}
		})
	}
}

// TestRolesNeedProcfleet runs benchmarks from a folder that has no procfleet.
func TestRolesNeedProcfleet(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"or name it with --procfleet": {"embedded"},
		"--procfleet: ":               {"embedded", "--procfleet", "nowhere/procfleet"},
	} {
		code, _, stderr := call(t, args...)
		if code != command.ExitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit %d, %q, want %q", args, code, stderr, want)
		}
	}
}
