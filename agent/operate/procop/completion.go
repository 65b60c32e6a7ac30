package procop

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// Completion is the result of a piece of work.
type Completion struct {
	Class   supervise.Class
	Code    int
	Reason  string
	Refusal string
	Message string // message without the operation's name; empty for code 0
	fault   supervise.Fault
}

// Succeeded completes work that reached its goal.
func Succeeded() Completion {
	return Completion{Class: supervise.Done, Code: agentproto.CodeSuccess, Reason: agentproto.ReasonSucceeded}
}

func alreadyRunning(pids string) Completion {
	return completion(supervise.Already, agentproto.CodeAlreadyRunning, agentproto.ReasonAlreadyRunning,
		"process is already running, pid "+pids)
}

func notRunning() Completion {
	return completion(supervise.Already, agentproto.CodeNotRunning, agentproto.ReasonNotRunning, "process is not running")
}

func commandFailed(parts ...string) Completion {
	return completion(supervise.Failed, agentproto.CodeFailed, agentproto.ReasonCommandFailed, parts...)
}

// notRun completes work whose command could not be run, and sets the fault.
func notRun(err error) Completion {
	c := commandFailed(err.Error())
	switch {
	case errors.Is(err, proc.ErrNoResources):
		c.fault = supervise.HostExhausted
	case errors.Is(err, proc.ErrSetup):
		c.fault = supervise.BadSetup
	}
	return c
}

// checkFailed completes work whose command ran but did not bring the process into the
// requested state.
func checkFailed(parts ...string) Completion {
	return completion(supervise.Failed, agentproto.CodeCheckFailed, agentproto.ReasonCheckFailed, parts...)
}

// Refused completes work that was rejected without acting on the process.
func Refused(parts ...string) Completion {
	return completion(supervise.Refused, agentproto.CodeFailed, agentproto.ReasonRefused, parts...)
}

// Superseded refuses an operation that a later one has overtaken.
func Superseded() Completion {
	c := Refused("superseded by a later command for this process")
	c.Refusal = agentproto.RefusalSuperseded
	return c
}

// Expired refuses an operation whose deadline has passed.
func Expired(op *journal.Op) Completion {
	return Refused("expired, not executed: not_after was " + op.NotAfter.UTC().Format(time.RFC3339Nano))
}

// UnknownAction refuses an operation whose action this agent does not know.
func UnknownAction(action string) Completion {
	return completion(supervise.Refused, agentproto.CodeUnknownAction, agentproto.ReasonRefused, fmt.Sprintf("unknown action %q", action))
}

// Abnormal refuses work that failed for a reason in the agent itself.
func Abnormal(parts ...string) Completion {
	return completion(supervise.Refused, agentproto.CodeAgentAbnormal, agentproto.ReasonRefused, parts...)
}

// interrupted completes work that ended early, because the engine ended or an operation
// has precedence. It produces no result for the caller.
func interrupted() Completion { return Completion{Class: supervise.Interrupted} }

func completion(class supervise.Class, code int, reason string, parts ...string) Completion {
	return Completion{Class: class, Code: code, Reason: reason, Message: Join(parts...)}
}

// tried replaces a refusal by a failed check. Callers retry refused operations, so an
// operation that has acted, or may have acted before the agent restarted, must not be
// reported as refused.
func (c Completion) tried() Completion {
	if c.Class != supervise.Refused {
		return c
	}
	c.Class, c.Reason = supervise.Failed, agentproto.ReasonCheckFailed
	if c.Code == agentproto.CodeFailed {
		c.Code = agentproto.CodeCheckFailed
	}
	return c
}

// Text returns the message of a result: "success", or the operation's name and the failure.
func (c Completion) Text(name string) string {
	switch c.Code {
	case agentproto.CodeSuccess:
		return "success"
	case agentproto.CodeUnknownAction:
		return Clip(c.Message, agentproto.MaxMessage)
	}
	return Clip(name+": "+c.Message, agentproto.MaxMessage)
}

// Join joins the parts that are not empty by "; ".
func Join(parts ...string) string {
	var text []string
	for _, part := range parts {
		if part != "" {
			text = append(text, part)
		}
	}
	return strings.Join(text, "; ")
}

// Fit shortens the texts of a result until it fits into agentproto.MaxResult bytes. Code
// and reason are not changed.
func Fit(r *agentproto.Result) {
	const brief = 256 // bytes per shortened text
	for _, shorten := range []func(){
		func() { r.Warnings = clipAll(r.Warnings, brief) },
		func() {
			if r.Status != nil {
				r.Status.Evidence, r.Status.Command = Clip(r.Status.Evidence, brief), Clip(r.Status.Command, brief)
			}
		},
		func() { r.Message = Clip(r.Message, 4*brief) },
	} {
		if text, err := json.Marshal(r); err == nil && len(text) <= agentproto.MaxResult {
			return
		}
		shorten()
	}
}

// clipAll returns the leading texts that fit into limit bytes; it clips the first text that
// does not fit and replaces the others by a remark.
func clipAll(texts []string, limit int) []string {
	used := 0
	for i, text := range texts {
		if used += len(text); used > limit {
			return append(texts[:i:i], Clip(text, max(0, limit-used+len(text))), "further warnings were cut off")
		}
	}
	return texts
}

// Clip cuts a text to limit bytes of valid UTF-8. It cuts the end: that is where a message
// contains the output of commands, which was already shortened.
func Clip(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.ToValidUTF8(text[:min(limit, len(text))], "")
}
