package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// An operator registers a process, operates it by its name, queries its state, and unregisters it.
func TestAProcessIsRegisteredOperatedByItsNameAndLetGo(t *testing.T) {
	t.Parallel()
	s := up(t, t.TempDir())
	spec := sleeperSpec(t)
	named := []string{"--namespace", "test", "--name", "sleeper"}
	onHost := append([]string{"--host", "0:127.0.0.1"}, named...)
	with := func(words string, flags []string) []string { return append(strings.Fields(words), flags...) }
	show := func(what string) {
		t.Helper()
		var last string
		testenv.Eventually(t, 30*time.Second, func() bool {
			last = s.procfleet(0, with("process show", onHost)...)
			return strings.Contains(last, what)
		}, "process show to say "+what)
		if list := s.procfleet(0, "process", "list", "--namespace", "test"); !strings.Contains(list, what) {
			t.Errorf("the list does not say %q:\n%s", what, list)
		}
	}

	if out := s.procfleet(0, "process", "list", "--namespace", "test"); !strings.Contains(out, "no processes") {
		t.Errorf("before anything is registered:\n%s", out)
	}
	s.procfleet(exitHostsFailed, with("op start --registered --wait", onHost)...)
	s.procfleet(0, "registration", "add", "-f", spec, "--host", "0:127.0.0.1")
	show("yes         unknown to the agent")
	if out := s.procfleet(0, "registration", "add", "--keep", "-f", spec, "--host", "0:127.0.0.1"); !strings.Contains(out, "850") {
		t.Errorf("registered again:\n%s", out)
	}

	out := s.procfleet(0, with("op start --registered --wait", named)...) // wherever it is registered
	pid := readPID(filepath.Join(filepath.Dir(spec), "sleeper.pid"))
	if !alive(pid) || !strings.Contains(out, fmt.Sprintf("up, pid %d, supervised", pid)) {
		t.Fatalf("pid %d, output\n%s", pid, out)
	}
	show(fmt.Sprintf("yes         up, pid %d, supervised", pid))

	s.procfleet(0, with("registration remove", onHost)...)
	show(fmt.Sprintf("no          up, pid %d\n", pid)) // neither registered nor supervised
	if !alive(pid) {
		t.Errorf("process %d was ended with its registration", pid)
	}
	if out := s.procfleet(0, with("registration remove", onHost)...); !strings.Contains(out, "829") {
		t.Errorf("removed again:\n%s", out)
	}
}
