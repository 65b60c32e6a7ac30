package procop

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// Dropped returns the report of an operation that has a result already and must not begin.
func (o *Operation) Dropped(err error) Report {
	o.probe = proc.Probe{Verdict: proc.Uncertain}
	return o.report(completion(supervise.Refused, agentproto.CodeFailed, agentproto.ReasonCancelled, err.Error()))
}

// Preempted ends an operation whose Run was interrupted: it terminates the command that still
// runs, with SIGTERM and then SIGKILL after the stop grace, at least after KillGrace. Processes
// of the spec survive. why is the first part of the message.
func (o *Operation) Preempted(ctx context.Context, why string) Report {
	if !o.acted && o.interrupted == nil {
		o.search(ctx)
		return o.complete(Refused(why))
	}
	leader := o.leader // of an earlier agent process
	if o.command != nil {
		leader = o.command.exec.Identity()
	}
	o.search(ctx)
	if leader.PID != 0 {
		grace := max(procspec.StopGrace(o.spec), o.host.Timing.KillGrace)
		if err := proc.KillGroup(ctx, leader, grace, identities(o.probe.Procs)...); err != nil {
			o.warn("interrupted command: %v", err)
		}
		o.search(ctx)
	}
	recovery{o.work}.continueTree() // a kill of the process may have stopped it
	state := "the process does not run"
	switch {
	case o.probe.Verdict == proc.Uncertain:
		state = "state uncertain: " + o.probe.Evidence
	case !o.main().IsZero():
		state = fmt.Sprintf("the process runs, pid %d", o.main().PID)
	}
	return o.complete(commandFailed(why, state, o.tail()))
}
