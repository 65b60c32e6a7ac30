package operate

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

func TestDeadProcessIsStartedAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	for range 2 {
		sigkill(t, pid)
		s := g.becomes(g.spec(), "it runs again", func(s agentproto.Status) bool {
			return s.Phase == "running" && s.Running && s.PID != pid
		})
		pid = s.PID
	}
	if g.starts() != 3 {
		t.Fatalf("%d starts, want 3", g.starts())
	}
}

func TestProcessThatDiesRightAfterTheWindow(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd, s.StartIntervalMS = daemon("-pid demo.pid -life 700ms"), 60_000 })
	g.want("start", spec, 0, "")
	g.becomes(spec, "its death counts", func(s agentproto.Status) bool { return s.Phase == "backoff" && s.Failures == 1 })
}

func TestCrashLoopIsGivenUpAndSurvivesTheAgent(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; [ $(wc -l <starts) -gt 1 ] && exit 1; setsid ./demo -pid demo.pid -life 1s >/dev/null 2>&1 </dev/null &"
		s.StartRetries, s.StartIntervalMS = 3, 50
	})
	g.want("start", spec, 0, "")
	s := g.becomes(spec, "it is given up", func(s agentproto.Status) bool { return s.Phase == "fatal" })
	if g.starts() != 1+3 || !s.Supervised || s.Failures != 4 {
		t.Fatalf("%d starts, status %+v", g.starts(), s)
	}
	g.crash()
	g.open()
	if s := g.status(spec); s.Phase != "fatal" || !s.Supervised || s.Failures != 4 {
		t.Fatalf("status after the agent's restart is %+v", s)
	}
	if err := os.Remove(filepath.Join(g.dir, "starts")); err != nil {
		t.Fatal(err)
	}
	g.want("start", spec, 0, "")
}

func TestProcessStartedByHandIsAdopted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 60_000 })
	sigkill(t, g.want("start", spec, 0, "").Status.PID)
	g.becomes(spec, "backoff", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	pid := startByHand(t, g)
	s := g.becomes(spec, "it is adopted", func(s agentproto.Status) bool { return s.Phase == "running" })
	if s.PID != pid || g.starts() != 1 {
		t.Fatalf("adopted pid %d after %d starts, want %d after 1", s.PID, g.starts(), pid)
	}
	g.want("stop", spec, 0, "")
}

func TestReplacedProcessIsAdopted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 60_000 })
	old := g.want("start", spec, 0, "").Status.PID
	pid := startByHand(t, g)
	sigkill(t, old)
	s := g.becomes(spec, "the successor is adopted", func(s agentproto.Status) bool { return s.PID == pid && s.Phase == "running" })
	if s.Failures != 0 || g.starts() != 1 {
		t.Fatalf("%d failures, %d starts", s.Failures, g.starts())
	}
	g.want("stop", spec, 0, "")
}

// startByHand starts the program without the agent and returns its pid.
func startByHand(t *testing.T, g *rig) int {
	t.Helper()
	// An earlier process may still be about to write its pid file, or may have been killed
	// before it did.
	g.eventually("what runs has written its pid file", func() bool {
		_, err := os.Stat(g.spec().PidPath)
		return err == nil || len(g.running()) == 0
	})
	if err := os.Remove(g.spec().PidPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	runner, err := proc.NewRunner(proc.NewAccounts())
	if err != nil {
		t.Fatal(err)
	}
	exec, err := runner.Start(t.Context(), proc.Command{
		Line: "setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null &", Dir: g.dir, Key: g.mark(), Account: g.account,
		OutputPath: filepath.Join(t.TempDir(), "out"),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-exec.Done()
	var pid int
	g.eventually("the pid file names it", func() bool {
		text, err := os.ReadFile(filepath.Join(g.dir, "demo.pid"))
		if err != nil {
			return false
		}
		n, err := fmt.Sscan(string(text), &pid)
		return n == 1 && err == nil
	})
	return pid
}

func TestOperationDuringAnAutomaticStartWaitsForItsCommandOnly(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 10 })
	sigkill(t, g.want("start", spec, 0, "").Status.PID)
	g.eventually("it is started again", func() bool { return g.starts() > 1 })
	r := g.do("stop", spec)
	if r.Code != 0 && r.Code != 829 || r.Status.Supervised {
		t.Fatalf("stop: %d %s", r.Code, r.Message)
	}
	g.eventually("nothing runs", func() bool { return len(g.running()) == 0 })
}

func TestRandomStartsAndStops(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCheckBeginMS, s.StartCheckEndMS, s.StartIntervalMS = 0, 0, 20 })
	rounds := 12
	for range rounds {
		var last string
		var ids []journal.ID
		for range 1 + rand.IntN(6) {
			last = []string{"start", "stop", "restart", "kill"}[rand.IntN(4)]
			ids = append(ids, g.submit(last, spec))
		}
		for _, id := range ids {
			r := g.result(id)
			killed := strings.Contains(r.Message, "terminated by kill") || strings.Contains(r.Message, "superseded")
			if r.Code != 0 && r.Code != 828 && r.Code != 829 && !killed {
				t.Fatalf("%v: %d %s", id, r.Code, r.Message)
			}
		}
		want := 0
		if last == "start" || last == "restart" {
			want = 1
		}
		g.eventually(fmt.Sprintf("%d processes run after a %s", want, last), func() bool { return len(g.running()) == want })
		if s := g.status(spec); s.Supervised != (want == 1) {
			t.Fatalf("status after %s is %+v", last, s)
		}
	}
	for id, n := range g.ledger.finishes {
		if n != 1 {
			t.Errorf("%v was finished %d times", id, n)
		}
	}
}

// counted is a command that records how many commands of its kind run at the same time.
const counted = "mkdir ../running.$$; ls -d ../running.* | wc -l >>../parallel; sleep 0.1; rmdir ../running.$$;"

// specs returns the specs of count daemons, each with a folder of its own in the rig's.
func (g *rig) specs(count int) []agentproto.Spec {
	g.t.Helper()
	var specs []agentproto.Spec
	for i := range count {
		dir := filepath.Join(g.dir, fmt.Sprint("p", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			g.t.Fatal(err)
		}
		install(g.t, dir, demoName)
		specs = append(specs, g.spec(func(s *agentproto.Spec) {
			s.Key, s.SetupPath, s.PidPath = dir, dir, filepath.Join(dir, "demo.pid")
			s.StartCmd = "echo >>../starts; setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null &"
		}))
	}
	return specs
}

// startAll starts all processes at once and returns their pids.
func (g *rig) startAll(specs []agentproto.Spec) []int {
	g.t.Helper()
	var ids []journal.ID
	for _, spec := range specs {
		ids = append(ids, g.submit("start", spec))
	}
	var pids []int
	for _, id := range ids {
		pids = append(pids, g.check(g.result(id), 0, "").Status.PID)
	}
	return pids
}

// parallel fails if more than limit counted commands ran at the same time.
func (g *rig) parallel(limit int) {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, "parallel"))
	if err != nil {
		g.t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(field); err != nil || n > limit {
			g.t.Fatalf("commands at a time were %q, want at most %d", text, limit)
		}
	}
}

func TestCommandLimit(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.CommandLimit = 2 })
	specs := g.specs(6)
	for i := range specs {
		specs[i].Type, specs[i].StartCmd, specs[i].PidPath = "once", counted, ""
	}
	g.startAll(specs)
	g.parallel(2)
}

func TestStartLimit(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.StartLimit = 2 })
	specs := g.specs(6)
	pids := g.startAll(specs)
	for i := range specs {
		specs[i].StartCmd = counted + specs[i].StartCmd
	}
	for i, spec := range specs {
		g.want("supervise", spec, 0, "")
		sigkill(t, pids[i])
	}
	for i, spec := range specs {
		g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pids[i] })
	}
	g.parallel(2)
}

func TestStatusTellsHowTheProcessBeforeEnded(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for _, start := range []string{daemon("-pid demo.pid"), "exec ./demo -pid demo.pid"} {
		spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = start })
		pid := g.want("start", spec, 0, "").Status.PID
		sigkill(t, pid)
		s := g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pid })
		// Whether the exit status is known depends on the kernel version and on the reaping parent.
		if e := s.LastExit; e == nil || e.Known != (e.Signal == "SIGKILL") || e.Code != 0 || e.Why != "" {
			t.Errorf("after %q the last exit is %+v", start, e)
		}
		g.want("stop", spec, 0, "")
	}
}

func TestProgramThatRunsUnderAnotherName(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.ProcName = "server" })
	pid := g.want("start", spec, 0, "").Status.PID
	g.want("start", spec, 828, "start:")
	g.crash()
	g.open()
	g.becomes(spec, "it is adopted", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID == pid })
	sigkill(t, pid)
	g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pid })
	g.want("stop", spec, 0, "")
}
