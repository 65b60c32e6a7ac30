package operate

import (
	"slices"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/procfleet/procfleet/agentproto"
)

// logged waits for a log entry about the rig's process and returns it.
func (g *rig) logged(hook *logtest.Hook, level logrus.Level, message string) *logrus.Entry {
	g.t.Helper()
	var found *logrus.Entry
	g.eventually("log says "+message, func() bool {
		entries := hook.AllEntries()
		i := slices.IndexFunc(entries, func(e *logrus.Entry) bool { return e.Level == level && e.Message == message })
		if i >= 0 {
			found = entries[i]
		}
		return i >= 0
	})
	if found.Data["process"] != g.dir {
		g.t.Fatalf("%q is about process %v", message, found.Data["process"])
	}
	return found
}

// TestLogTellsWhatBecameOfAProcess verifies the entries about a process that dies: its pid,
// the next action and the result are in fields.
func TestLogTellsWhatBecameOfAProcess(t *testing.T) {
	t.Parallel()
	log, hook := logtest.NewNullLogger()
	g := newRig(t, func(c *Config) { c.Log = log })
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; [ $(wc -l <starts) -gt 2 ] && exit 1; setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null & " + pidLives
		s.StartRetries = 2
	})
	pid := g.want("start", spec, 0, "").Status.PID
	sigkill(t, pid)
	died := g.logged(hook, logrus.WarnLevel, "supervised process died")
	if died.Data["pid"] != pid || died.Data["next"] != "restart" || died.Data["restart_in"] == nil ||
		died.Data["failures"] != 1 || died.Data["retries"] != 2 {
		t.Errorf("death has %v", died.Data)
	}
	back := g.logged(hook, logrus.InfoLevel, "supervised process restarted")
	if back.Data["pid_before"] != pid || back.Data["pid"] == pid {
		t.Errorf("return has %v", back.Data)
	}
	sigkill(t, back.Data["pid"].(int))
	failed := g.logged(hook, logrus.WarnLevel, "automatic start failed")
	if failed.Data["reason"] == "" || failed.Data["failures"] == nil {
		t.Errorf("failed start has %v", failed.Data)
	}
	given := g.logged(hook, logrus.ErrorLevel, "supervised process given up")
	if given.Data["pid"] != back.Data["pid"] || given.Data["failures"] != 3 || given.Data["next"] != "nothing" {
		t.Errorf("giving up has %v", given.Data)
	}
}
