package operate

import (
	"testing"

	"github.com/procfleet/procfleet/agentproto"
)

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
