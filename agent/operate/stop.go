package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

func (r *run) stop(ctx context.Context) verdict {
	if bad := r.ready(ctx); bad != nil {
		return *bad
	}
	if r.found().IsZero() {
		return notRunning()
	}
	return r.takeDown(ctx)
}

// takeDown ends the process that runs by the stop command, or without one by
// SIGTERM to the main process.
func (r *run) takeDown(ctx context.Context) verdict {
	spec := &r.op.Spec
	if spec.StopCmd != "" {
		return r.endBy(ctx, spec.StopCmd, ms(spec.StopCheckMS))
	}
	main := r.main()
	if bad := r.unproven("control.stop"); bad != nil {
		return *bad
	}
	if bad := r.execute(main, proc.Identity{}); bad != nil {
		return *bad
	}
	r.engine.cfg.Crash(CrashBeforeExec)
	r.acted = true
	for _, id := range r.all() {
		// One that is stopped hears of it once it goes on.
		if err := errors.Join(proc.Signal(id, syscall.SIGTERM), proc.Thaw(id)); err != nil {
			return commandFailed(err.Error())
		}
	}
	v := r.gone(ctx, r.seen.Procs, opTimeout(spec), "")
	if v.class == supervise.Failed {
		v.message = join(v.message, "SIGTERM did not end it; kill does")
	}
	return v
}

func (r *run) kill(ctx context.Context) verdict {
	if bad := r.ready(ctx); bad != nil {
		return *bad
	}
	main := r.main()
	switch {
	case r.found().IsZero():
		return r.killStrays(ctx)
	case r.op.Spec.KillCmd != "":
		return r.endBy(ctx, r.op.Spec.KillCmd, r.engine.cfg.Timing.KillWait)
	}
	if bad := r.unproven("control.kill"); bad != nil {
		return *bad
	}
	if bad := r.execute(main, proc.Identity{}); bad != nil {
		return *bad
	}
	r.engine.cfg.Crash(CrashBeforeExec)
	var trouble []string
	procs := r.seen.Procs
	for _, p := range procs {
		_, err := proc.KillTree(ctx, p.Identity, r.killScope())
		switch {
		case errors.Is(err, syscall.EPERM):
			trouble = append(trouble, err.Error())
		case err != nil: // it may only take longer to go
			r.evidence = append(r.evidence, err.Error())
		}
	}
	return r.gone(ctx, procs, r.engine.cfg.Timing.KillWait, join(trouble...))
}

// unproven refuses to signal a look-alike.
func (r *run) unproven(command string) *verdict {
	if !r.lookAlike() {
		return nil
	}
	v := refused(fmt.Sprintf("pid %d has the name and place of this process, but pid file %s does not name it: not signalled; "+
		"restore the pid file or give %s", r.found().PID, r.op.Spec.PidPath, command))
	return &v
}

// killStrays ends what a process that is gone has left behind. They carry the
// mark of the key, and the process they came from is known.
func (r *run) killStrays(ctx context.Context) verdict {
	strays := r.strays()
	if r.known.last.IsZero() || strays == "" {
		return notRunning()
	}
	if bad := r.execute(r.known.last, proc.Identity{}); bad != nil {
		return *bad
	}
	if _, err := proc.KillTree(ctx, r.known.last, r.killScope()); err != nil {
		return checkFailed(err.Error())
	}
	r.warn("process was not running; killed what it left behind: %s", strays)
	return succeeded()
}

// killScope is what a kill ends with the process. Programs that arguments tell
// apart may have been started by one shell, and so be of its session.
func (r *run) killScope() proc.KillScope {
	key := r.op.Spec.Key
	return proc.KillScope{Key: r.engine.markOf(&r.op.Spec), LedOnly: r.op.Spec.ArgsPattern != "", Protected: func(pid int) bool {
		return r.engine.groups.has(pid) || r.engine.owners.otherHas(pid, key)
	}}
}

// endBy runs a command that ends the process and gives it time to go.
func (r *run) endBy(ctx context.Context, line string, wait time.Duration) verdict {
	procs := r.seen.Procs
	r.ending = true
	trouble, done, bad := r.complete(ctx, line, r.main())
	r.ending = false
	if bad != nil {
		return *bad
	}
	defer done()
	return r.gone(ctx, procs, wait, trouble)
}

func identities(procs []proc.Process) []proc.Identity {
	var ids []proc.Identity
	for _, p := range procs {
		ids = append(ids, p.Identity)
	}
	return ids
}

// gone waits until the processes and any successor are gone. trouble is how
// the command that should have ended them failed; the goal counts more.
func (r *run) gone(ctx context.Context, procs []proc.Process, wait time.Duration, trouble string) verdict {
	deadline, ids := time.Now().Add(wait), identities(procs)
	for polls := r.stopPolls(); ; {
		// The time is read before the look, so that the last look is a late one.
		late := time.Now().After(deadline)
		if !anyAlive(ids) {
			if r.look(ctx); r.seen.Verdict != proc.Uncertain && !r.succeeded(procs) {
				r.disown()
				return r.wentAway(trouble)
			}
		}
		if late {
			return r.stayed(ctx, ids, wait, trouble)
		}
		if !polls.pause(ctx) {
			return interrupted()
		}
	}
}

// polls are the pauses between queries of processes that have to end: short at
// first, since most end at once, then doubled up to most.
type polls struct{ next, most time.Duration }

const firstStopPoll = 5 * time.Millisecond

func (r *run) stopPolls() *polls { return &polls{firstStopPoll, r.engine.cfg.Timing.StopPoll} }

// pause reports whether ctx still goes on after the next pause.
func (p *polls) pause(ctx context.Context) bool {
	d := min(p.next, p.most)
	p.next = 2 * d
	return pause(ctx, d)
}

// succeeded reports whether what the look found took the place of processes
// that are gone: the pid file names it. Without a pid file it descends from our
// command, or is younger than they were and of their session.
func (r *run) succeeded(gone []proc.Process) bool {
	switch {
	case r.main().IsZero():
		return false
	case !r.seen.Searched || r.op.Spec.PidPath != "":
		return !r.seen.Searched
	case r.seen.Marked, len(gone) == 0:
		return true
	}
	return slices.ContainsFunc(r.seen.Procs, func(p proc.Process) bool {
		return p.Start >= gone[0].Start && p.Session == gone[0].Session
	})
}

// disown makes of what goes on under the name of a process that has gone what
// it is, a remark.
func (r *run) disown() {
	if id := r.found(); !id.IsZero() {
		r.seen = proc.Probe{
			Verdict:  proc.Stopped,
			Evidence: fmt.Sprintf("pid %d has the name and place of the process that is gone", id.PID),
		}
	}
}

func (r *run) wentAway(trouble string) verdict {
	if trouble != "" {
		r.warn("process is gone, but: %s", trouble)
	}
	if strays := r.strays(); strays != "" {
		r.warn("left behind by the process: %s", strays)
	}
	return succeeded()
}

func (r *run) stayed(ctx context.Context, ids []proc.Identity, wait time.Duration, trouble string) verdict {
	r.look(ctx)
	still := "still running pid " + pidList(ids)
	if main := r.main(); !main.IsZero() && !anyAlive(ids) {
		still = fmt.Sprintf("still running pid %d, which took the place of pid %s", main.PID, pidList(ids))
	}
	if trouble != "" {
		return commandFailed(trouble, still)
	}
	return checkFailed(fmt.Sprintf("%s after %s", still, wait), r.tail())
}

// strays lists the pids that the process left behind; "" when there are none
// or they cannot be listed.
func (r *run) strays() string {
	found, err := r.engine.finder.Strays(r.killScope())
	if err != nil {
		return ""
	}
	var pids []string
	for _, p := range found {
		if !r.engine.groups.has(p.PGID) {
			pids = append(pids, strconv.Itoa(p.PID))
		}
	}
	if len(pids) == 0 {
		return ""
	}
	return "pid " + strings.Join(pids, ", ")
}

func anyAlive(ids []proc.Identity) bool {
	return slices.ContainsFunc(ids, proc.Alive)
}

// pidList names those of the processes that live, or all when none does.
func pidList(ids []proc.Identity) string {
	var alive, all []string
	for _, id := range ids {
		all = append(all, strconv.Itoa(id.PID))
		if proc.Alive(id) {
			alive = append(alive, strconv.Itoa(id.PID))
		}
	}
	if len(alive) == 0 {
		alive = all
	}
	return strings.Join(alive, ", ")
}
