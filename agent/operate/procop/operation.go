package procop

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// Report is the result of a piece of work and of its last search.
type Report struct {
	Completion
	Outcome   supervise.Outcome
	Found     proc.Identity   // the process or, if it was not found, a look-alike; zero = none
	Instances []proc.Identity // all running instances, if the spec has several
	Aliases   []string
	Evidence  []string
	Warnings  []string

	PidFileWritten time.Time // modification time of the pid file that named the process; zero = no file did
}

func (w *work) report(c Completion) Report {
	return Report{
		Completion: c, Outcome: w.outcome(c), Found: w.found(), Instances: w.instances(), Aliases: w.known.Aliases,
		Evidence: append(w.evidence, w.probe.Evidence), Warnings: w.warnings, PidFileWritten: w.probe.PidFileWritten,
	}
}

// outcome converts the completion of work for the state machine. It omits the observation if
// the work was refused and its search result differs from the known process.
func (w *work) outcome(c Completion) supervise.Outcome {
	if c.Class == supervise.Refused && w.main() != w.known.Main {
		return supervise.Outcome{Class: c.Class}
	}
	return supervise.Outcome{Class: c.Class, Fault: c.fault, Observation: w.observation(), Main: supervise.Identity(w.main())}
}

// Operation carries out an operation that a caller submitted.
type Operation struct {
	*work

	former      *work // the process to be replaced; nil = none
	interrupted *journal.Exec
}

// Operation returns the work of an operation. former is the process that it replaces; nil =
// none. interrupted is the command that an earlier agent process recorded for the operation;
// nil = it had not begun.
func (h *Host) Operation(op journal.Op, known Knowledge, former *Former, interrupted *journal.Exec) *Operation {
	o := &Operation{work: h.work(op, known), interrupted: interrupted}
	o.record = func(e journal.Exec) error { return h.Engine.Execute(op.ID, e) }
	if former != nil {
		o.former = h.work(journal.Op{Action: agentproto.ActionStop, Spec: former.Spec}, former.Known)
		o.former.record = o.record
	}
	return o
}

// Run carries out the operation. If ctx ends first, the class of the report is
// [supervise.Interrupted], and the operation remains open.
func (o *Operation) Run(ctx context.Context) Report { return o.complete(o.attempt(ctx)) }

// Failed returns the report of an operation that panicked.
func (o *Operation) Failed(cause string) Report {
	o.probe = proc.Probe{Verdict: proc.Uncertain}
	return o.complete(Abnormal("internal error: " + cause))
}

func (o *Operation) complete(c Completion) Report {
	if o.acted || o.interrupted != nil {
		c = c.tried()
	}
	if started := o.op.Action == agentproto.ActionStart || o.op.Action == agentproto.ActionRestart; started && c.Class == supervise.Done {
		o.checkPidFile()
	}
	if c.Code != agentproto.CodeAgentAbnormal && procspec.StartsProcess(o.op.Action) {
		o.warnings = append(o.warnings, procspec.Unenforced(o.spec)...)
	}
	o.warnings = clipAll(o.warnings, agentproto.MaxMessage)
	r := o.report(c)
	r.Outcome.Replaced = o.replaced()
	return r
}

// checkPidFile warns if a started process runs, but its pid file does not name it: the agent
// identified the process by the mark in its environment instead.
func (o *Operation) checkPidFile() {
	if main := o.main(); o.spec.PidPath != "" && o.probe.Searched && !main.IsZero() {
		o.warn("pid file %s does not exist or does not name the running process, pid %d", o.spec.PidPath, main.PID)
	}
}

func (o *Operation) attempt(ctx context.Context) Completion {
	if o.interrupted != nil {
		_ = o.claimPidFile() // refused or not, the operation has begun
		c := recovery{o.work}.operation(ctx, *o.interrupted)
		if o.former != nil {
			o.former.search(ctx)
			recovery{o.former}.continueTree()
		}
		return c
	}
	late := o.late()
	if o.op.Action == agentproto.ActionRelease && !late {
		o.search(ctx)
		return Succeeded()
	}
	// Search before an expired operation is refused, too: the state machine and the caller
	// receive the current state.
	bad := o.ready(ctx)
	switch {
	case late && (bad == nil || bad.Class != supervise.Interrupted):
		return Expired(&o.op)
	case bad != nil && bad.Class == supervise.Interrupted:
		return *bad
	}
	if conflict := o.claimPidFile(); conflict != nil {
		if bad != nil {
			conflict.Message = Join(bad.Message, conflict.Message)
		}
		return *conflict
	}
	switch {
	case bad != nil:
		return *bad
	case o.former != nil:
		return o.attemptWithFormer(ctx)
	}
	return o.act(ctx)
}

func (o *Operation) act(ctx context.Context) Completion {
	switch o.op.Action {
	case agentproto.ActionStart:
		return o.start(ctx)
	case agentproto.ActionStop:
		return shutdown{o.work}.stop(ctx)
	case agentproto.ActionRestart:
		return o.restart(ctx)
	case agentproto.ActionReload:
		return o.reload(ctx)
	case agentproto.ActionKill:
		return shutdown{o.work}.kill(ctx)
	case agentproto.ActionSupervise:
		return o.register()
	}
	return Abnormal(fmt.Sprintf("action %q has no procedure", o.op.Action))
}

// claimPidFile claims the pid file of a spec whose process the operation starts or registers.
// It returns a refusal if the file is that of another managed key, else nil.
func (o *Operation) claimPidFile() *Completion {
	path, key, former := o.spec.PidPath, o.spec.Key, ""
	if !procspec.StartsProcess(o.op.Action) {
		return nil
	}
	for {
		other := o.host.Claims.ClaimPidFile(path, key, former)
		switch {
		case other == "":
			return nil
		case o.host.Engine.HasPidFile(other, path):
			return new(Refused(fmt.Sprintf("pid file %s of process %s is already the pid file of process %s", filepath.Clean(path), key, other)))
		}
		former = other // this key has stopped using the file
	}
}

// restart replaces the process, or starts it if it does not run.
func (o *Operation) restart(ctx context.Context) Completion {
	start := startup{work: o.work, was: o.main()}
	if o.spec.RestartInPlace {
		start.was = proc.Identity{}
	}
	if o.spec.RestartCmd != "" {
		return start.bringUp(ctx, ctx, o.spec.RestartCmd)
	}
	if !o.found().IsZero() {
		if err := o.host.Runner.Check(ctx, o.commandLine(o.spec.StartCmd, o.host.Outputs.dir)); err != nil {
			return notRun(err) // before the process is stopped
		}
		if c := (shutdown{o.work}).bringDown(ctx); c.Class != supervise.Done {
			return c
		}
	}
	return start.bringUp(ctx, ctx, o.spec.StartCmd)
}

// reload runs the reload command. The command may replace the process: reload succeeds if
// any process of the spec runs afterwards.
func (o *Operation) reload(ctx context.Context) Completion {
	was := o.main()
	if bad := o.begin(); bad != nil {
		return *bad
	}
	trouble, release, bad := o.runCommand(ctx, o.spec.ReloadCmd, procspec.OpTimeout(o.spec), was)
	if bad != nil {
		return *bad
	}
	defer release()
	if trouble != "" {
		o.search(ctx)
		return commandFailed(trouble)
	}
	begin, _ := procspec.StartWindow(o.spec)
	if !pause(ctx, min(begin, o.host.Timing.ReloadWait)) {
		return interrupted()
	}
	if o.search(ctx); o.probe.Verdict == proc.Stopped && !was.IsZero() {
		if !pause(ctx, o.host.Timing.Settle) {
			return interrupted()
		}
		o.search(ctx) // a successor may have appeared
	}
	switch {
	case o.probe.Verdict == proc.Uncertain:
		return Refused("state uncertain: " + o.probe.Evidence)
	case o.main().IsZero() && !was.IsZero():
		return checkFailed("process died", o.probe.Evidence, o.tail())
	}
	return Succeeded()
}

// register completes a supervise operation. If the process does not run, supervision starts
// it later.
func (o *Operation) register() Completion {
	if o.spec.Type != procspec.Resident && !procspec.HasSchedule(o.spec) {
		o.warn("process_type %s: the process is not kept alive", o.spec.Type)
	}
	if o.main().IsZero() {
		return Succeeded()
	}
	return o.claimed()
}

// Probe searches for a process without acting on it.
type Probe struct{ *work }

// Probe returns the work of a search.
func (h *Host) Probe(spec *agentproto.Spec, known Knowledge) *Probe {
	return &Probe{h.work(journal.Op{Spec: *spec}, known)}
}

// Run searches for the process. It reports success unless the state of the process
// is indeterminate.
func (p *Probe) Run(ctx context.Context) Report {
	if p.search(ctx); p.probe.Verdict == proc.Uncertain {
		return p.report(Abnormal("state uncertain: " + p.probe.Evidence))
	}
	return p.report(Succeeded())
}

// Observe searches for the process on behalf of supervision. A process that another key has
// claimed is reported as indeterminate.
func (p *Probe) Observe(ctx context.Context) Report {
	p.search(ctx)
	_ = p.contested(p.host.Claims.Conflict(p.main(), p.spec.Key, p.proven()))
	return p.report(Succeeded())
}

// PidFileConflict returns the process that the pid file names, unless it is main or belongs
// to another key, and reports whether it is related to main (see [proc.Kin]).
func (p *Probe) PidFileConflict(ctx context.Context, main proc.Identity) (other proc.Identity, kin bool) {
	p.known.Main = proc.Identity{}
	p.search(ctx)
	id := p.main()
	if !p.probe.UsedPidFile || id.IsZero() || id == main || p.host.Claims.Conflict(id, p.spec.Key, true) != "" {
		return proc.Identity{}, false
	}
	return id, proc.Kin(main, id)
}
