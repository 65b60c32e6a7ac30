package faults

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var superviseRows = []row{
	{"F23_start_while_waiting_for_an_automatic_one", startInBackoff},
	{"F31_stop_in_backoff_and_when_given_up", stopInBackoff},
	{"F37_registered_twice", registeredTwice},
	{"F39_operations_that_do_not_exist", unknownOperations},
	{"F79_crash_loop", crashLoop},
	{"F81_no_room_for_files", noRoom},
	{"F82_started_by_hand_in_backoff", startedByHand},
	{"F83_replaced_by_hand", replacedByHand},
	{"F84_periodic_processes", periodic},
	{"F85_one_shot_that_has_ended", oneShot},
	{"F86_two_of_three_instances", twoOfThree},
	{"F91_kernel_without_pidfd", withoutPidfd},
	{"F93_nats_away", natsAway},
	{"F99_version_and_health_commands_hang", inquiriesHang},
	{"F105_kernel_denies_calls", deniedCalls},
}

// never is an interval longer than any test.
var never = 10 * agenttest.Patience.Milliseconds()

func startInBackoff(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartIntervalMS = 2_000
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.End(pid)
	h.Becomes(p.Spec, "it waits for its restart", func(s agentproto.Status) bool { return s.Phase == "backoff" || p.Starts() > 1 })
	r := h.Do("start", p.Spec)
	// On a slow machine the automatic start may have been first.
	if r.Code != agentproto.CodeSuccess && r.Code != agentproto.CodeAlreadyRunning {
		t.Errorf("%d %s", r.Code, r.Message)
	}
	// Another process that dies now is restarted after the time of the pending
	// automatic start.
	other := h.Program()
	other.Spec.StartIntervalMS = p.Spec.StartIntervalMS * 2
	h.Expect("start", other.Spec, agentproto.CodeSuccess, "")
	h.End(other.PID())
	h.Becomes(other.Spec, "the other is started again", func(agentproto.Status) bool { return other.Starts() == 2 })
	p.WaitRunning(1)
	if n := p.Starts(); n != 2 {
		t.Errorf("%d starts", n)
	}
}

func stopInBackoff(t *testing.T, h *agenttest.Host) {
	h.Start()
	for _, c := range []struct {
		phase    string
		retries  int
		interval int64
	}{{"backoff", 4, never}, {"fatal", 0, 100}} {
		p := h.Program()
		p.Spec.StartRetries, p.Spec.StartIntervalMS = c.retries, c.interval
		h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
		h.End(p.PID())
		h.Becomes(p.Spec, c.phase, func(s agentproto.Status) bool { return s.Phase == c.phase })
		r := h.Expect("stop", p.Spec, agentproto.CodeNotRunning, "stop:")
		if r.Status.Supervised || r.Status.Phase != "stopped" || !r.Status.NextRetryAt.IsZero() || p.Starts() != 1 {
			t.Errorf("%s: %d starts, status is %+v", c.phase, p.Starts(), r.Status)
		}
	}
}

func registeredTwice(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := p.Spawn("-pid", "demo.pid")
	for range 2 {
		r := h.Expect("supervise", p.Spec, agentproto.CodeSuccess, "")
		if !r.Status.Supervised || r.Status.PID != pid {
			t.Errorf("status is %+v", r.Status)
		}
	}
	other := p.With(func(s *agentproto.Spec) { s.StartCmd = "echo other >>other; " + p.Spec.StartCmd })
	h.Expect("supervise", other, agentproto.CodeSuccess, "")
	h.End(pid)
	h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool { return s.Running && s.PID != pid })
	if p.Lines("other") != 1 || p.Starts() != 1 {
		t.Errorf("%d starts, %d of them with the new command", p.Starts(), p.Lines("other"))
	}
}

func unknownOperations(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	for _, action := range []string{"", "5", "6", "10", "-1", "null", "START", "destroy"} {
		if r := h.Do(action, p.Spec); r.Code != agentproto.CodeUnknownAction {
			t.Errorf("%q: %d %s", action, r.Code, r.Message)
		}
	}
	for _, spec := range []string{"null", "5", `"text"`, "[]", "{}", `{"key":5}`} {
		c := h.NewCommand("stop", p.Spec)
		c.Specs = []json.RawMessage{json.RawMessage(spec)}
		if r := h.Result(h.Submit(c)[0]); r.Code != agentproto.CodeFailed {
			t.Errorf("%s: %d %s", spec, r.Code, r.Message)
		}
	}
	if s := h.Status(p.Spec); s.PID != pid || !s.Supervised {
		t.Errorf("status is %+v", s)
	}
}

func crashLoop(t *testing.T, h *agenttest.Host) {
	h.Start(agenttest.QuickBut("probe_interval=1h,probe_for=2h"))
	p := h.Program()
	p.Spec.StartIntervalMS = 300
	p.Spec.StartCmd = "date +%s%N >>starts; exit 1"
	h.Expect("supervise", p.Spec, agentproto.CodeSuccess, "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.Starts() == 2 }, "the second attempt begins")
	h.Agent.Kill() // the new agent continues the count
	h.Start(agenttest.QuickBut("probe_interval=1h,probe_for=2h"))
	s := h.Becomes(p.Spec, "it is given up", func(s agentproto.Status) bool { return s.Phase == "fatal" })
	if !s.Supervised || s.Failures <= p.Spec.StartRetries {
		t.Errorf("status is %+v", s)
	}
	h.Event(agentproto.EventGaveUp, p.Spec.Key)
	// The kill may have come between a start and its record.
	if n := p.Starts(); n != p.Spec.StartRetries+1 && n != p.Spec.StartRetries+2 {
		t.Errorf("%d starts", n)
	}
	// Each delay is about twice the previous one, plus or minus a fifth.
	var before time.Duration
	for i, line := range strings.Fields(read(t, p.Path("starts"))) {
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Duration(ns)
		least := time.Duration(float64(p.Spec.StartIntervalMS)*0.8) * time.Millisecond << max(i-1, 0)
		if i > 2 && p.Starts() == p.Spec.StartRetries+1 && at-before < least {
			t.Errorf("attempt %d after %v, want at least %v", i, at-before, least)
		}
		before = at
	}
	starts := p.Starts()
	h.Agent.Kill()
	h.Start(agenttest.QuickBut("probe_interval=300ms,probe_for=1h"))
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.Starts() > starts }, "a rare attempt begins")
	// A request starts the process and clears the count.
	p.Spec.StartCmd = agenttest.Daemon("-pid demo.pid")
	r := h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	if r.Status.Failures != 0 {
		t.Errorf("status is %+v", r.Status)
	}
}

// noRoom removes the right of the running agent to open files.
func noRoom(t *testing.T, h *agenttest.Host) {
	h.Start(agenttest.QuickBut("host_pause=1s"))
	p, q := h.Program(), h.Program()
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	limit := func(n uint64) {
		var before unix.Rlimit
		if err := unix.Prlimit(h.Agent.PID(), unix.RLIMIT_NOFILE, nil, &before); err != nil {
			t.Fatal(err)
		}
		if err := unix.Prlimit(h.Agent.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}, nil); err != nil {
			t.Fatal(err)
		}
	}
	limit(3)
	pid := p.PID()
	h.End(pid)
	r := h.Do("start", q.Spec)
	if r.Code != agentproto.CodeFailed && r.Code != agentproto.CodeAgentAbnormal || q.Starts() != 0 {
		t.Errorf("%d %s after %d starts", r.Code, r.Message, q.Starts())
	}
	h.Says(r, "too many open files")
	limit(4096)
	s := h.Becomes(p.Spec, "the other is started again", func(s agentproto.Status) bool { return s.Running && s.PID != pid && s.Phase == "running" })
	if s.Failures > 1 {
		t.Errorf("the lack of resources was counted as a failure: %+v", s)
	}
	h.Expect("start", q.Spec, agentproto.CodeSuccess, "")
}

func startedByHand(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartIntervalMS = never
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	h.End(p.PID())
	h.Becomes(p.Spec, "it waits for its restart", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	pid := p.Spawn("-pid", "demo.pid")
	s := h.Becomes(p.Spec, "it is adopted", func(s agentproto.Status) bool { return s.Phase == "running" })
	if s.PID != pid || !s.Supervised || p.Starts() != 1 || !s.NextRetryAt.IsZero() {
		t.Errorf("%d starts, pid is %d, status %+v", p.Starts(), pid, s)
	}
	h.Event(agentproto.EventAdopted, p.Spec.Key)
}

func replacedByHand(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	old := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	pid := p.Spawn("-pid", "demo.pid")
	h.End(old)
	s := h.Becomes(p.Spec, "the successor is adopted", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID == pid })
	if s.Failures != 0 || !s.Supervised || p.Starts() != 1 {
		t.Errorf("%d starts, status %+v", p.Starts(), s)
	}
	h.Event(agentproto.EventPIDChanged, p.Spec.Key)
}

func periodic(t *testing.T, h *agenttest.Host) {
	h.Start()
	short, long, failing := h.Program(), h.Program(), h.Program()
	for _, p := range []*agenttest.Program{short, long, failing} {
		p.Spec.Type, p.Spec.CycleTimeMS = "periodic", 1_000
	}
	short.Spec.StartCmd = "echo start >>starts; rm -f demo.pid" // ends before any check
	long.Spec.StartCmd = agenttest.Daemon("-pid demo.pid -alone lock -die-when go")
	failing.Spec.StartCmd, failing.Spec.StartRetries = "echo start >>starts; exit 1", 2
	for _, p := range []*agenttest.Program{short, long, failing} {
		r := h.Expect("supervise", p.Spec, agentproto.CodeSuccess, "")
		if !r.Status.Supervised {
			t.Errorf("status is %+v", r.Status)
		}
	}
	testenv.Eventually(t, agenttest.Patience, func() bool { return short.Starts() > 2 }, "the short process runs repeatedly")
	h.Event(agentproto.EventOverlap, long.Spec.Key)
	h.Event(agentproto.EventRunsFailed, failing.Spec.Key)
	if n := long.Starts(); n != 1 || long.Lines("lock.twice") != 0 {
		t.Errorf("the running process was started %d times", n)
	}
	h.Agent.Kill() // five runs pass without an agent
	before := short.Starts()
	<-time.After(5 * time.Second)
	if n := short.Starts(); n != before {
		t.Errorf("%d starts, before it was %d", n, before)
	}
	h.Start()
	if s := h.Status(long.Spec); s.PID != long.PID() || !s.Supervised {
		t.Errorf("status is %+v", s)
	}
	long.Write("go", "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return short.Starts() > before && long.Starts() > 1 }, "both run again")
}

func oneShot(t *testing.T, h *agenttest.Host) {
	h.Start()
	for _, command := range []string{"echo start >>starts", "echo start >>starts; ./demo -pid demo.pid -life 50ms; rm demo.pid"} {
		p := h.Program()
		p.Spec.Type, p.Spec.StartCmd, p.Spec.StartCheckBeginMS = "once", command, 500
		r := h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
		if r.Status.Running || r.Status.PID != 0 || r.Status.Supervised || p.Starts() != 1 {
			t.Errorf("%q: %d starts, status is %+v", command, p.Starts(), r.Status)
		}
	}
}

func twoOfThree(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Sleeper()
	p.Spec.Instances, p.Spec.StartIntervalMS = 3, never
	p.Spec.StartCmd = `echo start >>starts; rm -f demo.pid
for i in 1 2 3; do setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! >>demo.pid; done`
	r := h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	pids := r.Status.PIDs
	if len(pids) != 3 || r.Status.Instances != 3 {
		t.Fatalf("status is %+v", r.Status)
	}
	h.End(pids[1])
	r = h.Expect("start", p.Spec, agentproto.CodeAlreadyRunning, "start:")
	h.Says(r, "2 of 3")
	if len(r.Status.PIDs) != 2 || p.Starts() != 1 {
		t.Errorf("%d starts, status is %+v", p.Starts(), r.Status)
	}
	h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
	if left := h.Marked(); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	h.Expect("stop", p.Spec, agentproto.CodeNotRunning, "stop:")
}

// tour tests the life of a program with every action that needs its identity.
func tour(t *testing.T, h *agenttest.Host) {
	t.Helper()
	p := h.Program()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.End(pid)
	s := h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool {
		return p.Starts() == 2 && s.PID != 0 && s.PID == p.PID() && s.Phase == "running"
	})
	h.Agent.Kill()
	h.Start()
	if again := h.Status(p.Spec); again.PID != s.PID || !again.Supervised {
		t.Errorf("status is %+v, before it was %+v", again, s)
	}
	// Do this last: the agent could take a surviving worker for the process, and
	// SIGTERM ends only one.
	p.Spec.StartCmd = agenttest.Daemon("-pid demo.pid -workers 2")
	h.Expect("restart", p.Spec, agentproto.CodeSuccess, "")
	h.Expect("kill", p.Spec, agentproto.CodeSuccess, "")
	if left := p.Running(); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
}

func withoutPidfd(t *testing.T, h *agenttest.Host) {
	h.Wrapper = []string{h.Demo(), "-deny", "pidfd"}
	h.Start()
	tour(t, h)
}

func natsAway(t *testing.T, h *agenttest.Host) {
	link := agenttest.NewLink(t, h.URL)
	h.URL = link.URL
	h.Start()
	p, q := h.Program(), h.Program()
	h.Expect("start", q.Spec, agentproto.CodeSuccess, "")
	p.Spec.StartCmd = "echo start >>starts; until [ -e go ]; do sleep 0.1; done; exec ./demo -d -pid demo.pid >/dev/null 2>&1"
	id := h.Begin("start", p.Spec)
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.Starts() == 1 }, "the start command runs")
	link.Cut()
	p.Write("go", "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.PID() != 0 }, "the operation continues")
	finished := fmt.Sprintf(`"msg":"operation finished","process":%q`, p.Spec.Key)
	testenv.Eventually(t, agenttest.Patience, func() bool { return strings.Contains(h.Agent.Output(), finished) }, "the operation ends")
	for _, program := range []*agenttest.Program{q, p} {
		pid := program.PID()
		h.End(pid)
		testenv.Eventually(t, agenttest.Patience, func() bool { return program.PID() != 0 && program.PID() != pid }, "the process is restarted")
	}
	if heard := h.Heard(id); len(heard) != 0 {
		t.Errorf("heard %+v", heard)
	}
	link.Mend()
	first := h.Check(h.Result(id), agentproto.CodeSuccess, "")
	h.Stop()                            // sends all remaining messages
	for _, r := range h.Heard(id)[1:] { // sent again where the acknowledgment was late
		if !r.FinishedAt.Equal(first.FinishedAt) || r.Code != first.Code {
			t.Errorf("two outcomes: %+v and %+v", first, r)
		}
	}
}

func inquiriesHang(t *testing.T, h *agenttest.Host) {
	h.Start(agenttest.QuickBut("inquiry=1s"))
	p := h.Program()
	p.Spec.VersionCmd, p.Spec.HealthCmd = "sleep 300", "trap '' TERM; sleep 300; sleep 300"
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	s := h.Status(p.Spec)
	if s.Version != "timeout" || s.Health != "timeout" || !s.Running {
		t.Errorf("status is %+v", s)
	}
	h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return len(h.Marked()) == 0 }, "both commands have ended")
}

func deniedCalls(t *testing.T, h *agenttest.Host) {
	h.Wrapper = []string{h.Demo(), "-deny", "guarded-pidfd"}
	h.Start()
	tour(t, h)
	h.Stop()
	h.Wrapper = []string{h.Demo(), "-deny", "setgroups"}
	h.Start()
	p := h.Program()
	letIn(t, p.Dir)
	h.Says(h.Expect("start", p.With(func(s *agentproto.Spec) { s.Account = "nobody" }), agentproto.CodeFailed, "start:"), "cannot switch to nobody")
	if p.Starts() != 0 {
		t.Errorf("%d starts", p.Starts())
	}
	if s := h.Status(p.Spec); s.Running {
		t.Errorf("status is %+v", s)
	}
}
