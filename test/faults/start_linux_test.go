package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var startRows = []row{
	{"F12_start_hangs", startHangs},
	{"F13_start_hangs_with_the_daemon_up", startHangsWithDaemon},
	{"F14_start_is_the_program_itself", foregroundStart},
	{"F15_daemon_keeps_its_output_open", outputKeptOpen},
	{"F16_start_prints_a_gigabyte", endlessOutput},
	{"F17_output_that_is_no_text", outputWithoutText},
	{"F18_process_dies_in_the_window", diesInTheWindow},
	{"F19_start_fails_with_the_process_alive", startFailsAlive},
	{"F20_process_dies_after_the_window", diesAfterTheWindow},
	{"F21_pid_changes_in_the_window", pidChangesInTheWindow},
	{"F22_start_while_running", startWhileRunning},
	{"F24_two_starts_at_once", twoStartsAtOnce},
	{"F25_starts_and_stops_in_any_order", startsAndStops},
}

func startHangs(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd, p.Spec.OpTimeoutMS = "echo begun; sleep 300 & trap '' TERM; sleep 300; sleep 300", 1_000
	r := h.Expect("start", p.Spec, agentproto.CodeFailed, "start: command timed out; timeout=1s")
	h.Says(r, "begun")
	if left := h.Marked(); len(left) != 0 {
		t.Errorf("remaining processes: %v", left)
	}
	if r.Status.Supervised {
		t.Error("a failed start registered the process")
	}
}

func startHangsWithDaemon(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd, p.Spec.OpTimeoutMS = "./demo -d -pid demo.pid >/dev/null 2>&1; sleep 300", 4_000
	r := h.Expect("start", p.Spec, agentproto.CodeFailed, "start: command timed out")
	h.Says(r, fmt.Sprintf("process is running, pid %d, not registered", p.PID()))
	if left := h.Marked(); len(left) != 1 || left[0] != p.PID() || !r.Status.Running || r.Status.Supervised {
		t.Errorf("pid %d, left are %v, status is %+v", p.PID(), left, r.Status)
	}
}

func foregroundStart(t *testing.T, h *agenttest.Host) {
	h.Start(agenttest.QuickBut("foreground_after=300ms"))
	p := h.Program()
	p.Spec.StartCmd = "echo start >>starts; exec ./demo -pid demo.pid"
	r := h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	h.Says(r, "start_cmd runs in foreground")
	pid := p.PID()
	if r.Status.PID != pid {
		t.Errorf("pid %d, the pid file says %d", r.Status.PID, pid)
	}
	h.End(pid)
	h.Becomes(p.Spec, "its end is noticed and it is started again", func(s agentproto.Status) bool {
		return s.Running && s.PID != pid && p.Starts() == 2
	})
}

func outputKeptOpen(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	const size = 10_000_000
	p.Spec.StartCmd = fmt.Sprintf("exec ./demo -d -pid demo.pid -spew %d -spew-when go -marker written", size)
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	p.Write("go", "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.Lines("written") == 1 }, "all is written")
	if !agenttest.Alive(pid) {
		t.Error("the daemon died of its output")
	}
}

func endlessOutput(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	size := 128 << 20 // twice what the agent may grow by
	if testenv.IsLong() {
		size = 1 << 30
	}
	p.Spec.StartCmd = fmt.Sprintf("yes | head -c %d; echo the end; exit 3", size)
	h.Status(p.Spec) // loads what an agent reads only once
	before := memory(t, h.Agent.PID())
	h.Says(h.Expect("start", p.Spec, agentproto.CodeFailed, "start: command failed; exit=3"), "the end")
	if grown := memory(t, h.Agent.PID()) - before; grown > 64<<20 {
		t.Errorf("the agent grew by %d bytes", grown)
	}
	files, err := filepath.Glob(filepath.Join(h.Data, "run", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var st syscall.Stat_t // blocks of the file, which may be sparse
		if err := syscall.Stat(file, &st); err == nil && st.Blocks*512 > 16<<20 {
			t.Errorf("%s uses %d bytes", file, st.Blocks*512)
		}
	}
}

func outputWithoutText(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	for _, c := range []struct{ printed, want string }{
		{`\377\376 wide`, "\uFFFD wide"},
		{`\304\343\272\303 GBK`, "\uFFFD GBK"},
		{`\000\001\033[1mbold\007`, "[1mbold"},
		{`half of \350\277`, "half of \uFFFD"},
		{`\350\277\233\347\250\213`, "进程"},
	} {
		spec := p.With(func(s *agentproto.Spec) { s.StartCmd = fmt.Sprintf(`printf '%s'; exit 3`, c.printed) })
		r := h.Expect("start", spec, agentproto.CodeFailed, "start: command failed; exit=3")
		h.Says(r, "output tail: "+c.want)
	}
}

// memory returns the anonymous memory of a process in bytes.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "RssAnon:")
	kb, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

func diesInTheWindow(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = agenttest.Daemon("-pid demo.pid -life 5s -code 3") // a slow agent must see it, too
	p.Spec.StartCheckEndMS = (30 * agenttest.Patience).Milliseconds()    // the result does not wait for it
	r := h.Expect("start", p.Spec, agentproto.CodeCheckFailed, "start: post-check: process ended within the start window")
	if r.Status.Supervised || r.Status.Running {
		t.Errorf("status is %+v", r.Status)
	}
}

func startFailsAlive(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = "./demo -d -pid demo.pid >/dev/null 2>&1; echo no; exit 1"
	r := h.Expect("start", p.Spec, agentproto.CodeFailed, "start: command failed; exit=1")
	h.Says(r, fmt.Sprintf("process is running, pid %d, not registered", p.PID()))
	if !r.Status.Running || r.Status.Supervised {
		t.Errorf("status is %+v", r.Status)
	}
}

func diesAfterTheWindow(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartIntervalMS = agenttest.Patience.Milliseconds() * 10
	p.Spec.StartCmd = agenttest.Daemon("-pid demo.pid -die-when go")
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	p.Write("go", "")
	s := h.Becomes(p.Spec, "it waits for its restart", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	if s.Failures != 1 || !s.Supervised || s.NextRetryAt.IsZero() {
		t.Errorf("status is %+v", s)
	}
}

func pidChangesInTheWindow(t *testing.T, h *agenttest.Host) {
	h.Start()
	for _, command := range []string{
		"./demo -handover -pid demo.pid >/dev/null 2>&1",
		"( ( ./demo -pid demo.pid & ) & ) >/dev/null 2>&1",
		"./demo -pid demo.pid -life 1s >/dev/null 2>&1 & sleep 1.2; ./demo -d -pid demo.pid >/dev/null 2>&1",
	} {
		p := h.Program()
		p.Spec.StartCmd, p.Spec.StartCheckBeginMS, p.Spec.StartCheckEndMS = command, 3_000, 3_000
		r := h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
		if r.Status.PID != p.PID() || !r.Status.Supervised {
			t.Errorf("%s: status is %+v, the pid file says %d", command, r.Status, p.PID())
		}
	}
}

func startWhileRunning(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := p.Spawn("-pid", "demo.pid")
	r := h.Expect("start", p.Spec, agentproto.CodeAlreadyRunning, fmt.Sprintf("start: process is already running, pid %d", pid))
	if p.Starts() != 0 || !r.Status.Supervised {
		t.Errorf("%d starts, status is %+v", p.Starts(), r.Status)
	}
}

func twoStartsAtOnce(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	first, second := h.NewCommand("start", p.Spec), h.NewCommand("start", p.Spec)
	var both sync.WaitGroup
	for _, c := range []*agentproto.Command{first, second} {
		both.Go(func() { h.Submit(c) })
	}
	both.Wait()
	codes := []int{h.Result(agenttest.ID{Task: first.Task}).Code, h.Result(agenttest.ID{Task: second.Task}).Code}
	// The order of arrival is unknown, and the later task supersedes the other if
	// it arrives first.
	superseded := codes[0] == agentproto.CodeFailed && codes[1] == agentproto.CodeSuccess
	if !superseded && !slices.Equal(codes, []int{agentproto.CodeSuccess, agentproto.CodeAlreadyRunning}) {
		t.Errorf("codes are %v", codes)
	}
	p.WaitRunning(1)
	if n := p.Starts(); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func startsAndStops(t *testing.T, h *agenttest.Host) {
	h.Start(agenttest.QuickBut("settle=50ms"))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	p := h.Program()
	p.Spec.StartCmd = agenttest.Daemon("-pid demo.pid -alone lock")
	var last string
	for range 10 {
		var together sync.WaitGroup
		var ids []agenttest.ID
		for range 1 + random.IntN(8) {
			last = []string{"start", "stop", "restart", "kill"}[random.IntN(4)]
			c := h.NewCommand(last, p.Spec)
			ids = append(ids, agenttest.ID{Task: c.Task})
			together.Go(func() { h.Submit(c) })
		}
		if pid := p.PID(); pid != 0 && random.IntN(2) == 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		together.Wait()
		for _, id := range ids {
			if r := h.Result(id); r.Code == agentproto.CodeAgentAbnormal || r.Code == agentproto.CodeCheckFailed {
				t.Errorf("%v: %d %s", id, r.Code, r.Message)
			}
		}
		up := last == "start" || last == "restart"
		h.Becomes(p.Spec, "it is as the last of them said: "+last, func(s agentproto.Status) bool {
			return s.Running == up && s.Supervised == up
		})
		processes := 0
		if up {
			processes = 1
		}
		p.WaitRunning(processes)
	}
	if n := p.Lines("lock.twice"); n != 0 {
		t.Errorf("two processes ran %d times", n)
	}
}
