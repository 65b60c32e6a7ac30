package operate

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/supervise"
)

// logChange tells whoever runs the host what became of a process by itself:
// died (warning), given up (error), back (info). What operations do is in
// their results. It comes after the step's effects, so that the time of the
// next start is known.
func (a *actor) logChange(was supervise.State) {
	now := &a.state
	nobody := supervise.Identity{}
	up, alone := now.Desired == supervise.Up, was.Work == supervise.Idle
	if now.Phase != was.Phase {
		a.log.WithFields(logrus.Fields{"phase": now.Phase, "before": was.Phase, "pid": now.Main.PID}).Debug("phase changed")
	}
	switch {
	case up && now.Policy.Periodic:
		if now.Overlaps > was.Overlaps {
			a.log.WithFields(logrus.Fields{"pid": now.Main.PID, "runs": now.Overlaps}).Warn("periodic run skipped: previous run still running")
		}
	case up && alone && was.Main != nobody && now.Main == nobody:
		a.outlook().WithField("pid", was.Main.PID).Warn("supervised process died")
	case up && was.Work == supervise.Operating && now.Phase == supervise.Backoff:
		a.outlook().Warn("supervised process down after the operation")
	case up && alone && now.Phase == supervise.Running && now.Main != was.Main:
		a.log.WithFields(logrus.Fields{"pid": now.Main.PID, "pid_before": a.last.PID}).Info("supervised process running again")
	}
	if now.Phase == supervise.Fatal && was.Phase != supervise.Fatal {
		a.outlook().WithField("pid", a.last.PID).Error("supervised process given up")
	}
	if now.Phase == supervise.Uncertain && was.Phase != supervise.Uncertain {
		a.log.WithFields(logrus.Fields{"pid": now.Main.PID, "next": "look again"}).Warn("process state indeterminate")
	}
}

// logStart tells how an automatic start ended.
func (a *actor) logStart(r *procop.AutoStartReport) {
	pid := r.Outcome.Main.PID
	switch {
	case a.state.Policy.Periodic:
		a.logRun(r)
	case r.Outcome.Sight == supervise.Alive && r.Ran:
		a.log.WithFields(logrus.Fields{"pid": pid, "pid_before": a.last.PID}).Info("supervised process restarted")
	case r.Outcome.Sight == supervise.Alive && pid == 0:
		a.log.WithField("reason", r.Message).Warn("supervised process not started")
	case r.Outcome.Sight == supervise.Alive:
		a.log.WithField("pid", pid).Info("supervised process running again")
	case r.Message != "":
		a.outlook().WithField("reason", r.Message).Warn("automatic start failed")
	}
}

// logRun tells how a run of a periodic process began, or that it did not.
func (a *actor) logRun(r *procop.AutoStartReport) {
	entry := a.log.WithField("next_run", a.schedule.nextAt.Format(time.RFC3339))
	switch {
	case r.Outcome.Class == supervise.Failed, r.Outcome.Class == supervise.Refused:
		entry.WithFields(logrus.Fields{"failures": a.state.Failures, "reason": r.Message}).Warn("periodic run failed")
	case r.Ran:
		entry.WithField("pid", r.Outcome.Main.PID).Info("periodic run completed")
	}
}

// outlook is an entry that says what comes next for a process that is down.
func (a *actor) outlook() *logrus.Entry {
	fields := logrus.Fields{"failures": a.state.Failures, "retries": a.state.Policy.Retries, "next": "nothing"}
	if a.state.Phase == supervise.Backoff {
		fields["next"] = "restart"
		fields["restart_in"] = max(0, time.Until(a.retryAt)).Round(100 * time.Millisecond).String()
	}
	return a.log.WithFields(fields)
}
