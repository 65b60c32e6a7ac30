package faults

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var limitRows = []row{
	{"F71_busy_thread", busyThread},
	{"F73_memory_leak", memoryLeak},
	{"F74_workers_over_the_limit_together", workersOverLimit},
	{"F75_over_the_limit_and_stubborn", stubbornOverLimit},
	{"F78_out_of_memory", outOfMemory},
}

// quickLimits are settings with which the agent enforces limits within a second or
// two.
var quickLimits = agenttest.QuickBut("usage_sample=200ms,usage_window=1s,usage_arm=500ms,terminate_grace=500ms,terminate_spacing=100ms")

func busyThread(t *testing.T, h *agenttest.Host) {
	h.Start(quickLimits)
	p, q := h.Program(), h.Program()
	for _, program := range []*agenttest.Program{p, q} {
		program.Spec.StartCmd, program.Spec.StartIntervalMS = agenttest.Daemon("-pid demo.pid -busy 1"), never
	}
	p.Spec.CPULimit = 100 // one thread reaches this only on a host with one CPU
	q.Spec.CPULimit = 10 / float64(runtime.NumCPU())
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.Expect("start", q.Spec, agentproto.CodeSuccess, "")
	e := h.Event(agentproto.EventLimitExceeded, q.Spec.Key)
	s := h.Becomes(q.Spec, "it is taken down", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	if s.LastExit == nil || s.LastExit.Why != "limit" || e.Message == "" {
		t.Errorf("event is %+v, status %+v", e, s)
	}
	if s := h.Status(p.Spec); s.PID != pid || s.TreeCPU <= 0 || s.TreeCPU > 100 {
		t.Errorf("status is %+v", s)
	}
}

// percentOf returns bytes as a percentage of the host's memory.
func percentOf(t *testing.T, bytes float64) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kb float64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %f kB", &kb); err != nil {
		t.Fatal(err)
	}
	return bytes / (kb * 1024) * 100
}

const mib = 1 << 20

func memoryLeak(t *testing.T, h *agenttest.Host) {
	h.Start(quickLimits)
	p := h.Program()
	p.Spec.StartCmd, p.Spec.MemoryLimit = agenttest.Daemon(fmt.Sprintf("-pid demo.pid -leak %d", 200*mib)), percentOf(t, 50*mib)
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	s := h.Becomes(p.Spec, "it is given up", func(s agentproto.Status) bool { return s.Phase == "fatal" })
	if s.LastExit == nil || s.LastExit.Why != "limit" || p.Starts() != 3 || len(h.Events(agentproto.EventLimitExceeded)) == 0 {
		t.Errorf("%d starts, %d events, status %+v", p.Starts(), len(h.Events(agentproto.EventLimitExceeded)), s)
	}
	if e := h.Event(agentproto.EventGaveUp, p.Spec.Key); !strings.Contains(e.Message, "limit") {
		t.Errorf("event is %+v", e)
	}
}

func workersOverLimit(t *testing.T, h *agenttest.Host) {
	h.Start(quickLimits)
	p := h.Program()
	p.Spec.StartIntervalMS = never
	p.Spec.StartCmd = agenttest.Daemon(fmt.Sprintf("-pid demo.pid -workers 4 -worker-leak %d", 40*mib))
	p.Spec.MemoryLimit = percentOf(t, 80*mib) // more than the main process or any worker uses
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	h.Event(agentproto.EventLimitExceeded, p.Spec.Key)
	h.Becomes(p.Spec, "it is taken down", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	testenv.Eventually(t, agenttest.Patience, func() bool { return len(h.Marked()) == 0 }, "the workers have ended, too")
}

func stubbornOverLimit(t *testing.T, h *agenttest.Host) {
	h.Start(quickLimits)
	p := h.Program()
	p.Spec.StartIntervalMS, p.Spec.OpTimeoutMS, p.Spec.StopCheckMS = never, 2_000, 500
	p.Spec.StartCmd = agenttest.Daemon("-pid demo.pid -busy 1 -ignore-term -workers 2")
	p.Spec.StopCmd = "echo asked >>asked; sleep 300"
	p.Spec.CPULimit = 10 / float64(runtime.NumCPU())
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.Becomes(p.Spec, "it is taken down", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	if agenttest.Alive(pid) || p.Lines("asked") != 1 {
		t.Errorf("stop command ran %d times, alive %v", p.Lines("asked"), agenttest.Alive(pid))
	}
	testenv.Eventually(t, agenttest.Patience, func() bool { return len(h.Marked()) == 0 }, "all its processes have ended")
}

// outOfMemory starts a program in a control group with a limit on memory. The agent
// runs outside this group: the kernel may kill a second process before it has freed
// the memory of the first.
func outOfMemory(t *testing.T, h *agenttest.Host) {
	group := memoryGroup(t, h, 256*mib)
	h.Start()
	p := h.Program()
	p.Spec.StartIntervalMS = never
	p.Spec.StartCmd = fmt.Sprintf("echo $$ >%s/cgroup.procs; ", group) + agenttest.Daemon(fmt.Sprintf("-pid demo.pid -leak-when go -leak %d", 1024*mib))
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	p.Write("go", "")
	s := h.Becomes(p.Spec, "the kernel ends it", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	if s.LastExit == nil || s.LastExit.Why != "out of memory" {
		t.Errorf("status is %+v, last exit %+v", s, s.LastExit)
	}
	p.Spec.StartCmd = agenttest.Daemon("-pid demo.pid")
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
}

// memoryGroup creates a control group with a limit on memory, within the group of
// this process.
func memoryGroup(t *testing.T, h *agenttest.Host, bytes int) string {
	t.Helper()
	groups := read(t, "/proc/self/cgroup")
	var tried []error
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		base, file := "/sys/fs/cgroup"+parts[2], "memory.max"
		if slices.Contains(strings.Split(parts[1], ","), "memory") {
			base, file = "/sys/fs/cgroup/memory"+parts[2], "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		if _, err := os.Stat(base); err != nil { // the namespace shows another part
			base = strings.TrimSuffix(base, parts[2])
		}
		dir := fmt.Sprintf("%s/procfleet-test-%d", base, os.Getpid())
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			err = os.WriteFile(dir+"/"+file, fmt.Append(nil, bytes), 0o600)
			t.Cleanup(func() {
				h.Clear()
				testenv.Eventually(t, agenttest.Patience, func() bool { return os.Remove(dir) == nil }, "the control group is removed")
			})
		}
		if err == nil {
			return dir
		}
		tried = append(tried, err)
	}
	testenv.Missing(t, "cgroups", "no control group can be made on this host: %v", tried)
	return ""
}
