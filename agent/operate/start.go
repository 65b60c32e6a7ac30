package operate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

func (r *run) start(ctx context.Context) verdict {
	if bad := r.ready(ctx); bad != nil {
		return *bad
	}
	if main := r.main(); !main.IsZero() {
		if bad := r.claim(); bad != nil {
			return *bad
		}
		r.evidence = append(r.evidence, r.seen.Evidence)
		v := alreadyRunning(main.PID)
		if n := r.count(); n != "" {
			v.message = fmt.Sprintf("process is already running, pid %s (%s)", pidList(r.instances()), n)
		}
		return v
	}
	if r.lookAlike() {
		v := alreadyRunning(r.found().PID)
		v.message = join(v.message, r.seen.Evidence)
		return v
	}
	return r.bringUp(ctx, ctx, startLine(&r.op.Spec), proc.Identity{})
}

// bringUp runs a command that ends with the process running and verifies that
// it does. was is the process that has to be replaced; zero = none. The end of
// way ends the waiting before the command, and the one after it as soon as the
// process is seen, but not the one for it: nobody may run a second one beside.
func (r *run) bringUp(ctx, way context.Context, line string, was proc.Identity) verdict {
	stale := r.seen.StalePidFile
	if bad := r.mark(); bad != nil {
		return *bad
	}
	if stale {
		if bad := r.moveStalePidFile(was); bad != nil {
			return *bad
		}
	}
	c, bad := r.spawn(way, line, was)
	if bad != nil {
		return *bad
	}
	defer c.release()
	r.leader = c.exec.Identity()
	switch r.await(ctx, c, func(ran time.Duration) bool { return r.foreground(ctx, ran, was) }) {
	case left:
		return interrupted()
	case accepted:
		return r.acceptForeground()
	case timedOut:
		return r.hung(ctx, c, was)
	case exited:
		c.ended()
	}
	if result := c.exec.Result(); !result.OK() {
		r.look(ctx)
		v := commandFailed("command failed", result.String(), r.runningText(was), c.tail())
		if result.Unstartable() {
			v.fault = supervise.BadSetup
		}
		return v
	}
	return r.window(ctx, way, was)
}

// mark notes the moment before the command.
func (r *run) mark() *verdict {
	ticks, err := proc.NowTicks()
	if err != nil {
		v := abnormal(err.Error())
		return &v
	}
	r.began, r.beganTicks = time.Now(), ticks
	return nil
}

// moveStalePidFile moves a pid file out of the way that provably names no
// process of ours: many daemons refuse to start when there is one.
func (r *run) moveStalePidFile(was proc.Identity) *verdict {
	if bad := r.execute(was, proc.Identity{}); bad != nil {
		return bad
	}
	path := r.op.Spec.PidPath
	aside := path + ".stale" // one name, so that they do not pile up
	if err := proc.RenameBeside(path, filepath.Base(aside)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.warn("stale pid file was not moved: %v", err)
		return nil
	}
	r.evidence = append(r.evidence, "stale pid file moved to "+aside)
	return nil
}

// foreground reports whether the command is, or holds in its group, the
// process itself and may be left running. It is not asked before the start
// window is over.
func (r *run) foreground(ctx context.Context, ran time.Duration, was proc.Identity) bool {
	_, end := startWindow(&r.op.Spec)
	if ran < max(end, r.engine.cfg.Timing.ForegroundAfter) {
		return false
	}
	r.look(ctx)
	return r.inCommand(was)
}

// inCommand reports whether the process found belongs to the command's group
// and has lasted.
func (r *run) inCommand(was proc.Identity) bool {
	main := r.main()
	return !main.IsZero() && main != was && r.isComplete(was) && r.seen.Procs[0].PGID == r.leader.PID &&
		lasted(main, r.engine.cfg.Timing.Settle)
}

func (r *run) acceptForeground() verdict {
	if bad := r.claim(); bad != nil {
		return *bad
	}
	field := "start_cmd"
	if r.op.Action == agentproto.ActionRestart && r.op.Spec.RestartCmd != "" || r.op.Spec.StartCmd == "" {
		field = "restart_cmd"
	}
	r.warn("%s runs in foreground", field)
	return succeeded()
}

// hung deals with a command that did not end in time.
func (r *run) hung(ctx context.Context, c *command, was proc.Identity) verdict {
	r.look(ctx)
	if r.inCommand(was) {
		return r.acceptForeground()
	}
	r.endGroup(ctx, c)
	r.look(ctx)
	return commandFailed(r.timeoutText(), r.runningText(was), c.tail())
}

// runningText tells who reads of a failed command that the process runs all
// the same.
func (r *run) runningText(was proc.Identity) string {
	main := r.main()
	switch {
	case main.IsZero():
		return ""
	case main == was:
		return fmt.Sprintf("process still runs, pid %d", main.PID)
	}
	return fmt.Sprintf("process is running, pid %d, not registered", main.PID)
}

// lasted reports whether a process has existed for d.
func lasted(id proc.Identity, d time.Duration) bool {
	now, err := proc.NowTicks()
	age := time.Duration(now-min(now, id.Start)) * (time.Second / proc.TicksPerSecond) //nolint:gosec // a clock of the kernel: it would take 292 years
	return err == nil && age >= d
}
