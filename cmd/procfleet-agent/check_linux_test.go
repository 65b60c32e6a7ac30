package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/agent/hostcheck"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/testenv"
)

// check runs the command in this process.
func check(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"check"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestCheckSaysWhatIsUnsafeAboutTheRunningAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start("")
	testenv.Eventually(t, patience, func() bool {
		code, _, _ := ps(t, "--data", h.data)
		return code == 0
	}, "the agent can be asked")
	if err := unix.Prlimit(h.child.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 300, Max: 300}, nil); err != nil {
		t.Fatal(err)
	}
	code, out, errs := check(t, "--data", h.data, "--json")
	var answer struct {
		Safe     bool
		Findings []hostcheck.Finding
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatalf("said %q: %v", out, err)
	}
	found := ""
	for _, f := range answer.Findings {
		if f.Check == hostcheck.FileLimit {
			found = f.Problem
		}
	}
	if code != command.ExitFailed || answer.Safe || !strings.Contains(found, "300 files") || !strings.Contains(errs, "unsafe") {
		t.Errorf("exit code %d, said %s and %s", code, out, errs)
	}
}

func TestCheckWithoutAnAgentLooksAtTheHost(t *testing.T) {
	t.Parallel()
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		testenv.Missing(t, "shm", "/dev/shm is no tmpfs here")
	}
	dir, err := os.MkdirTemp("/dev/shm", "procfleet-check-") //nolint:usetesting // it must be on this file system
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	code, out, _ := check(t, "--data", dir)
	if code != command.ExitFailed || !strings.Contains(out, "data_folder") || !strings.Contains(out, "tmpfs") {
		t.Errorf("exit code %d, said %s", code, out)
	}
	if code, _, errs := check(t, "surplus"); code != command.ExitUsage || !strings.Contains(errs, `unexpected argument "surplus"`) {
		t.Errorf("exit code %d, said %s", code, errs)
	}
}
