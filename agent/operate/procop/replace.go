package procop

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// Former is the process of a key as the stored spec describes it, if the spec of a start or
// restart describes another program. The operation replaces this process; never both run.
type Former struct {
	Spec  agentproto.Spec
	Known Knowledge
}

// attemptWithFormer carries out an operation that has not begun: in place of the former
// process, if that runs. A process that the new spec describes, too, is not replaced: only its
// description changes.
func (o *Operation) attemptWithFormer(ctx context.Context) Completion {
	if bad := o.former.ready(ctx); bad != nil {
		bad.Message = "process of the previous spec: " + bad.Message
		return *bad
	}
	if main := o.former.main(); !main.IsZero() && main != o.found() {
		return o.replace(ctx, main.PID)
	}
	return o.act(ctx)
}

// replace ends the former process by the stop of its own spec, then starts the new process. It
// changes nothing if the new command cannot be run.
func (o *Operation) replace(ctx context.Context, pid int) Completion {
	line := procspec.StartLine(o.spec)
	if o.op.Action == agentproto.ActionRestart {
		line = procspec.RestartLine(o.spec)
	}
	if err := o.host.Runner.Check(ctx, o.commandLine(line, o.host.Outputs.dir)); err != nil {
		return notRun(err)
	}
	switch c := o.endFormer(ctx); c.Class {
	case supervise.Done:
	case supervise.Interrupted:
		return c
	default:
		c.Message = fmt.Sprintf("the process of the previous spec, pid %d, was not stopped: %s; the new one was not started", pid, c.Message)
		return c
	}
	o.warn("replaced pid %d of the previous spec", pid)
	o.replacing = true
	if bad := o.ready(ctx); bad != nil {
		return *bad
	}
	c := o.act(ctx)
	switch c.Class {
	case supervise.Already:
		return o.claimed() // it already ran beside the former one
	case supervise.Failed, supervise.Refused:
		state := "neither runs"
		if main := o.main(); !main.IsZero() {
			state = fmt.Sprintf("the new one runs, pid %d", main.PID)
		}
		c.Message = Join(c.Message, fmt.Sprintf("the process of the previous spec, pid %d, was stopped; %s", pid, state))
	case supervise.Done, supervise.Interrupted:
	}
	return c
}

// endFormer ends the former process by the stop of its own spec.
func (o *Operation) endFormer(ctx context.Context) Completion {
	c := shutdown{o.former}.bringDown(ctx)
	o.acted, o.command = o.acted || o.former.acted, o.former.command
	o.warnings = append(o.warnings, o.former.warnings...)
	return c
}

// replaced reports whether the operation has acted and the former process does not run: then
// the spec of the operation is that of the key, also if the new process does not run.
func (o *Operation) replaced() bool {
	return o.former != nil && (o.acted || o.interrupted != nil) && o.former.probe.Verdict == proc.Stopped
}
