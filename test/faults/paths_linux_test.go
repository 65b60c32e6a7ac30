package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

// TestPathTricks uses paths, accounts and folders that an attacker prepared to
// misuse the agent, which is root.
func TestPathTricks(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	nats := testenv.StartNATS(t)
	for _, trick := range []row{
		{"a pid file that is a secret of another", secretForPidFile},
		{"a pid file whose opening does something", pipeForPidFile},
		{"a pid file that is changed while it is read", changingPidFile},
		{"a pid file that names another user's new process", foreignNewPid},
		{"a run folder that an account leads elsewhere", linkedRunFolder},
		{"paths and accounts that are none", strangeNames},
		{"a data folder that others may write", foreignData},
	} {
		t.Run(trick.name, func(t *testing.T) {
			t.Parallel()
			trick.run(t, agenttest.New(t, nats))
		})
	}
}

var allActions = []string{"status", "start", "stop", "restart", "reload", "kill", "supervise", "release"}

func secretForPidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	const secret = "planted-4711"
	p.Write("secret", secret+" "+secret+"\n")
	if err := os.Symlink("secret", p.Spec.PidPath); err != nil {
		t.Fatal(err)
	}
	p.Spec.StartCmd, p.Spec.RestartCmd, p.Spec.ReloadCmd = "false", "false", "false"
	for _, action := range allActions {
		text, err := json.Marshal(h.Do(action, p.Spec))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "planted") {
			t.Errorf("%s shows the content of the file: %s", action, text)
		}
		if action == "status" && !strings.Contains(string(text), "does not begin with a pid") {
			t.Errorf("the status is %s", text)
		}
	}
	if out := h.Agent.Output(); strings.Contains(out, secret) {
		t.Error("the agent's log contains the content of the file")
	}
}

// pipeForPidFile uses a pipe, whose writer blocks until a reader opens it.
func pipeForPidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	if err := syscall.Mkfifo(p.Spec.PidPath, 0o600); err != nil {
		t.Fatal(err)
	}
	writer := p.Background(p.Command("sh", "-c", "echo whole >demo.pid"))
	testenv.Eventually(t, agenttest.Patience, func() bool { return agenttest.State(writer.Process.Pid) == "S" }, "the writer waits")
	h.Says(h.Do("status", p.Spec), "it is not a regular file")
	read := make(chan string, 1)
	go func() {
		text, err := os.ReadFile(p.Spec.PidPath)
		if err != nil {
			text = []byte(err.Error())
		}
		read <- string(text)
	}()
	select {
	case text := <-read:
		if text != "whole\n" {
			t.Errorf("the pipe's reader got %q", text)
		}
	case <-time.After(agenttest.Patience):
		t.Error("the agent opened the pipe: its writer has ended")
	}
}

// changingPidFile changes the target of the path repeatedly.
func changingPidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := p.Spawn("-pid", "real.pid")
	if err := syscall.Mkfifo(p.Path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	done, swapped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				swapped <- nil
				return
			default:
			}
			target := []string{"real.pid", "fifo", "/dev/zero", "/proc/self/mem", "demo.pid", "missing"}[i%6]
			err := os.Symlink(target, p.Path("next"))
			if err == nil {
				err = os.Rename(p.Path("next"), p.Spec.PidPath)
			}
			if err != nil {
				swapped <- err
				return
			}
		}
	}()
	for range 100 {
		// The agent may have read either target, but never accepts another process.
		if s := h.Status(p.Spec); s.Running && s.PID != pid {
			t.Errorf("status is %+v", s)
		}
	}
	close(done)
	if err := <-swapped; err != nil {
		t.Fatal(err)
	}
}

// foreignNewPid runs a program of an account without rights, which writes the pid
// of a new process of root into its pid file.
func foreignNewPid(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	letIn(t, p.Dir)
	if err := os.Chown(p.Dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	p.Spec.Account = "nobody"
	p.Spec.StartCmd = "echo start >>starts; until [ -s victim ]; do sleep 0.05; done; cat victim >demo.pid"
	begun := h.Begin("start", p.Spec)
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.Starts() == 1 }, "the start command runs")
	cmd := h.Program().Command("sleep", "300")
	cmd.Dir = "/"
	victim := p.Background(cmd).Process.Pid
	if err := os.WriteFile(p.Path("next"), fmt.Appendln(nil, victim), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.Path("next"), p.Path("victim")); err != nil {
		t.Fatal(err)
	}
	h.Says(h.Check(h.Result(begun), agentproto.CodeCheckFailed, "start: "), "is sleep")
	for _, action := range []string{"stop", "kill"} {
		h.Expect(action, p.Spec, agentproto.CodeNotRunning, action)
	}
	if !agenttest.Alive(victim) {
		t.Error("root's process was ended for the account")
	}
}

// linkedRunFolder replaces the run folder of an account by a link. Before a start
// the agent, which is root, renames a stale pid file; it must not rename the target
// of the link.
func linkedRunFolder(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	victim := filepath.Join(t.TempDir(), "demo.pid") // owned by root, in a folder of root
	if err := os.WriteFile(victim, []byte("4194303\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.Spec.Account = "nobody"
	p.Spec.PidPath = p.Path("run/demo.pid")
	if err := errors.Join(os.Symlink(filepath.Dir(victim), p.Path("run")), os.Lchown(p.Path("run"), nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"start", "restart"} {
		r := h.Do(action, p.Spec)
		if r.Code == agentproto.CodeSuccess || !strings.Contains(r.Message, "a symbolic link of uid 65534") {
			t.Errorf("%s: %d %q", action, r.Code, r.Message)
		}
	}
	if _, err := os.Stat(victim); err != nil || p.Starts() != 0 {
		t.Errorf("root's file: %v, %d starts", err, p.Starts())
	}
}

func strangeNames(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = "echo start >>" + p.Path("starts")
	change := map[string]func(*agentproto.Spec){}
	for _, path := range []string{"../etc/passwd", "etc", ".", "~root/x", "\x00", "/a\x00b"} {
		change[fmt.Sprintf("setup_path %q", path)] = func(s *agentproto.Spec) { s.SetupPath = path }
	}
	for _, path := range []string{"/etc/shadow/x", "/proc/1/cwd/../../../etc/shadow/", "/dev/tty", "/etc/passwd"} {
		change[fmt.Sprintf("setup_path %q", path)] = func(s *agentproto.Spec) { s.SetupPath = path }
	}
	for _, account := range []string{"-u", "--help", "root:x", "root\n", "\x00", "../root", "$(id)", "root nobody", strings.Repeat("a", 1<<16)} {
		change[fmt.Sprintf("account %.20q", account)] = func(s *agentproto.Spec) { s.Account = account }
	}
	for what, change := range change {
		r := h.Do("start", p.With(change))
		if r.Code == agentproto.CodeSuccess || r.Message == "" || p.Starts() != 0 {
			t.Errorf("%s: %d %q, %d starts", what, r.Code, r.Message, p.Starts())
		}
	}
	// A path with a detour names the same place.
	pid := p.Spawn("-pid", "demo.pid")
	s := h.Status(p.With(func(s *agentproto.Spec) {
		s.SetupPath = p.Dir + "/../../" + filepath.Base(filepath.Dir(p.Dir)) + "/" + filepath.Base(p.Dir) + "/."
	}))
	if s.PID != pid {
		t.Errorf("status is %+v, want pid %d", s, pid)
	}
}

func foreignData(t *testing.T, h *agenttest.Host) {
	inside := func(name string, mode os.FileMode, owner int) string {
		dir := filepath.Join(h.Data, name)
		err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode), os.Chown(dir, owner, owner))
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	link := filepath.Join(h.Data, "link")
	if err := os.Symlink(inside("other", 0o700, nobody), link); err != nil {
		t.Fatal(err)
	}
	for dir, says := range map[string]string{
		inside("everybody", 0o777, 0):            "has mode 0777",
		inside("sticky", 0o777|os.ModeSticky, 0): "has mode 0777",
		inside("group", 0o770, 0):                "has mode 0770",
		inside("foreign", 0o700, nobody):         "belongs to uid 65534",
		link:                                     "belongs to uid 65534",
	} {
		h.Data = dir
		h.Launch()
		h.Agent.WaitOutput(t, agenttest.Patience, says)
		if code := h.Agent.Wait(t, agenttest.Patience); code == 0 {
			t.Errorf("%s: the agent ended without an error", dir)
		}
	}
}
