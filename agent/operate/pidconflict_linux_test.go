package operate

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
)

func TestTwoSpecsWithOnePidFileAreAConflictThatNamesBoth(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 60_000 })
	// The second program has another name and another folder: no search finds its process.
	second := elsewhere(t, g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; setsid ./demo -pid '" + spec.PidPath + "' >/dev/null 2>&1 </dev/null &"
	}))
	second.Key, second.PidPath = "second", g.dir+"/./demo.pid"
	pid := g.want("start", spec, 0, "").Status.PID
	before := g.pidFileOf(pid)
	refused := func(when string) {
		t.Helper()
		for action, name := range map[string]string{"start": "start", "restart": "restart", "supervise": "register"} {
			r := g.want(action, second, agentproto.CodeFailed, name+": ")
			g.says(r, fmt.Sprintf("pid file %s of process second is already the pid file of process %s", spec.PidPath, spec.Key))
			if r.Reason != "refused" || r.Status.Supervised || r.Status.Running {
				t.Errorf("%s: %s: reason %q, status %+v", when, action, r.Reason, r.Status)
			}
		}
		if after := g.files(); !slices.Equal(after, before) || g.read("demo.pid") != strconv.Itoa(pid) {
			t.Errorf("%s: files are %v, before %v", when, after, before)
		}
	}
	refused("while the first runs")
	g.crash()
	g.open()
	refused("after a restart of the agent")
	if s := g.status(spec); s.PID != pid || !s.Supervised {
		t.Fatalf("status is %+v, want pid %d", s, pid)
	}
	sigkill(t, pid)
	g.becomes(spec, "the first waits for its next start", func(s agentproto.Status) bool { return !s.Running })
	refused("while the first waits for its next start")
	g.want("stop", spec, agentproto.CodeNotRunning, "")
	pid = g.want("start", second, 0, "").Status.PID
	g.says(g.want("start", spec, agentproto.CodeFailed, "start: "), "process second")
	g.want("release", second, 0, "")
	g.says(g.want("start", spec, agentproto.CodeFailed, "start: "), "process second") // it still runs
	sigkill(t, pid)
	g.want("start", spec, 0, "")
}

// The first start is still in progress, so its spec is not stored yet.
func TestTwoStartsAtOnceWithOnePidFileAreAConflict(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; until [ -e go ]; do sleep 0.02; done; " + s.StartCmd
		s.OpTimeoutMS = patience.Milliseconds()
	})
	first := g.submit("start", spec)
	g.eventually("the command runs", func() bool { return g.starts() == 1 })
	second := elsewhere(t, g.spec())
	second.Key, second.PidPath = "second", spec.PidPath
	g.says(g.want("start", second, agentproto.CodeFailed, "start: "),
		fmt.Sprintf("pid file %s of process second is already the pid file of process %s", spec.PidPath, spec.Key))
	g.write("go", "")
	g.check(g.result(first), 0, "")
	g.want("stop", spec, 0, "")
	second.StartCmd = daemon("-pid '" + spec.PidPath + "'")
	g.want("start", second, 0, "")
}
