package faults

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var stopRows = []row{
	{"F26_process_ignores_sigterm", ignoresSigterm},
	{"F27_unkillable_process", unkillable},
	{"F28_fork_bomb_on_stop", forkBomb},
	{"F29_children_survive_the_process", childrenSurvive},
	{"F30_stop_when_not_running", stopWhenNotRunning},
	{"F32_stop_fails_with_the_process_gone", stopFailsGone},
	{"F33_process_takes_its_time_to_end", drains},
	{"F34_restart_replaces_nothing", restartReplacesNothing},
	{"F35_restart_of_a_stopped_process", restartOfStopped},
	{"F36_reload_kills_the_process", reloadKills},
	{"F38_unregister", unregister},
}

// term sends SIGTERM to the process in the pid file.
const term = "kill $(cat demo.pid)"

func ignoresSigterm(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd, p.Spec.StopCmd = agenttest.Daemon("-pid demo.pid -ignore-term"), term
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	impatient := p.With(func(s *agentproto.Spec) { s.StopCheckMS = 500 })
	r := h.Expect("stop", impatient, agentproto.CodeCheckFailed, fmt.Sprintf("stop: still running pid %d", pid))
	if !r.Status.Supervised || !r.Status.Running {
		t.Errorf("status is %+v", r.Status)
	}
	r = h.Expect("kill", p.Spec, agentproto.CodeSuccess, "")
	if r.Status.Supervised || agenttest.Alive(pid) {
		t.Errorf("status is %+v", r.Status)
	}
	graceful := p.With(func(s *agentproto.Spec) { s.StopGraceMS = 500 })
	pid = h.Expect("start", graceful, agentproto.CodeSuccess, "").Status.PID
	r = h.Expect("stop", graceful, agentproto.CodeSuccess, "")
	if agenttest.Alive(pid) || !slices.Contains(r.Warnings, "did not stop within 0.5 s, killed") {
		t.Errorf("warnings are %q, status is %+v", r.Warnings, r.Status)
	}
}

func unkillable(t *testing.T, h *agenttest.Host) {
	h.Start(agenttest.QuickBut("kill_wait=1s"))
	p := h.Program()
	p.Spec.ProcName = "sleep" // has one thread
	p.Spec.StartCmd = "echo start >>starts; setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! >demo.pid"
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	release := holdAtExit(t, pid)
	h.Expect("kill", p.Spec, agentproto.CodeCheckFailed, fmt.Sprintf("kill: still running pid %d", pid))
	s := h.Status(p.Spec)
	if !s.Running || s.PID != pid || s.Supervised || s.Stat != agenttest.State(pid) {
		t.Errorf("status is %+v", s)
	}
	h.Expect("start", p.Spec, agentproto.CodeAlreadyRunning, "start:")
	release()
	h.Becomes(p.Spec, "it is gone after all, and another is there", func(s agentproto.Status) bool { return s.Running && s.PID != pid })
	if n := p.Starts(); n != 2 {
		t.Errorf("%d starts", n)
	}
}

// holdAtExit keeps a killed process alive until release, like a process whose file
// system does not respond: a tracer stops it at its exit.
func holdAtExit(t *testing.T, pid int) (release func()) {
	t.Helper()
	seized, over := make(chan error, 1), make(chan struct{})
	var trace func()
	trace = func() {
		runtime.LockOSThread() // the tracer is this thread, which ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			go trace() // on another thread, because the first one never ends
			<-over
			runtime.UnlockOSThread()
			return
		}
		_, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		if errno != 0 {
			seized <- errno
			return
		}
		seized <- nil
		<-over
	}
	go trace()
	if err := <-seized; errors.Is(err, syscall.EPERM) {
		testenv.Missing(t, "ptrace", "this host does not let processes be traced")
	} else if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { close(over) })
	t.Cleanup(release)
	return release
}

func forkBomb(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd, p.Spec.StopCmd, p.Spec.StopCheckMS = agenttest.Daemon("-pid demo.pid -respawn 5 -ignore-term"), term, 300
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	h.Expect("stop", p.Spec, agentproto.CodeCheckFailed, "stop: still running")
	// The process forks while it is killed: at most 2^6 processes.
	kill := h.Begin("kill", p.Spec)
	for len(h.Heard(kill)) == 0 {
		for _, pid := range p.Running() {
			_ = syscall.Kill(pid, syscall.SIGTERM) // it may have ended
		}
	}
	if r := h.Result(kill); r.Code != agentproto.CodeSuccess && r.Code != agentproto.CodeCheckFailed {
		t.Errorf("%d %s", r.Code, r.Message)
	}
	// Processes that the last signals created still belong to the key.
	testenv.Eventually(t, agenttest.Patience, func() bool {
		if r := h.Do("kill", p.Spec); r.Code != agentproto.CodeSuccess && r.Code != agentproto.CodeNotRunning {
			t.Errorf("%d %s", r.Code, r.Message)
		}
		return len(h.Marked()) == 0
	}, "nothing is left")
}

func childrenSurvive(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = agenttest.Daemon("-pid demo.pid -workers 4")
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	r := h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
	left := h.Marked()
	if len(left) != 4 {
		t.Fatalf("left are %v, want four workers", left)
	}
	for _, pid := range left {
		h.Says(r, strconv.Itoa(pid))
	}
	h.Says(r, "orphans of the process remain")
	h.Expect("kill", p.Spec, agentproto.CodeSuccess, "")
	if left := h.Marked(); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

func stopWhenNotRunning(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	h.Expect("supervise", p.With(func(s *agentproto.Spec) { s.StartIntervalMS = 10 * agenttest.Patience.Milliseconds() }), agentproto.CodeSuccess, "")
	r := h.Expect("stop", p.Spec, agentproto.CodeNotRunning, "stop:")
	if r.Status.Supervised || r.Status.Running {
		t.Errorf("status is %+v", r.Status)
	}
}

func stopFailsGone(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StopCmd = term + "; echo sorry; exit 3"
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	r := h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
	h.Says(r, "process is gone, but: command failed; exit=3")
	if r.Status.Supervised {
		t.Error("still supervised")
	}
}

func drains(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd, p.Spec.StopCmd = agenttest.Daemon("-pid demo.pid -linger 2s"), term
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	began := time.Now()
	h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
	if took := time.Since(began); took < 2*time.Second || agenttest.Alive(pid) {
		t.Errorf("stopped after %v", took)
	}
}

func restartReplacesNothing(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.RestartCmd = "true"
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.Expect("restart", p.Spec, agentproto.CodeCheckFailed, fmt.Sprintf("restart: process was not replaced, pid %d", pid))
	r := h.Expect("restart", p.With(func(s *agentproto.Spec) { s.RestartInPlace = true }), agentproto.CodeSuccess, "")
	if r.Status.PID != pid {
		t.Errorf("pid %d, want %d", r.Status.PID, pid)
	}
}

func restartOfStopped(t *testing.T, h *agenttest.Host) {
	h.Start()
	for _, restart := range []string{"", agenttest.Daemon("-pid demo.pid")} {
		p := h.Program()
		p.Spec.RestartCmd = restart
		r := h.Expect("restart", p.Spec, agentproto.CodeSuccess, "")
		if !r.Status.Supervised || r.Status.PID != p.PID() || p.Starts() != 1 {
			t.Errorf("%d starts, status is %+v", p.Starts(), r.Status)
		}
	}
}

func reloadKills(t *testing.T, h *agenttest.Host) {
	h.Start(agenttest.QuickBut("reload_wait=1s"))
	p := h.Program()
	p.Spec.StartCheckBeginMS = 1_000 // also the time of the verification after a reload
	p.Spec.ReloadCmd = "kill -9 $(cat demo.pid)"
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.Expect("reload", p.Spec, agentproto.CodeCheckFailed, "reload: process died")
	h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool { return s.Running && s.PID != pid && p.Starts() == 2 })
}

func unregister(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	h.Expect("release", p.Spec, agentproto.CodeSuccess, "")
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	r := h.Expect("release", p.Spec, agentproto.CodeSuccess, "")
	if r.Status.PID != pid || r.Status.Supervised || !r.Status.Running {
		t.Errorf("status is %+v", r.Status)
	}
	h.Expect("release", p.Spec, agentproto.CodeSuccess, "")
	h.End(pid)
	// Another program that dies later has been restarted by now.
	other := h.Program()
	h.Expect("start", other.Spec, agentproto.CodeSuccess, "")
	h.End(other.PID())
	h.Becomes(other.Spec, "the other is started again", func(agentproto.Status) bool { return other.Starts() == 2 })
	if p.Starts() != 1 {
		t.Error("the process was started again")
	}
}
