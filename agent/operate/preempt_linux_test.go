package operate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// hangs makes a command hang after it has created the file "hangs" in the setup path.
const hangs = "touch hangs; sleep 100 & sleep 100"

// awaitHang waits until a command of [hangs] hangs.
func (g *rig) awaitHang(spec agentproto.Spec) {
	g.t.Helper()
	g.eventually("the command hangs", func() bool {
		_, err := os.Stat(filepath.Join(spec.SetupPath, "hangs"))
		return err == nil
	})
}

// nothingLeft requires that no process of the key's commands remains.
func (g *rig) nothingLeft() {
	g.t.Helper()
	left, err := g.engine.host.Finder.Orphans(proc.KillScope{Key: g.mark()})
	if err != nil || len(left) != 0 {
		g.t.Fatalf("left behind: %v %v", left, err)
	}
}

func TestAKillDoesNotWaitBehindAHungCommand(t *testing.T) {
	t.Parallel()
	for action, change := range map[string]func(*agentproto.Spec){
		"stop":    func(s *agentproto.Spec) { s.StopCmd = hangs },
		"restart": func(s *agentproto.Spec) { s.RestartCmd = hangs },
		"reload":  func(s *agentproto.Spec) { s.ReloadCmd = hangs },
	} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.spec(change, func(s *agentproto.Spec) { s.OpTimeoutMS = 90_000 })
			g.want("start", spec, 0, "")
			hung := g.submit(action, spec)
			g.awaitHang(spec)
			waiting := g.submit("restart", spec)
			killed := g.submit("kill", spec)
			g.check(g.result(hung), 65535, action+": terminated by kill of task "+killed.Task)
			if r := g.check(g.result(waiting), 65535, "restart: superseded by a later command for this process"); r.Refusal != agentproto.RefusalSuperseded {
				t.Errorf("refusal %q", r.Refusal)
			}
			if r := g.check(g.result(killed), 0, ""); r.Status.Running || r.Status.Supervised {
				t.Errorf("status is %+v", r.Status)
			}
			g.nothingLeft()
		})
	}
}

func TestAKillDoesNotWaitForAStopThatWaits(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.deaf(func(s *agentproto.Spec) { s.OpTimeoutMS, s.StopGraceMS = 90_000, 60_000 })
	pid := g.startDeaf(spec)
	stop := g.submit("stop", spec)
	g.eventually("the stop has begun", func() bool { return g.ledger.executing(stop) })
	g.want("kill", spec, 0, "")
	g.says(g.check(g.result(stop), 65535, "stop: terminated by kill"), "the process runs, pid")
	if isDemo(pid) {
		t.Error("the process runs")
	}
}

func TestAnInterruptedOperationReportsTheStateOfTheProcess(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*agentproto.Spec)
		state  string
	}{
		"not started": {func(s *agentproto.Spec) { s.StartCmd = hangs }, "the process does not run"},
		"started": {func(s *agentproto.Spec) {
			s.StartCmd = daemon("-pid demo.pid") + " until [ -s demo.pid ]; do sleep 0.01; done; " + hangs
		}, "the process runs, pid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.spec(test.change, func(s *agentproto.Spec) { s.OpTimeoutMS = 90_000 })
			start := g.submit("start", spec)
			g.awaitHang(spec)
			g.engine.Interrupt(spec.Key, journal.ID{Task: "another"})
			g.engine.Interrupt(spec.Key, start)
			g.says(g.check(g.result(start), 65535, "start: interrupted: the task was canceled"), test.state)
		})
	}
}

func TestACanceledOperationDoesNotAct(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.ReloadCmd = hangs })
	g.want("start", spec, 0, "")
	hung := g.submit("reload", spec)
	g.awaitHang(spec)
	waiting := g.submit("stop", spec)
	canceled := agentproto.Result{Item: waiting.Item, Code: agentproto.CodeFailed, Reason: agentproto.ReasonCancelled, Message: "canceled"}
	if err := g.ledger.Finish(waiting, canceled); err != nil {
		t.Fatal(err)
	}
	g.engine.Interrupt(spec.Key, hung)
	g.check(g.result(hung), 65535, "reload: interrupted")
	g.result(waiting) // the engine has handled it
	if s := g.status(spec); !s.Running || !s.Supervised {
		t.Errorf("status is %+v", s)
	}
}
