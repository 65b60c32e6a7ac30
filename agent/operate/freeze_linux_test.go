package operate

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

func frozen(namespace string, until time.Time) agentproto.Settings {
	return agentproto.Settings{Freezes: []agentproto.Freeze{{Namespace: namespace, Until: until}}}
}

// swept waits until the engine has swept all processes again.
func (g *rig) swept() { time.Sleep(3 * g.cfg.Timing.Sweep) }

func TestFrozenProcessIsNotStartedUntilTheFreezeEnds(t *testing.T) {
	t.Parallel()
	for _, namespace := range []string{"", "shop"} {
		t.Run("namespace "+namespace, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			until := time.Now().Add(time.Hour).UTC()
			spec := g.spec(func(s *agentproto.Spec) { s.Namespace, s.StartIntervalMS = "shop", 1 })
			pid := g.want("start", spec, 0, "").Status.PID
			g.engine.Apply(frozen(namespace, until))
			g.becomes(spec, "it is frozen", func(s agentproto.Status) bool { return s.FrozenUntil.Equal(until) })
			sigkill(t, pid)
			g.becomes(spec, "its death counts", func(s agentproto.Status) bool { return s.Phase == "backoff" })
			g.swept()
			if s := g.status(spec); s.Phase != "backoff" || g.starts() != 1 {
				t.Fatalf("%d starts, status %+v", g.starts(), s)
			}
			g.engine.Apply(agentproto.Settings{})
			g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.FrozenUntil.IsZero() })
		})
	}
}

func TestFreezeOfOthersChangesNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.Namespace = "shop" })
	g.engine.Apply(frozen("bank", time.Now().Add(time.Hour)))
	pid := g.want("start", spec, 0, "").Status.PID
	sigkill(t, pid)
	g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pid })
}

func TestFreezeEndsByItself(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.FreezeCheck = 20 * time.Millisecond })
	spec := g.spec()
	pid := g.want("start", spec, 0, "").Status.PID
	g.engine.Apply(frozen("", time.Now().Add(time.Second)))
	sigkill(t, pid)
	g.becomes(spec, "it runs again", func(s agentproto.Status) bool {
		return s.Phase == "running" && s.PID != pid && s.FrozenUntil.IsZero()
	})
}

func TestOperationsGoOnDuringAFreeze(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec()
	g.engine.Apply(frozen("", time.Now().Add(time.Hour)))
	sigkill(t, g.want("start", spec, 0, "").Status.PID)
	g.becomes(spec, "its death counts", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	g.want("restart", spec, 0, "")
	g.want("stop", spec, 0, "")
}

func TestFrozenProcessIsNotStartedByTheNextAgent(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 1 })
	pid := g.want("start", spec, 0, "").Status.PID
	g.crash()
	sigkill(t, pid)
	g.openFrozen(frozen("", time.Now().Add(time.Hour)))
	g.becomes(spec, "its death counts", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	g.swept()
	if g.starts() != 1 {
		t.Fatalf("%d starts, want 1", g.starts())
	}
	g.engine.Apply(agentproto.Settings{})
	g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" })
}

func TestEndOfAFreezeIsNoWordOnWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 1 })
	pid := g.want("start", spec, 0, "").Status.PID
	g.crash()
	g.reopen(&journal.Damage{ID: "1", Found: true})
	g.engine.Apply(frozen("", time.Now().Add(time.Hour)))
	g.becomes(spec, "it is frozen", func(s agentproto.Status) bool { return !s.FrozenUntil.IsZero() })
	g.engine.Apply(agentproto.Settings{})
	g.becomes(spec, "it is not frozen any more", func(s agentproto.Status) bool { return s.FrozenUntil.IsZero() })
	sigkill(t, pid)
	g.becomes(spec, "its death counts", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	g.swept()
	if g.starts() != 1 {
		t.Fatalf("%d starts, want 1", g.starts())
	}
	g.want("supervise", spec, 0, "")
	g.becomes(spec, "it is started now that it was asked for", func(s agentproto.Status) bool { return s.Phase == "running" })
}
