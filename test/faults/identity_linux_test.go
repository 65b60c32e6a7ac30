package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var identityRows = []row{
	{"F3_pid_used_again_before_the_kill", pidUsedAgain},
	{"F57_zombie_main_process", zombieMain},
	{"F58_zombie_under_a_first_process_that_does_not_reap", zombieInContainer},
	{"F59_process_stopped_by_a_signal", stoppedProcess},
	{"F60_program_file_replaced", programReplaced},
	{"F61_odd_names_and_interpreters", oddNames},
	{"F62_process_renames_itself", renamedProcess},
	{"F63_proc_hides_processes_of_others", hiddenProcesses},
	{"F87_two_keys_with_one_pid_file", twoKeys},
	{"F95_second_agent", secondAgent},
	{"F101_pid_of_another_namespace", otherNamespace},
}

// pidUsedAgain suspends the agent between its check and the kill. Meanwhile the
// process ends, and another one gets its pid.
func pidUsedAgain(t *testing.T, h *agenttest.Host) {
	s := newSpace(t, true, "echo ready; while :; do sleep 0.2; done") // this keeper reaps, so the pid is free after the process has ended
	h.Wrapper = s.enter
	h.Start()
	p := h.Program()
	within := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	agent := entered(t, h)
	h.Signal(agent, syscall.SIGSTOP)
	testenv.Eventually(t, agenttest.Patience, func() bool { return agenttest.State(agent) == "T" }, "the agent is suspended")
	h.End(s.outside(t, h, within))
	taken := s.run(t, fmt.Sprintf(`
for i in $(seq 2000); do
	echo %d >/proc/sys/kernel/ns_last_pid
	sleep 300 >/dev/null 2>&1 &
	[ $! = %d ] && echo taken && exit
	kill $!
done`, within-1, within))
	if taken != "taken" {
		t.Fatalf("pid %d could not be reused", within)
	}
	h.Signal(agent, syscall.SIGCONT)
	h.Says(h.Expect("kill", p.Spec, agentproto.CodeNotRunning, "kill:"), "stale pid file")
	if got := s.run(t, fmt.Sprintf("cat /proc/%d/comm", within)); got != "sleep" {
		t.Errorf("pid %d is now %q", within, got)
	}
}

func zombieMain(t *testing.T, h *agenttest.Host) {
	h.Start()
	keep := func() *agenttest.Program {
		p := h.Program()
		p.Install("keeper") // never reaps the demo that it starts
		p.Spec.StartCmd = "echo start >>starts; exec ./keeper -d -zombie -pid demo.pid >/dev/null 2>&1 </dev/null"
		return p
	}
	p := keep()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.End(pid)
	if state := agenttest.State(pid); state != "Z" {
		t.Fatalf("state is %q", state)
	}
	h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool { return s.Running && s.PID != pid && p.Starts() == 2 })

	q := keep()
	q.Spec.StartIntervalMS = 10 * agenttest.Patience.Milliseconds()
	pid = h.Expect("start", q.Spec, agentproto.CodeSuccess, "").Status.PID
	h.End(pid)
	h.Expect("stop", q.Spec, agentproto.CodeNotRunning, "stop:")
	if state := agenttest.State(pid); state != "Z" {
		t.Fatalf("state is %q", state)
	}
}

func zombieInContainer(t *testing.T, h *agenttest.Host) {
	agentIsFirst(t, h)
	s := newSpace(t, true, "")
	h.Wrapper = s.enter
	h.Start()
	p := h.Program()
	within := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	pid := s.outside(t, h, within)
	h.End(pid)
	if state := agenttest.State(pid); state != "Z" {
		t.Fatalf("state is %q", state)
	}
	h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool { return s.Running && s.PID != within && p.Starts() == 2 })
}

// agentIsFirst runs the agent as the first process of a PID namespace: it reaps all
// orphans, and must still get the exit status of its own commands.
func agentIsFirst(t *testing.T, h *agenttest.Host) {
	t.Helper()
	h.Attributes = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	h.Wrapper = []string{"sh", "-c", `mount -t proc proc /proc; exec "$@"`, "sh"}
	h.Start()
	p := h.Program()
	for code := range 20 {
		spec := p.With(func(s *agentproto.Spec) { s.StartCmd = fmt.Sprintf("(sleep 0.01 &); exit %d", code+1) })
		h.Expect("start", spec, agentproto.CodeFailed, fmt.Sprintf("start: command failed; exit=%d", code+1))
	}
	within := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	pid := (&space{}).outside(t, h, within)
	h.Signal(pid, syscall.SIGKILL)
	testenv.Eventually(t, agenttest.Patience, func() bool { return agenttest.State(pid) == "" }, "the orphan is reaped")
	h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool { return s.Running && s.PID != within && p.Starts() == 2 })
	h.Clear()
	h.Attributes, h.Wrapper = nil, nil
}

func stoppedProcess(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.Signal(pid, syscall.SIGSTOP)
	s := h.Becomes(p.Spec, "it is seen stopped", func(s agentproto.Status) bool { return s.Stat == "T" })
	if !s.Running || s.PID != pid || !s.Supervised {
		t.Errorf("status is %+v", s)
	}
	h.Event(agentproto.EventFrozen, p.Spec.Key)
	h.Signal(pid, syscall.SIGCONT)
	s = h.Becomes(p.Spec, "it goes on", func(s agentproto.Status) bool { return s.Stat != "T" })
	if s.PID != pid || p.Starts() != 1 {
		t.Errorf("%d starts, status is %+v", p.Starts(), s)
	}
	h.Signal(pid, syscall.SIGSTOP)
	h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
}

func programReplaced(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	if err := os.Remove(p.Path(agenttest.Name)); err != nil {
		t.Fatal(err)
	}
	p.Install(agenttest.Name)
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != p.Path(agenttest.Name)+" (deleted)" {
		t.Fatalf("exe is %q, %v", exe, err)
	}
	for range 2 {
		h.Expect("start", p.Spec, agentproto.CodeAlreadyRunning, fmt.Sprintf("start: process is already running, pid %d", pid))
		// An agent without knowledge must find the same process.
		h.Agent.Kill()
		h.Data = t.TempDir()
		h.Start()
	}
	r := h.Expect("restart", p.Spec, agentproto.CodeSuccess, "")
	if r.Status.PID == pid || agenttest.Alive(pid) {
		t.Errorf("status is %+v", r.Status)
	}
}

func oddNames(t *testing.T, h *agenttest.Host) {
	h.Start()
	script := "echo $$ >demo.pid; while :; do sleep 1; done\n"
	for name, command := range map[string]string{
		"a-program-with-a-long-name": "'%s' -d -pid demo.pid >/dev/null 2>&1",
		"a) R (b c":                  "'%s' -d -pid demo.pid >/dev/null 2>&1",
		"run-the-service.sh":         "chmod +x ./*.sh; setsid '%s' </dev/null >/dev/null 2>&1 & until [ -s demo.pid ]; do sleep 0.1; done",
		"plain-script":               "setsid sh '%s' </dev/null >/dev/null 2>&1 & until [ -s demo.pid ]; do sleep 0.1; done",
		"service.pl":                 "setsid perl '%s' </dev/null >/dev/null 2>&1 & until [ -s demo.pid ]; do sleep 0.1; done",
	} {
		p := h.Program()
		p.Spec.ProcName, p.Spec.StartCmd = name, fmt.Sprintf(command, "./"+name)
		switch name {
		case "run-the-service.sh":
			p.Write(name, "#!/bin/sh\n"+script)
		case "plain-script":
			p.Write(name, script)
		case "service.pl":
			p.Write(name, `open(F, ">", "demo.pid"); print F "$$\n"; close F; sleep 1 while 1;`)
		default:
			p.Install(name)
		}
		manage(t, h, p)
	}
}

// manage starts a program, observes it with an agent that knows only the pid file,
// and stops it.
func manage(t *testing.T, h *agenttest.Host, p *agenttest.Program) {
	t.Helper()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	if pid != p.PID() {
		t.Errorf("%s: pid %d, the pid file says %d", p.Spec.ProcName, pid, p.PID())
	}
	h.Agent.Kill()
	h.Data = t.TempDir()
	h.Start()
	if s := h.Status(p.Spec); s.PID != pid {
		t.Errorf("%s: status is %+v, want pid %d", p.Spec.ProcName, s, pid)
	}
	h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
	if agenttest.Alive(pid) {
		t.Errorf("%s: pid %d lives", p.Spec.ProcName, pid)
	}
}

func renamedProcess(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Sleeper()
	p.Spec.ProcName = "the-service" // the program calls itself sleep
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.Agent.Kill()
	h.Start()
	h.Expect("start", p.Spec, agentproto.CodeAlreadyRunning, "start:")
	h.End(pid)
	s := h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool { return s.Running && s.PID != pid })
	if s.PID != p.PID() || p.Starts() != 2 {
		t.Errorf("%d starts, status is %+v", p.Starts(), s)
	}
	h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
}

func hiddenProcesses(t *testing.T, h *agenttest.Host) {
	s := newSpace(t, false, "mount -t proc -o hidepid=2 proc /proc")
	letIn(t, h.Data)
	letIn(t, filepath.Dir(h.Binary))
	if err := os.Chown(h.Data, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	id := strconv.Itoa(nobody)
	h.Wrapper = append(s.enter, "setpriv", "--reuid", id, "--regid", id, "--clear-groups")
	h.Start()
	p := h.Program()
	letIn(t, p.Dir)
	pid := p.Spawn("-pid", "demo.pid")
	p.Spec.Account = "nobody"
	for _, action := range []string{"start", "stop", "kill"} {
		h.Says(h.Expect(action, p.Spec, agentproto.CodeFailed, action), "state uncertain")
	}
	if !agenttest.Alive(pid) || p.Starts() != 0 {
		t.Errorf("%d starts", p.Starts())
	}
}

func twoKeys(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.PID() == pid }, "the pid file names the process")
	second := p.With(func(s *agentproto.Spec) { s.Key = "second" })
	misplaced := p.With(func(s *agentproto.Spec) { s.Key, s.SetupPath = "misplaced", p.Path("missing") })
	conflict := fmt.Sprintf("is already the pid file of process %s", p.Spec.Key)
	for _, action := range []string{"start", "supervise"} {
		r := h.Expect(action, second, agentproto.CodeFailed, "")
		h.Says(r, fmt.Sprintf("pid %d belongs to", pid))
		h.Says(r, conflict)
		h.Says(h.Expect(action, misplaced, agentproto.CodeFailed, ""), conflict)
	}
	if s := h.Status(p.Spec); s.PID != pid || !s.Supervised || p.Starts() != 1 || p.PID() != pid {
		t.Errorf("status is %+v, and the pid file names %d", s, p.PID())
	}
}

func secondAgent(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	second := testenv.StartCommand(t, h.Command())
	if code := second.Wait(t, agenttest.Patience); code == 0 {
		t.Error("the second agent ended without an error")
	}
	second.WaitOutput(t, agenttest.Patience, "in use by another procfleet agent")
	if s := h.Status(p.Spec); s.PID != pid || !s.Supervised {
		t.Errorf("status is %+v", s)
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, h.Data) && !strings.Contains(target, "/run/") {
			t.Errorf("the program has %s open", target)
		}
	}
	// If programs inherited the lock, no agent could start while one lives.
	h.Agent.Kill()
	h.Start()
	if s := h.Status(p.Spec); s.PID != pid {
		t.Errorf("status is %+v", s)
	}
}

// otherNamespace uses a pid file that was written inside a container, where pids
// have another meaning.
func otherNamespace(t *testing.T, h *agenttest.Host) {
	h.Start()
	s := newSpace(t, true, "")
	p := h.Program()
	env := "env"
	for name, value := range h.Env() {
		env += fmt.Sprintf(" '%s=%s'", name, value)
	}
	s.run(t, fmt.Sprintf("cd '%s' && %s ./demo -d -pid demo.pid >/dev/null 2>&1", p.Dir, env))
	within, err := strconv.Atoi(strings.TrimSpace(read(t, p.Spec.PidPath)))
	if err != nil {
		t.Fatal(err)
	}
	inside := s.outside(t, h, within)
	if inside == 0 {
		t.Fatalf("pid %d of the container has no pid outside", within)
	}
	// On the host this pid belongs to another process or to none.
	for _, action := range []string{"stop", "kill"} {
		r := h.Do(action, p.Spec)
		if r.Code == agentproto.CodeSuccess {
			t.Errorf("%s: %+v", action, r)
		}
	}
	if !agenttest.Alive(inside) {
		t.Error("the process in the container was ended")
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}
