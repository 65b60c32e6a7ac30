package operate

import (
	"fmt"
	"slices"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// tell tells what the machine did or noticed.
func (a *actor) tell(effect supervise.Tell) {
	if effect.News == supervise.PIDChanged && slices.Contains(a.instances, proc.Identity(effect.Main)) {
		return // one of several has ended, and another one stands for all now
	}
	pid, other := effect.Main.PID, effect.Other.PID
	event := agentproto.Event{PID: pid}
	switch effect.News {
	case supervise.Restarted:
		event.Kind = agentproto.EventRestarted
		event.Message = fmt.Sprintf("it had ended and was started again, pid %d", pid)
		event.Details = map[string]any{"restarts": a.state.Restarts, "pid_before": a.last.PID}
	case supervise.GivenUp:
		event.Kind = agentproto.EventGaveUp
		event.Message = a.whyGivenUp(effect.Reason)
		event.Details = map[string]any{"reason": string(effect.Reason), "failures": a.state.Failures}
	case supervise.Adopted:
		event.Kind = agentproto.EventAdopted
		event.Message = fmt.Sprintf("somebody else started it, pid %d; it is looked after", pid)
	case supervise.PIDChanged:
		event.Kind = agentproto.EventPIDChanged
		event.Message = fmt.Sprintf("pid %d took the place of pid %d", pid, other)
		event.Details = map[string]any{"pid_before": other}
	case supervise.TwoMasters:
		event.Kind = agentproto.EventTwoMasters
		event.Message = fmt.Sprintf("pid file %s names pid %d while pid %d lives; nothing is done about it", a.spec.PidPath, other, pid)
		event.Details = map[string]any{"pid_other": other}
	case supervise.Frozen:
		event.Kind = agentproto.EventFrozen
		event.Message = fmt.Sprintf("pid %d was stopped by a signal; SIGCONT lets it go on", pid)
	case supervise.Overlapping:
		event.Kind = agentproto.EventOverlap
		event.Message = fmt.Sprintf("%d runs in a row were left out, because the one before has not ended", a.state.Overlaps)
		event.Details = map[string]any{"runs": a.state.Overlaps}
	case supervise.RunsFailed:
		event.Kind = agentproto.EventRunsFailed
		event.Message = fmt.Sprintf("%d runs in a row failed: %s", a.state.Failures, a.trouble)
		event.Details = map[string]any{"runs": a.state.Failures}
	case supervise.Doubtful:
		event.Kind = agentproto.EventUncertain
		event.Message = "whether it runs cannot be told; nothing is done about it"
	}
	a.announce(event)
}

// givenUp is why the process that is down was given up, "" if it was not.
func (a *actor) givenUp() string {
	if a.state.Phase != supervise.Fatal {
		return ""
	}
	return a.whyGivenUp(a.state.History.GaveUp)
}

func (a *actor) whyGivenUp(why supervise.Reason) string {
	policy := a.state.Policy
	switch why {
	case supervise.OutOfRetries:
		return fmt.Sprintf("%d attempts in a row to keep it alive failed", a.state.Failures)
	case supervise.Flapping:
		return fmt.Sprintf("it was started %d times within %s", len(a.state.History.Starts), policy.FlapWindow)
	case supervise.LimitAgain:
		return fmt.Sprintf("it was over a limit %d times within %s", len(a.state.History.LimitKills), policy.LimitWindow)
	case supervise.Unstartable:
		return procop.Join(fmt.Sprintf("the host is not set up to start it, as %d attempts in a row showed", a.state.History.BadSetups), a.trouble)
	}
	return string(why)
}

// announce tells an event about this process.
func (a *actor) announce(event agentproto.Event) {
	n := a.names()
	event.Key, event.Namespace, event.Name, event.ProcName = a.key, n.namespace, n.name, n.procName
	a.engine.cfg.Tell(event)
}

// pauseStarts has automatic starts wait since the host had no room for a
// command.
func (e *Engine) pauseStarts(why string) {
	pause := e.cfg.Timing.HostPause
	e.runs.pause(pause)
	if !e.gate.pause(pause) {
		return // told already
	}
	e.cfg.Log.WithField("reason", why).WithField("pause", pause.String()).Warn("host out of processes, automatic starts delayed")
	e.cfg.Tell(agentproto.Event{
		Kind:    agentproto.EventStartsPaused,
		Message: fmt.Sprintf("the host had no room for another process, automatic starts wait for %s: %s", pause, why),
		Details: map[string]any{"pause_s": pause.Seconds()},
	})
}
