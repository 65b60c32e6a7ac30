package operate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// files returns the names of the files in the rig's folder.
func (g *rig) files() []string {
	g.t.Helper()
	entries, err := os.ReadDir(g.dir)
	if err != nil {
		g.t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// pidFileOf waits until the pid file names the process, and returns the files of the folder.
func (g *rig) pidFileOf(pid int) []string {
	g.t.Helper()
	g.eventually("the pid file names the process", func() bool { return g.read("demo.pid") == strconv.Itoa(pid) })
	return g.files()
}

func (g *rig) read(name string) string {
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// stranger starts a live process that no key manages, and returns its pid.
func (g *rig) stranger() int {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), "sleep", "300")
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended with the context of the test
		_ = cmd.Wait()         // always fails: the test kills the process
	})
	return cmd.Process.Pid
}

// A second spec names the pid file of a supervised process, also by another path.
func TestStartWithAMissingSetupPathLeavesThePidFileOfALiveProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	before := g.pidFileOf(pid)
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(g.dir, alias); err != nil {
		t.Fatal(err)
	}
	for name, pidPath := range map[string]string{"same pid path": g.spec().PidPath, "other pid path": filepath.Join(alias, "demo.pid")} {
		second := g.spec(func(s *agentproto.Spec) {
			s.Key, s.SetupPath, s.PidPath = "second", filepath.Join(g.dir, "missing"), pidPath
		})
		g.want("start", second, agentproto.CodeFailed, "start: ")
		if after := g.files(); !slices.Equal(after, before) || g.read("demo.pid") != strconv.Itoa(pid) {
			t.Errorf("%s: files are %v, before %v", name, after, before)
		}
	}
	if s := g.status(g.spec()); s.PID != pid || !s.Supervised || g.starts() != 1 {
		t.Errorf("status is %+v after %d starts, want pid %d", s, g.starts(), pid)
	}
}

func TestRefusedStartDoesNotMoveAStalePidFile(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.write("demo.pid", "4194303")
	g.write("file", "")
	before := g.files()
	for name, change := range map[string]func(*agentproto.Spec){
		"setup path":        func(s *agentproto.Spec) { s.SetupPath = filepath.Join(g.dir, "missing") },
		"setup path a file": func(s *agentproto.Spec) { s.SetupPath = filepath.Join(g.dir, "file") },
		"account":           func(s *agentproto.Spec) { s.Account = "no-such-account" },
		"shell":             func(s *agentproto.Spec) { s.Shell = "bat" },
	} {
		for _, action := range []string{"start", "restart"} {
			g.want(action, g.spec(change), agentproto.CodeFailed, action+": ")
			if after := g.files(); !slices.Equal(after, before) {
				t.Errorf("%s with a bad %s: files are %v, before %v", action, name, after, before)
			}
		}
	}
}

// The kernel refuses the start after all checks have passed.
func TestStartThatMayNotEnterItsSetupPathRestoresTheStalePidFile(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t) // the account must differ from the agent's
	g := newRig(t)
	g.write("demo.pid", "4194303")
	closed := filepath.Join(g.dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	before := g.files()
	g.want("start", g.spec(func(s *agentproto.Spec) { s.SetupPath, s.Account = closed, "nobody" }), agentproto.CodeFailed, "start: ")
	if after := g.files(); !slices.Equal(after, before) {
		t.Errorf("files are %v, before %v", after, before)
	}
}

func TestPidFileOfALiveStrangerIsNotMoved(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	// This daemon starts although its pid file exists, and writes no pid file.
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = daemon("") })
	stranger := g.stranger()
	g.write("demo.pid", strconv.Itoa(stranger))
	r := g.want("start", spec, 0, "")
	g.warned(r, fmt.Sprintf("stale pid file %s not moved aside: pid %d is a live process", spec.PidPath, stranger))
	if got := g.read("demo.pid"); got != strconv.Itoa(stranger) || slices.Contains(g.files(), "demo.pid.stale") {
		t.Errorf("pid file is %q of %d, files are %v", got, stranger, g.files())
	}
}

func TestProgramThatEndsByItselfStartsBesideThePidFileOfALiveStranger(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.write("demo.pid", strconv.Itoa(g.stranger()))
	r := g.want("start", g.spec(func(s *agentproto.Spec) { s.Type, s.StartCmd = "once", "echo >>starts" }), 0, "")
	g.warned(r, "is a live process")
}

func TestRestartWithAMissingSetupPathLeavesTheProcessRunning(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := elsewhere(t, g.spec())
	spec.PidPath = g.spec().PidPath
	spec.StartCmd = daemon("-pid '" + spec.PidPath + "'")
	pid := g.want("start", spec, 0, "").Status.PID
	before := g.pidFileOf(pid)
	if err := os.Rename(spec.SetupPath, spec.SetupPath+".away"); err != nil {
		t.Fatal(err)
	}
	g.want("restart", spec, agentproto.CodeFailed, fmt.Sprintf("restart: setup path %s does not exist", spec.SetupPath))
	if s := g.status(spec); s.PID != pid || !s.Supervised || s.Phase != "running" {
		t.Errorf("status is %+v, want pid %d", s, pid)
	}
	if after := g.files(); !slices.Equal(after, before) {
		t.Errorf("files are %v, before %v", after, before)
	}
}
