package operate

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

// verdict is how an operation ended.
type verdict struct {
	class   supervise.Class
	fault   supervise.Fault // of a start
	code    int
	reason  string
	message string // without the operation's name; empty for code 0
}

func succeeded() verdict {
	return verdict{class: supervise.Done, code: agentproto.CodeSuccess, reason: agentproto.ReasonSucceeded}
}

func alreadyRunning(pid int) verdict {
	return verdict{
		class: supervise.Already, code: agentproto.CodeAlreadyRunning, reason: agentproto.ReasonAlreadyRunning,
		message: fmt.Sprintf("process is already running, pid %d", pid),
	}
}

func notRunning() verdict {
	return verdict{
		class: supervise.Already, code: agentproto.CodeNotRunning, reason: agentproto.ReasonNotRunning,
		message: "process is not running",
	}
}

// commandFailed says that a command could not be run or did not do its work.
func commandFailed(parts ...string) verdict {
	return failure(supervise.Failed, agentproto.CodeFailed, agentproto.ReasonCommandFailed, parts)
}

// notRun says that a command could not be run.
func notRun(err error) verdict {
	v := commandFailed(err.Error())
	switch {
	case errors.Is(err, proc.ErrNoRoom):
		v.fault = supervise.NoRoom
	case errors.Is(err, proc.ErrSetup):
		v.fault = supervise.BadSetup
	}
	return v
}

// checkFailed says that the command ran and the process is not as it should be.
func checkFailed(parts ...string) verdict {
	return failure(supervise.Failed, agentproto.CodeCheckFailed, agentproto.ReasonCheckFailed, parts)
}

// refused says that nothing was tried.
func refused(parts ...string) verdict {
	return failure(supervise.Refused, agentproto.CodeFailed, agentproto.ReasonRefused, parts)
}

// tried replaces a refusal by a failed check. Callers repeat what was refused,
// so an operation that has acted, or may have before the agent restarted, is
// never reported as refused.
func (v verdict) tried() verdict {
	if v.class != supervise.Refused {
		return v
	}
	v.class, v.reason = supervise.Failed, agentproto.ReasonCheckFailed
	if v.code == agentproto.CodeFailed {
		v.code = agentproto.CodeCheckFailed
	}
	return v
}

// expired says that the operation's turn came too late.
func expired(op *journal.Op) verdict {
	return refused("expired, not executed: its turn came after not_after " + op.NotAfter.UTC().Format(time.RFC3339Nano))
}

// abnormal says that the agent itself cannot work.
func abnormal(parts ...string) verdict {
	return failure(supervise.Refused, agentproto.CodeAgentAbnormal, agentproto.ReasonRefused, parts)
}

// interrupted is the end of work that gave way; it makes no result.
func interrupted() verdict { return verdict{class: supervise.Interrupted} }

func failure(class supervise.Class, code int, reason string, parts []string) verdict {
	return verdict{class: class, code: code, reason: reason, message: join(parts...)}
}

// join makes one message of its parts, leaving out empty ones.
func join(parts ...string) string {
	var text []string
	for _, part := range parts {
		if part != "" {
			text = append(text, part)
		}
	}
	return strings.Join(text, "; ")
}

// text is the message of a result: "success", or the operation's name with
// what went wrong.
func (v verdict) text(name string) string {
	switch v.code {
	case agentproto.CodeSuccess:
		return "success"
	case agentproto.CodeUnknownAction:
		return clip(v.message, agentproto.MaxMessage)
	}
	return clip(name+": "+v.message, agentproto.MaxMessage)
}

// fit shortens what explains a result until the whole is no longer than
// results may be; what was decided stays.
func fit(r *agentproto.Result) {
	const brief = 256 // bytes, of each text that is cut
	for _, shorten := range []func(){
		func() { r.Warnings = clipAll(r.Warnings, brief) },
		func() {
			if r.Status != nil {
				r.Status.Evidence, r.Status.Command = clip(r.Status.Evidence, brief), clip(r.Status.Command, brief)
			}
		},
		func() { r.Message = clip(r.Message, 4*brief) },
	} {
		if text, err := json.Marshal(r); err == nil && len(text) <= agentproto.MaxResult {
			return
		}
		shorten()
	}
}

// clipAll keeps as many texts as fit into limit bytes.
func clipAll(texts []string, limit int) []string {
	used := 0
	for i, text := range texts {
		if used += len(text); used > limit {
			return append(texts[:i:i], clip(text, max(0, limit-used+len(text))), "further warnings were cut off")
		}
	}
	return texts
}

// clip cuts a text to limit bytes of valid UTF-8. The end goes: what stands
// there is command output, whose own end was chosen to fit.
func clip(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.ToValidUTF8(text[:min(limit, len(text))], "")
}
