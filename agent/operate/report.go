package operate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// reporter logs changes of a process that no operation caused, and emits events about them.
type reporter struct{ *actor }

// logChange logs the changes of a step: a supervised process died (warning), was given up
// (error) or runs again (info). Results report the changes by operations. Call it after the
// step's effects, which determine the time of the next start.
func (r reporter) logChange(was supervise.State) {
	now, none := &r.state, supervise.Identity{}
	up, alone := now.Desired == supervise.Up, was.Work == supervise.Idle
	if now.Phase != was.Phase {
		r.log.WithFields(logrus.Fields{"phase": now.Phase, "before": was.Phase, "pid": now.Main.PID}).Debug("process phase changed")
	}
	switch {
	case up && now.Policy.Periodic:
		if now.Overlaps > was.Overlaps {
			r.log.WithFields(logrus.Fields{"pid": now.Main.PID, "runs": now.Overlaps}).Warn("periodic run skipped: previous run still running")
		}
	case up && alone && was.Main != none && now.Main == none:
		r.outlook().WithField("pid", was.Main.PID).Warn("supervised process died")
	case up && was.Work == supervise.Operating && now.Phase == supervise.Backoff:
		r.outlook().Warn("supervised process down after the operation")
	case up && alone && now.Phase == supervise.Running && now.Main != was.Main:
		r.log.WithFields(logrus.Fields{"pid": now.Main.PID, "pid_before": r.memory.Last.PID}).Info("supervised process running again")
	}
	if now.Phase == supervise.Fatal && was.Phase != supervise.Fatal {
		r.outlook().WithField("pid", r.memory.Last.PID).Error("supervised process given up")
	}
	if now.Phase == supervise.Uncertain && was.Phase != supervise.Uncertain {
		r.log.WithFields(logrus.Fields{"pid": now.Main.PID, "next": "search again"}).Warn("process state indeterminate")
	}
}

// logStart logs the result of an automatic start.
func (r reporter) logStart(start *procop.AutoStartReport) {
	pid, alive := start.Outcome.Main.PID, start.Outcome.Observation == supervise.Alive
	switch {
	case r.state.Policy.Periodic:
		r.logRun(start)
	case alive && start.Ran:
		r.log.WithFields(logrus.Fields{"pid": pid, "pid_before": r.memory.Last.PID}).Info("supervised process restarted")
	case alive && pid == 0:
		r.log.WithField("reason", start.Message).Warn("supervised process not started")
	case alive:
		r.log.WithField("pid", pid).Info("supervised process running again")
	case start.Message != "":
		r.outlook().WithField("reason", start.Message).Warn("automatic start failed")
	}
}

// logRun logs the result of starting a periodic run.
func (r reporter) logRun(start *procop.AutoStartReport) {
	entry := r.log.WithField("next_run", r.schedule.nextAt.Format(time.RFC3339))
	switch {
	case start.Outcome.Class == supervise.Failed, start.Outcome.Class == supervise.Refused:
		entry.WithFields(logrus.Fields{"failures": r.state.Failures, "reason": start.Message}).Warn("periodic run failed")
	case start.Ran:
		entry.WithField("pid", start.Outcome.Main.PID).Info("periodic run completed")
	}
}

// outlook returns a log entry with the next automatic action for a process that is down.
func (r reporter) outlook() *logrus.Entry {
	fields := logrus.Fields{"failures": r.state.Failures, "retries": r.state.Policy.Retries, "next": "nothing"}
	if r.state.Phase == supervise.Backoff {
		fields["next"] = "restart"
		fields["restart_in"] = max(0, time.Until(r.auto.retryAt)).Round(100 * time.Millisecond).String()
	}
	return r.log.WithFields(fields)
}

// emitNotice emits the event for a notice of the state machine.
func (r reporter) emitNotice(notice supervise.Emit) {
	if notice.Notice == supervise.PIDChanged && slices.Contains(r.memory.Instances, proc.Identity(notice.Main)) {
		return // an instance has ended, and another instance is the main process now
	}
	pid, other := notice.Main.PID, notice.Other.PID
	event := agentproto.Event{PID: pid}
	switch notice.Notice {
	case supervise.Restarted:
		event.Kind = agentproto.EventRestarted
		event.Details = map[string]any{"restarts": r.state.Restarts, "pid_before": r.memory.Last.PID}
		ended := cmp.Or(r.describeEnd(r.memory.Last, event.Details), "had ended")
		event.Message = fmt.Sprintf("the process %s and was started again, pid %d", ended, pid)
	case supervise.GivenUp:
		event.Kind = agentproto.EventGaveUp
		event.Details = map[string]any{"reason": string(notice.Reason), "failures": r.state.Failures}
		if output, err := r.engine.Output(OutputQuery{Key: r.key, Lines: outputLines}); err == nil && len(output.Data) > 0 {
			event.Details["output"] = procop.Clip(string(output.Data[max(0, len(output.Data)-eventOutput):]), eventOutput)
		}
		event.Message = r.whyGivenUp(notice.Reason)
		if ended := r.describeEnd(r.memory.Last, event.Details); ended != "" {
			// First: whyGivenUp may end in long output.
			event.Message = procop.Join(fmt.Sprintf("pid %d %s", r.memory.Last.PID, ended), event.Message)
		}
	case supervise.ExternalStart:
		event.Kind = agentproto.EventAdopted
		event.Message = fmt.Sprintf("pid %d was started by another program; the agent supervises it now", pid)
	case supervise.PIDChanged:
		event.Kind = agentproto.EventPIDChanged
		event.Message = fmt.Sprintf("pid %d replaced pid %d", pid, other)
		event.Details = map[string]any{"pid_before": other}
		if ended := r.describeEnd(proc.Identity(notice.Other), event.Details); ended != "" {
			event.Message += ", which " + ended
		}
	case supervise.ConflictPersists:
		event.Kind = agentproto.EventTwoMasters
		event.Message = fmt.Sprintf("pid file %s names pid %d, but pid %d lives and remains the supervised process", r.memory.Spec.PidPath, other, pid)
		event.Details = map[string]any{"pid_other": other}
	case supervise.StoppedBySignal:
		event.Kind = agentproto.EventFrozen
		event.Message = fmt.Sprintf("pid %d was stopped by a signal; SIGCONT resumes it", pid)
	case supervise.Overlapping:
		event.Kind = agentproto.EventOverlap
		event.Message = fmt.Sprintf("%d runs in a row were skipped, because the previous run has not ended", r.state.Overlaps)
		event.Details = map[string]any{"runs": r.state.Overlaps}
	case supervise.RunsFailed:
		event.Kind = agentproto.EventRunsFailed
		event.Message = fmt.Sprintf("%d runs in a row failed: %s", r.state.Failures, r.auto.trouble)
		event.Details = map[string]any{"runs": r.state.Failures}
	case supervise.StillIndeterminate:
		event.Kind = agentproto.EventUncertain
		event.Message = "the state of the process is indeterminate; the agent does not act on it until it is known"
	}
	r.emit(event)
}

// eventOutput is the maximum size of the output in an event, in bytes, and outputLines the
// number of lines from which it is taken.
const (
	eventOutput = 4 << 10
	outputLines = 1000
)

// exitOf returns the recorded end of a process; nil if none is recorded.
func (a *actor) exitOf(id proc.Identity) *agentproto.LastExit {
	if id.IsZero() || id != a.memory.exited {
		return nil
	}
	return a.memory.LastExit
}

// describeEnd adds the recorded end of a process to details, and returns it as text with its
// cause, for example "was killed by SIGKILL (out of memory)"; "" if the agent does not know it.
func (r reporter) describeEnd(id proc.Identity, details map[string]any) string {
	exit := r.exitOf(id)
	text, known := describeExit(exit)
	maps.Copy(details, known)
	if text != "" && exit.Why != "" {
		text += " (" + exit.Why + ")"
	}
	return text
}

// describeExit returns how a process ended, as text and as details of an event; nothing if
// that is unknown.
func describeExit(e *agentproto.LastExit) (text string, details map[string]any) {
	switch {
	case e == nil || !e.Known:
		return "", nil
	case e.Signal != "":
		return "was killed by " + e.Signal, map[string]any{"signal": e.Signal}
	}
	return fmt.Sprintf("exited with code %d", e.Code), map[string]any{"exit_code": e.Code}
}

// givenUp returns the reason for giving the process up; "" = not given up.
func (r reporter) givenUp() string {
	if r.state.Phase != supervise.Fatal {
		return ""
	}
	return r.whyGivenUp(r.state.History.GaveUp)
}

func (r reporter) whyGivenUp(why supervise.Reason) string {
	policy, history := &r.state.Policy, &r.state.History
	switch why {
	case supervise.OutOfRetries:
		return fmt.Sprintf("%d attempts in a row to keep the process alive failed", r.state.Failures)
	case supervise.Flapping:
		return fmt.Sprintf("the process was started %d times within %s", len(history.Starts), policy.FlapWindow)
	case supervise.LimitAgain:
		return fmt.Sprintf("the process exceeded a limit %d times within %s", len(history.LimitKills), policy.LimitWindow)
	case supervise.Unstartable:
		return procop.Join(fmt.Sprintf("the host is not set up to start it, as %d attempts in a row showed", history.BadSetups), r.auto.trouble)
	}
	return string(why)
}

// instancesMissing reports that fewer instances run than the spec requires. was are the
// instances that ran before.
func (r reporter) instancesMissing(was, running []proc.Identity) {
	wanted, pid := r.memory.Spec.Instances, running[0].PID
	text := fmt.Sprintf("%d of %d instances run, pid %s; a restart starts all of them", len(running), wanted, procop.PIDList(running))
	details := map[string]any{"running": len(running), "wanted": wanted}
	death := &r.watch.instance
	ended, known := describeExit(&agentproto.LastExit{Known: death.Known, Code: death.Code, Signal: death.SignalName()})
	if ended != "" && slices.Contains(was, death.Identity) {
		text = procop.Join(fmt.Sprintf("pid %d %s", death.PID, ended), text)
		details["pid_before"] = death.PID
		maps.Copy(details, known)
	}
	r.log.WithField("pid", pid).WithField("reason", text).Warn("process instances missing")
	r.emit(agentproto.Event{Kind: agentproto.EventInstancesMissing, PID: pid, Message: text, Details: details})
}

func (r reporter) unhealthy(pid, failures int, answer string) {
	text := fmt.Sprintf("health command failed %d times in a row: %s", failures, answer)
	r.log.WithField("pid", pid).WithField("reason", text).Warn("health command failed repeatedly")
	r.emit(agentproto.Event{
		Kind: agentproto.EventHealthFailed, PID: pid, Message: text,
		Details: map[string]any{"failures": failures, "answer": answer},
	})
}

func (r reporter) quarantineImposed(cause string) {
	r.log.WithField("error", cause).Error("process quarantined after repeated panics; restart the agent")
	r.emit(agentproto.Event{
		Kind: agentproto.EventQuarantined, PID: r.state.Main.PID,
		Message: fmt.Sprintf("the agent panicked over the process %d times, lately with %q, and does not act on it until the agent is restarted", maxPanics, cause),
	})
}

func (r reporter) emit(event agentproto.Event) {
	spec := &r.memory.Spec
	event.Key, event.Namespace, event.Name, event.ProcName = r.key, spec.Namespace, spec.Name, spec.ProcName
	r.engine.cfg.Emit(event)
}
