package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var pidFileRows = []row{
	{"F1_stale_pid_file_names_another_program", stalePidFile},
	{"F2_reused_pid_with_the_same_name", sameNameElsewhere},
	{"F4_pid_file_deleted_while_running", pidFileDeleted},
	{"F5_pid_file_written_late", latePidFile},
	{"F6_process_and_pid_file_come_after_the_window", tooLatePidFile},
	{"F7_pid_file_with_no_usable_pid", uselessPidFile},
	{"F8_pid_file_with_more_than_a_pid", untidyPidFile},
	{"F9_pid_file_that_is_no_file", strangePidFile},
	{"F10_pid_file_unreadable", unreadablePidFile},
	{"F11_pid_file_names_a_thread", threadInPidFile},
}

func stalePidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	stranger := p.Background(p.Command("sleep", "300")).Process.Pid
	stale := fmt.Sprintln(stranger)

	p.Write("demo.pid", stale)
	r := h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	h.Says(r, "stale pid file")
	if r.Status.PID == stranger || r.Status.PID != p.PID() {
		t.Errorf("pid %d, other process %d, pid file %d", r.Status.PID, stranger, p.PID())
	}
	h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
	for _, action := range []string{"stop", "kill"} {
		p.Write("demo.pid", stale)
		h.Says(h.Expect(action, p.Spec, agentproto.CodeNotRunning, action), "stale pid file")
	}
	if !agenttest.Alive(stranger) {
		t.Error("the other process was ended")
	}
}

func sameNameElsewhere(t *testing.T, h *agenttest.Host) {
	h.Start()
	ours, theirs := h.Program(), h.Program()
	other := theirs.Spawn()
	ours.Write("demo.pid", fmt.Sprintln(other))
	for _, action := range []string{"stop", "kill"} {
		h.Says(h.Expect(action, ours.Spec, agentproto.CodeNotRunning, action), "is another demo")
	}
	if r := h.Expect("start", ours.Spec, agentproto.CodeSuccess, ""); r.Status.PID == other {
		t.Error("the agent accepted the other program")
	}
	h.Expect("stop", ours.Spec, agentproto.CodeSuccess, "")

	// Half of the identity matches, so the agent neither signals the process nor
	// starts a second one.
	cmd := ours.Command(theirs.Path(agenttest.Name))
	cmd.Dir = "/"
	doubtful := ours.Background(cmd).Process.Pid
	ours.Write("demo.pid", fmt.Sprintln(doubtful))
	for _, action := range []string{"start", "stop", "kill"} {
		h.Says(h.Expect(action, ours.Spec, agentproto.CodeFailed, action), "state uncertain")
	}
	if !agenttest.Alive(other) || !agenttest.Alive(doubtful) {
		t.Error("a process with an uncertain identity was ended")
	}
	if n := ours.Starts(); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func pidFileDeleted(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	if err := os.Remove(p.Spec.PidPath); err != nil {
		t.Fatal(err)
	}
	r := h.Expect("start", p.Spec, agentproto.CodeAlreadyRunning, fmt.Sprintf("start: process is already running, pid %d", pid))
	if !r.Status.Supervised {
		t.Error("no longer supervised")
	}
	h.Stop()
	h.Start()
	r = h.Expect("start", p.Spec, agentproto.CodeAlreadyRunning, "start: process is already running")
	if r.Status.PID != pid || p.Starts() != 1 {
		t.Errorf("pid %d after %d starts, want %d after 1", r.Status.PID, p.Starts(), pid)
	}
	h.End(pid)
	h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool { return s.Running && s.PID != pid })
	p.WaitRunning(1)
}

func latePidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	r := h.Expect("start", p.With(func(s *agentproto.Spec) {
		s.StartCmd = agenttest.Daemon("-pid demo.pid -late 1s")
		s.StartCheckBeginMS, s.StartCheckEndMS = 5_000, 5_000
	}), agentproto.CodeSuccess, "")
	if !r.Status.Supervised {
		t.Error("not supervised")
	}
}

func tooLatePidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = "echo start >>starts; (until [ -e go ]; do sleep 0.1; done; exec setsid ./demo -pid demo.pid) >/dev/null 2>&1 </dev/null &"
	r := h.Expect("start", p.Spec, agentproto.CodeCheckFailed, "start: post-check: ")
	if r.Status.Supervised {
		t.Error("a failed start registered the process")
	}
	p.Write("go", "")
	s := h.Becomes(p.Spec, "the process runs", func(s agentproto.Status) bool { return s.Running && p.PID() != 0 })
	if s.Supervised || s.PID != p.PID() {
		t.Errorf("status is %+v", s)
	}
	h.Expect("start", p.Spec, agentproto.CodeAlreadyRunning, "start:")
	if n := p.Starts(); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func uselessPidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	for _, text := range []string{"", "\n\n", "abc\n", "-1\n", "0\n", "1\n", "99999999999\n", fmt.Sprintln(h.Agent.PID()), fmt.Sprintln(os.Getpid())} {
		p.Write("demo.pid", text)
		for _, action := range []string{"stop", "kill"} {
			r := h.Expect(action, p.Spec, agentproto.CodeNotRunning, action)
			h.Says(r, "pid file "+p.Spec.PidPath)
		}
	}
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
}

func untidyPidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := p.Spawn("-pid", "demo.pid")
	for _, text := range []string{
		"%d", "%d\r\n", "\xef\xbb\xbf%d\n", "%d demo master process\n", "\n\n  %d\n1\n", "%d\x00\x00\x00", "\t%d\t\n",
	} {
		p.Write("demo.pid", fmt.Sprintf(text, pid))
		if s := h.Status(p.Spec); s.PID != pid || !strings.Contains(s.Evidence, "pid file "+p.Spec.PidPath+" names pid") {
			t.Errorf("%q: status is %+v", text, s)
		}
	}
}

func strangePidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p, other := h.Program(), h.Program()
	h.Expect("start", other.Spec, agentproto.CodeSuccess, "")
	for name, create := range map[string]func(path string) error{
		"fifo":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"loop":      func(path string) error { return os.Symlink(filepath.Base(path), path) },
		"zero":      func(path string) error { return os.Symlink("/dev/zero", path) },
		"large": func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(2 << 30)
		},
	} {
		spec := p.With(func(s *agentproto.Spec) { s.PidPath, s.Key = p.Path(name), name })
		if err := create(spec.PidPath); err != nil {
			t.Fatal(err)
		}
		// An agent that supervises the process reads its pid file repeatedly.
		spec.StartCmd = "false"
		h.Expect("supervise", spec, agentproto.CodeSuccess, "")
		h.Says(h.Expect("status", spec, agentproto.CodeSuccess, ""), "no usable pid file "+spec.PidPath)
	}
	// None of these files prevents the agent from supervising other processes.
	h.End(other.PID())
	h.Becomes(other.Spec, "the other program is started again", func(s agentproto.Status) bool {
		return s.Running && other.Starts() == 2
	})
}

// nobody is an account without rights that exists on every host.
const nobody = 65534

// unprivileged runs the agent under an account that is not root.
func unprivileged(t *testing.T, h *agenttest.Host) {
	t.Helper()
	h.Attributes = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	letIn(t, h.Data)
	letIn(t, filepath.Dir(h.Binary))
	if err := os.Chown(h.Data, nobody, nobody); err != nil {
		t.Fatal(err)
	}
}

// letIn opens the folders of a test to every account.
func letIn(t *testing.T, dir string) {
	t.Helper()
	for ; dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func unreadablePidFile(t *testing.T, h *agenttest.Host) {
	unprivileged(t, h)
	h.Start()
	p := h.Program()
	letIn(t, p.Dir)
	p.Spec.Account = "nobody"
	p.Spec.StartCmd = "echo start >/dev/null; false"
	pid := p.Spawn("-pid", "demo.pid") // both the process and the pid file belong to root
	if err := os.Chmod(p.Spec.PidPath, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"start", "stop", "kill"} {
		h.Check(h.Do(action, p.Spec), agentproto.CodeFailed, action)
	}
	if !agenttest.Alive(pid) {
		t.Error("the process was ended")
	}
}

func threadInPidFile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	main := p.Spawn("-busy", "1")
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", main))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %v, %v", threads, err)
	}
	thread, err := strconv.Atoi(threads[len(threads)-1].Name())
	if err != nil || thread == main {
		t.Fatalf("thread %d of %d, %v", thread, main, err)
	}
	ours := h.Program()
	ours.Write("demo.pid", fmt.Sprintln(thread))
	for _, action := range []string{"stop", "kill"} {
		h.Says(h.Expect(action, ours.Spec, agentproto.CodeNotRunning, action), "thread")
	}
	if !agenttest.Alive(main) {
		t.Error("the process with that thread was ended")
	}
}
