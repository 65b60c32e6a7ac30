package worker

import (
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
)

// phaseUnregistered is the phase of a process of which the server knows no
// spec. No agent says so.
const phaseUnregistered = "unregistered"

// unregistered is the result of an operation by registration on a process
// that is not registered. There is nothing to send to the host, whether its
// agent is there or not: such a process does not run as far as anybody knows.
func unregistered(item int, action procfleet.Action, spec *procfleet.ProcessSpec, now time.Time) procfleet.Result {
	const problem = "process info not registered"
	end := func(code procfleet.Code, reason procfleet.Reason, message string) procfleet.Result {
		return serverResult(item, code, reason, message, now)
	}
	switch {
	case action == procfleet.ActionStatus:
		r := end(procfleet.CodeSuccess, procfleet.ReasonSucceeded, "success")
		r.Status = &procfleet.ProcessStatus{At: now, Phase: phaseUnregistered}
		return r
	case action == procfleet.ActionStop:
		return end(procfleet.CodeNotRunning, procfleet.ReasonNotRunning, problem+": there is nothing to stop")
	case !action.Known():
		return end(procfleet.CodeUnknownAction, procfleet.ReasonRefused, fmt.Sprintf("%s, and action %q is unknown", problem, action))
	}
	return end(procfleet.CodeFailed, procfleet.ReasonRefused,
		fmt.Sprintf("%s: register %s on this host first, or send its spec with the operation", problem, spec.Key()))
}
