package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// knowledge is what a process's goroutine hands to work that it starts.
type knowledge struct {
	main    proc.Identity   // as last verified; zero = none
	last    proc.Identity   // the one before, if main is gone
	mates   []proc.Identity // all of several, main among them
	aliases []string        // names under which the program was seen
	watched bool            // main's end would be told at once, and nobody has

	// aliveAt is when main, or else last, was known to run, in clock ticks since
	// boot; 0 = this agent process has not seen it run. What ran beside it then
	// is not its successor.
	aliveAt uint64
}

// run is one piece of work on a process: an operation or an automatic start.
// It belongs to the goroutine that carries it out.
type run struct {
	engine *Engine
	op     journal.Op // of an automatic start: only Action and Spec
	name   string     // opens the messages
	auto   bool       // an automatic start; nothing of it is journalled
	acted  bool       // a command was run or a signal sent
	known  knowledge

	// Of an automatic start: what an earlier agent process had begun, and who
	// is told what this one begins. There is no operation that keeps it.
	left    journal.Exec
	started func(journal.Exec) bool // false = the engine ended
	due     time.Time               // since when it waits for its turn
	awaited bool                    // what was left is over
	resumed bool                    // it made the process run

	args     *regexp.Regexp // see compile; nil = the spec has no pattern
	seen     proc.Probe     // the latest look
	command  *command       // the latest command; nil = none
	ending   bool           // the command is to end the process: nothing that it starts may outlive it
	warnings []string
	evidence []string // what else was noticed

	// began and beganTicks are taken before a command that brings the process
	// up: what is younger was started by it.
	began      time.Time
	beganTicks uint64
	leader     proc.Identity // of that command; members of its group may be the process
}

func (r *run) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// look finds the process. It may be the first to notice that the known one has
// ended: then what it finds may have run beside that one until now, and must
// not be taken for what has come in its place.
func (r *run) look(ctx context.Context) {
	r.search(ctx)
	if main := r.known.main; !r.known.watched || main.IsZero() || !r.lookAlike() || proc.Alive(main) {
		return
	}
	if now, err := proc.NowTicks(); err == nil { // else what was known stands
		r.known.aliveAt = now
	}
	r.search(ctx)
}

func (r *run) search(ctx context.Context) {
	spec := &r.op.Spec
	if err := r.compile(); err != nil {
		r.seen = proc.Probe{Verdict: proc.Uncertain, Evidence: err.Error()}
		return
	}
	if r.engine.owners.rival(r.known.main, spec.Key, spec.PidPath != "") != "" {
		r.known.main = proc.Identity{} // it turned out to be another's
	}
	r.seen = r.engine.find(ctx, proc.Target{
		ProcName: spec.ProcName, SetupPath: spec.SetupPath, PidPath: spec.PidPath, Account: spec.Account, Args: r.args,
		Known: r.known.main, Instances: instancesOf(spec), Mates: r.known.mates, StartedAfter: r.beganTicks, PidFileAfter: r.began, Aliases: r.known.aliases,
		Exclude: r.engine.groups.excluding(r.leader.PID), Mark: r.engine.markOf(spec), Command: r.leader, Foreign: r.foreign, Holder: r.holder,
		Taken: func(pid int) bool { return r.engine.owners.otherHas(pid, spec.Key) },
	})
	if r.seen.Alias != "" {
		// Others hold the same list.
		r.known.aliases = append(slices.Clip(r.known.aliases), r.seen.Alias)
	}
}

// compile compiles, once for all looks, the spec's pattern of command lines.
func (r *run) compile() (err error) {
	if r.args == nil {
		r.args, err = compileArgs(&r.op.Spec)
	}
	return err
}

// foreign reports processes that the search must not find: those of other
// keys and, where a pid file tells which process is ours, those that ran
// beside ours.
func (r *run) foreign(p proc.Process, mark string) bool {
	spec, e := &r.op.Spec, r.engine
	switch {
	case e.owners.otherHas(p.PID, spec.Key), e.owners.otherInstance(mark, spec):
		return true
	case spec.PidPath == "", mark == e.markOf(spec):
		return false
	}
	return p.BootID == e.bootID && p.Start <= r.known.aliveAt
}

// holder returns the other key that supervises a process, "" if there is none.
// A key with the same pid file does not count: the file is as much its own, and
// a start must not move it aside.
func (r *run) holder(p proc.Process) string {
	key := r.engine.owners.rival(p.Identity, r.op.Spec.Key, true)
	if key == "" {
		return ""
	}
	if s := r.engine.snapshotOf(key); !s.supervised() || filepath.Clean(s.spec.PidPath) == filepath.Clean(r.op.Spec.PidPath) {
		return ""
	}
	return key
}

// main is the key's process as the latest look found it; zero when there is
// none. Where the spec names a pid file, a process that only has the right name
// and place is not it (see lookAlike).
func (r *run) main() proc.Identity {
	if r.lookAlike() {
		return proc.Identity{}
	}
	return r.found()
}

// found is the main process or, failing that, the look-alike.
func (r *run) found() proc.Identity {
	if r.seen.Verdict != proc.Running || len(r.seen.Procs) == 0 {
		return proc.Identity{}
	}
	return r.seen.Procs[0].Identity
}

// lookAlike reports whether all that was found has the name and place of the
// process while the pid file, which should name it, does not. It may be the
// process or somebody else's: reason enough to not start another one, and not
// enough to signal it or to keep it alive.
func (r *run) lookAlike() bool {
	return r.seen.Verdict == proc.Running && r.seen.Searched && !r.seen.Marked && r.op.Spec.PidPath != ""
}

// proven reports whether more than a search says that the process is the key's.
func (r *run) proven() bool { return r.op.Spec.PidPath != "" || r.seen.Marked }

// sight is what the latest look means to the process's machine.
func (r *run) sight() supervise.Sight {
	switch r.seen.Verdict {
	case proc.Running:
		return supervise.Alive
	case proc.Stopped:
		return supervise.Gone
	case proc.Uncertain:
	}
	return supervise.Doubt
}

// outcome is what the process's machine learns from work that ended like this.
// Work that was refused makes no process the key's.
func (r *run) outcome(v verdict) supervise.Outcome {
	if v.class == supervise.Refused && r.main() != r.known.main {
		return supervise.Outcome{Class: v.class}
	}
	return supervise.Outcome{Class: v.class, Fault: v.fault, Sight: r.sight(), Main: supervise.Identity(r.main())}
}

// ready looks at the process and refuses to go on when the truth is not known
// or the process is another key's.
func (r *run) ready(ctx context.Context) *verdict {
	r.look(ctx)
	if ctx.Err() != nil {
		v := interrupted()
		return &v
	}
	if r.seen.Verdict == proc.Uncertain {
		v := refused("state uncertain: " + r.seen.Evidence)
		return &v
	}
	return r.contested(r.engine.owners.rival(r.main(), r.op.Spec.Key, r.proven()))
}

// late reports whether the operation must not begin any more. One that has
// acted goes on: half an operation is worse than a late one.
func (r *run) late() bool { return !r.acted && r.engine.late(&r.op) }

// late reports whether an operation's deadline has passed.
func (e *Engine) late(op *journal.Op) bool {
	return !op.NotAfter.IsZero() && !e.cfg.InTime(op.NotAfter)
}

// claim makes the process that was found this key's own, unless another key
// has it.
func (r *run) claim() *verdict {
	return r.contested(r.engine.owners.claim(r.main(), r.op.Spec.Key, r.proven()))
}

func (r *run) contested(rival string) *verdict {
	if rival == "" {
		return nil
	}
	v := refused(fmt.Sprintf("pid %d belongs to key %s", r.main().PID, rival))
	// It is not ours, whatever it is.
	r.seen = proc.Probe{Verdict: proc.Uncertain, Evidence: v.message}
	return &v
}

// before is what [journal.Exec] keeps for the agent that finds the operation
// interrupted.
type before struct {
	Main  proc.Identity `json:"main"`
	Ticks uint64        `json:"ticks,omitempty"`
}

// execute makes durable that the operation acts now; command is what it has
// spawned, zero before.
func (r *run) execute(was, command proc.Identity) *verdict {
	exec := journal.Exec{BootID: r.engine.bootID, At: time.Now().UTC(), PID: command.PID, Start: command.Start}
	var err error
	exec.Before, err = json.Marshal(before{Main: was, Ticks: r.beganTicks})
	switch {
	case err != nil:
	case !r.auto:
		err = r.engine.cfg.Ledger.Execute(r.op.ID, exec)
	case r.started != nil && !r.started(exec):
		v := interrupted()
		return &v
	}
	if err != nil {
		v := abnormal(err.Error())
		return &v
	}
	return nil
}

// pause waits; it reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
