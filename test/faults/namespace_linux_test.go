package faults

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

// space is a separate part of the host for a test, which exists as long as its
// keeper lives.
type space struct {
	keeper int // pid of a process in it
	enter  []string
}

// newSpace creates a mount namespace, and with pids also a PID namespace. Its first
// process is the keeper, which reaps no children. The script prepares it.
func newSpace(t *testing.T, pids bool, script string) *space {
	t.Helper()
	s := &space{}
	// Mounts here are not visible elsewhere.
	attributes := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if pids {
		attributes.Cloneflags = syscall.CLONE_NEWPID
		script = "mount -t proc proc /proc\n" + script
	}
	cmd := exec.Command("sh", "-ec", script+"\necho ready; exec sleep 600")
	cmd.SysProcAttr = attributes
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // an error means that it has ended
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the namespace was not prepared: %q, %v", line, err)
	}
	s.keeper = cmd.Process.Pid
	s.enter = []string{"nsenter", "--target", strconv.Itoa(s.keeper), "--mount"}
	if pids {
		s.enter = append(s.enter, "--pid")
	}
	s.enter = append(s.enter, "--")
	return s
}

// run runs a script in the namespace and returns its output.
func (s *space) run(t *testing.T, script string) string {
	t.Helper()
	line := append(append([]string{}, s.enter...), "sh", "-ec", script)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// outside returns the pid outside a PID namespace of the process with a pid in it.
func (s *space) outside(t *testing.T, h *agenttest.Host, within int) int {
	t.Helper()
	for _, pid := range h.Marked() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(string(status), "NSpid:")
		line, _, _ := strings.Cut(after, "\n")
		if pids := strings.Fields(line); len(pids) > 1 && pids[len(pids)-1] == strconv.Itoa(within) {
			return pid
		}
	}
	return 0
}

// entered returns the pid of the agent in a PID namespace. Its parent, which
// entered the namespace, waits outside.
func entered(t *testing.T, h *agenttest.Host) int {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", h.Agent.PID()))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
