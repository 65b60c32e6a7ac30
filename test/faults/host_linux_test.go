package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var hostRows = []row{
	{"F44_agent_restarted_by_systemd", restartedBySystemd},
	{"F45_host_booted_again", bootedAgain},
	{"F48_disk_full", diskFull},
	{"F49_data_folder_deleted_or_read_only", dataFolderGone},
	{"F56_agent_starved", agentStarved},
	{"F80_five_hundred_die_at_once", manyDie},
	{"F92_odd_control_groups", oddControlGroups},
}

// restartedBySystemd ends the agent like systemd: only its main process with
// KillMode=process, as in its unit, or all processes with control-group, about
// which the agent's host check warns.
func restartedBySystemd(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.Stop()
	h.Start()
	if s := h.Status(p.Spec); s.PID != pid || !s.Supervised || p.Starts() != 1 {
		t.Errorf("%d starts, status is %+v", p.Starts(), s)
	}
	h.Agent.Signal(syscall.SIGTERM)
	h.Signal(pid, syscall.SIGTERM)
	h.Died()
	testenv.Eventually(t, agenttest.Patience, func() bool { return len(h.Marked()) == 0 }, "everything has ended")
	h.Start()
	h.Becomes(p.Spec, "it is started again", func(s agentproto.Status) bool { return s.Running && s.Phase == "running" })
	h.Stop()

	tools := t.TempDir()
	systemctl := "#!/bin/sh\necho LoadState=loaded\necho KillMode=control-group\n"
	if err := os.WriteFile(filepath.Join(tools, "systemctl"), []byte(systemctl), 0o755); err != nil {
		t.Fatal(err)
	}
	check := exec.Command(h.Binary, "check", "--data", h.Data)
	check.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
	said, err := check.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "KillMode") {
		t.Errorf("the check said %s, %v", said, err)
	}
}

// bootedAgain starts two agents with different boot ids. Between them all processes
// end, and another process gets a pid that is in a pid file.
func bootedAgain(t *testing.T, h *agenttest.Host) {
	booted := func(id string) []string {
		file := filepath.Join(t.TempDir(), "boot_id")
		if err := os.WriteFile(file, []byte(id+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return newSpace(t, false, fmt.Sprintf("mount --bind '%s' /proc/sys/kernel/random/boot_id", file)).enter
	}
	h.Wrapper = booted("11111111-1111-4111-8111-111111111111")
	h.Start()
	p, q := h.Program(), h.Program()
	for _, program := range []*agenttest.Program{p, q} {
		h.Expect("start", program.Spec, agentproto.CodeSuccess, "")
	}
	h.Agent.Kill()
	h.End(p.PID())
	h.End(q.PID())
	stranger := p.Background(p.Command("sleep", "300")).Process.Pid
	p.Write("demo.pid", fmt.Sprintln(stranger))
	byInit := q.Spawn("-pid", "demo.pid")

	h.Wrapper = booted("22222222-2222-4222-8222-222222222222")
	grace := 3 * time.Second
	began := time.Now()
	h.Start(agenttest.QuickBut("boot_uptime=1s,boot_grace=" + grace.String()))
	if s := h.Status(q.Spec); s.PID != byInit || !s.Supervised {
		t.Errorf("status of the process started by the boot: %+v, want pid %d", s, byInit)
	}
	s := h.Becomes(p.Spec, "it is started", func(s agentproto.Status) bool { return s.Running && s.Phase == "running" })
	if waited := time.Since(began); s.PID == stranger || p.Starts() != 2 || q.Starts() != 1 || waited < grace {
		t.Errorf("%d and %d starts after %v, status is %+v", p.Starts(), q.Starts(), waited, s)
	}
	if !agenttest.Alive(stranger) {
		t.Error("the other process was ended")
	}
}

func diskFull(t *testing.T, h *agenttest.Host) {
	s := newSpace(t, false, fmt.Sprintf("mount -t tmpfs -o size=8m,mode=700 tmpfs '%s'", h.Data))
	h.Wrapper = s.enter
	h.Start()
	fill := fmt.Sprintf("dd if=/dev/zero of='%s/fill' bs=4k 2>/dev/null || true", h.Data)
	empty := fmt.Sprintf("rm '%s/fill'", h.Data)
	q, slow := h.Program(), h.Program()
	h.Expect("start", q.Spec, agentproto.CodeSuccess, "")
	slow.Spec.StartCmd = "echo start >>starts; until [ -e go ]; do sleep 0.1; done; exec ./demo -d -pid demo.pid >/dev/null 2>&1"
	began := h.Begin("start", slow.Spec)
	testenv.Eventually(t, agenttest.Patience, func() bool { return slow.Starts() == 1 }, "the start command runs")

	s.run(t, fill)
	// The page that the journal has begun has space for a few records.
	p := h.Program()
	r := h.Do("start", p.Spec)
	for ; r.Code == agentproto.CodeSuccess; r = h.Do("start", p.Spec) {
		p = h.Program()
	}
	h.Says(h.Check(r, agentproto.CodeAgentAbnormal, "start:"), "no space")
	if p.Starts() != 0 {
		t.Error("the process was started")
	}
	if s := h.Status(q.Spec); s.PID != q.PID() || !s.Supervised {
		t.Errorf("status is %+v", s)
	}
	pid := q.PID()
	h.End(pid)
	h.Becomes(q.Spec, "what is supervised is started again", func(s agentproto.Status) bool { return s.Running && s.PID != pid })
	// The agent records and reports the end of running operations.
	slow.Write("go", "")
	h.Check(h.Result(began), agentproto.CodeSuccess, "")
	h.Agent.Kill()

	s.run(t, empty)
	h.Start()
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	if s := h.Status(q.Spec); s.PID != q.PID() || !s.Supervised {
		t.Errorf("status is %+v", s)
	}
	if s := h.Status(slow.Spec); s.PID != slow.PID() || !s.Supervised || slow.Starts() != 1 {
		t.Errorf("status is %+v after %d starts", s, slow.Starts())
	}
}

func dataFolderGone(t *testing.T, h *agenttest.Host) {
	h.Start()
	p, q := h.Program(), h.Program()
	pid := h.Expect("start", q.Spec, agentproto.CodeSuccess, "").Status.PID
	entries, err := os.ReadDir(h.Data)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(h.Data, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if s := h.Status(q.Spec); s.PID != pid || !s.Supervised {
		t.Errorf("status is %+v", s)
	}
	// The agent begins no operation until it has a journal again.
	for {
		r := h.Do("start", p.Spec)
		if r.Code == agentproto.CodeSuccess {
			break
		}
		if r.Code != agentproto.CodeAgentAbnormal || p.Starts() != 0 {
			t.Fatalf("%d %s after %d starts", r.Code, r.Message, p.Starts())
		}
	}
	h.Agent.Kill()
	h.Start()
	for _, program := range []*agenttest.Program{p, q} {
		if s := h.Status(program.Spec); s.PID != program.PID() || !s.Supervised || program.Starts() != 1 {
			t.Errorf("%d starts, status is %+v", program.Starts(), s)
		}
	}
	h.Stop()

	s := newSpace(t, false, fmt.Sprintf("mount --bind '%[1]s' '%[1]s'; mount -o remount,bind,ro '%[1]s'", h.Data))
	h.Wrapper = s.enter
	h.Launch()
	if code := h.Agent.Wait(t, agenttest.Patience); code == 0 || !strings.Contains(h.Agent.WholeOutput(t, agenttest.Patience), "read-only file system") {
		t.Errorf("ended with code %d", code)
	}
	if p.PID() == 0 || q.PID() == 0 {
		t.Error("programs were ended")
	}
}

// agentStarved suspends the agent for longer than its threshold of a late schedule.
func agentStarved(t *testing.T, h *agenttest.Host) {
	h.Start(quickLimits)
	p := h.Program()
	p.Spec.CPULimit, p.Spec.MemoryLimit = 50, 50
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	h.Agent.Freeze(t)
	time.AfterFunc(20*time.Second, func() { h.Agent.Signal(syscall.SIGCONT) })
	e := h.Event(agentproto.EventStarved, "")
	if e.Message == "" {
		t.Errorf("event is %+v", e)
	}
	s := h.Becomes(p.Spec, "it is measured again", func(s agentproto.Status) bool { return s.TreeMemoryBytes > 0 })
	if s.PID != pid || p.Starts() != 1 || len(h.Events(agentproto.EventLimitExceeded)) != 0 {
		t.Errorf("%d starts, status is %+v", p.Starts(), s)
	}
}

func manyDie(t *testing.T, h *agenttest.Host) {
	const many = 500
	h.Start(agenttest.QuickBut("start_every=10ms"))
	var programs []*agenttest.Program
	log := filepath.Join(t.TempDir(), "log")
	for range many {
		p := h.Sleeper()
		p.Spec.StartCmd = fmt.Sprintf("echo + >>'%s'; %s; echo - >>'%[1]s'", log, p.Spec.StartCmd)
		programs = append(programs, p)
	}
	for _, r := range h.DoAll("start", agenttest.Specs(programs)) {
		h.Check(r, agentproto.CodeSuccess, "")
	}
	if err := os.Truncate(log, 0); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		h.Signal(p.PID(), syscall.SIGKILL)
	}
	for _, p := range programs {
		s := h.Becomes(p.Spec, "it is back", func(s agentproto.Status) bool { return s.Phase == "running" && p.Starts() == 2 })
		if s.PID != p.PID() {
			t.Errorf("pid is %d, status %+v", p.PID(), s)
		}
	}
	running, most := 0, 0
	for line := range strings.Lines(read(t, log)) {
		if line == "+\n" {
			running++
		} else {
			running--
		}
		most = max(most, running)
	}
	if most > 8 {
		t.Errorf("%d concurrent start commands", most)
	}
}

// oddControlGroups hides or changes the host's control groups. The agent must start
// and measure processes nevertheless.
func oddControlGroups(t *testing.T, h *agenttest.Host) {
	for _, mounts := range []string{
		"mount -t tmpfs tmpfs /sys/fs/cgroup",
		"mount -t cgroup2 -o ro cgroup2 /sys/fs/cgroup || mount -t tmpfs -o ro tmpfs /sys/fs/cgroup",
		`mount -t tmpfs tmpfs /sys/fs/cgroup; mkdir /sys/fs/cgroup/memory /sys/fs/cgroup/cpu /sys/fs/cgroup/unified
		mount -t cgroup -o memory,ro cgroup /sys/fs/cgroup/memory || true
		mount -t cgroup2 -o ro cgroup2 /sys/fs/cgroup/unified || true`,
	} {
		h.Wrapper = newSpace(t, false, mounts).enter
		h.Start(quickLimits)
		p := h.Program()
		p.Spec.CPULimit, p.Spec.MemoryLimit = 100, 100
		h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
		h.Becomes(p.Spec, "it is measured", func(s agentproto.Status) bool { return s.TreeMemoryBytes > 0 })
		h.Expect("stop", p.Spec, agentproto.CodeSuccess, "")
		h.Stop()
	}
}
