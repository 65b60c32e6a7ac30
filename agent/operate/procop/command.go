package procop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// waitEnd is the reason why waiting for a command ended.
type waitEnd int

const (
	exited   waitEnd = iota
	timedOut         // the command exceeded op_timeout
	accepted         // the command is the process itself and continues to run
	left             // ctx ended; the command continues to run
)

// command is a control command in progress.
type command struct {
	exec   *proc.Execution // nil before the command is spawned
	began  time.Time       // time of the spawn
	output string          // path of the output file

	leaveGroup func() // removes the process group of the command from Host.Groups
	freeSlot   func() // frees the slot early: the start window after the command needs none
	finish     func() // calls leaveGroup and freeSlot
	release    func() // calls finish and discards the output; must be called when the output is no longer needed
}

// spawn runs a command line once the command limit allows it. was is the process that ran
// before. ready is called after all checks, directly before the command is spawned; nil =
// nothing is called.
func (w *work) spawn(ctx context.Context, line string, was proc.Identity, ready func()) (*command, *Completion) {
	h := w.host
	if !h.Commands.Acquire(ctx) {
		return nil, new(interrupted())
	}
	c, spawned := w.newCommand(), false
	defer func() {
		if !spawned {
			c.release()
		}
	}()
	if w.late() { // again, since waiting for the slot may have taken long
		return nil, new(Expired(&w.op))
	}
	if bad := w.execute(was, proc.Identity{}); bad != nil {
		return nil, bad
	}
	w.acted = true
	h.Claims.AddMark(h.Mark(w.spec), w.spec)
	h.Engine.Crash(CrashBeforeExec)
	run := w.commandLine(line, c.output)
	run.Ready = ready
	exec, err := h.Runner.Start(ctx, run)
	if err != nil {
		failed := notRun(err)
		if failed.fault == supervise.HostExhausted {
			h.Engine.DelayStarts(failed.Message)
		}
		if ctx.Err() != nil {
			failed = interrupted()
		}
		return nil, &failed
	}
	c.exec, c.began, w.command = exec, time.Now(), c
	c.leaveGroup = h.Groups.Add(exec.Identity().PID)
	h.Engine.Crash(CrashAfterSpawn)
	if bad := w.execute(was, exec.Identity()); bad != nil {
		// The command runs, and it is persisted that it may run: without the pid, a
		// recovering agent only knows less about it.
		w.warn("the command's pid was not recorded: %s", bad.Message)
	}
	spawned = true
	return c, nil
}

// newCommand returns a command that has a slot and has not been spawned.
func (w *work) newCommand() *command {
	h := w.host
	c := &command{freeSlot: sync.OnceFunc(h.Commands.Release), leaveGroup: func() {}}
	if w.starting {
		c.output = h.Outputs.ProcessPath(w.spec.Key)
	} else {
		c.output = h.Outputs.Path(h.Mark(w.spec))
	}
	c.finish = sync.OnceFunc(func() {
		c.leaveGroup()
		c.freeSlot()
	})
	c.release = sync.OnceFunc(func() {
		c.finish()
		h.Outputs.Discard(c.output)
	})
	return c
}

func (w *work) commandLine(line, output string) proc.Command {
	spec, op := w.spec, "auto"
	if w.op.ID != (journal.ID{}) {
		op = fmt.Sprintf("%s/%d", w.op.Task, w.op.Item)
	}
	return proc.Command{
		Shell: proc.Shell(spec.Shell), Line: line, Dir: spec.SetupPath, Account: procspec.Account(spec), Env: spec.Env,
		LoginProfile: !spec.NoProfile, OutputPath: output, Key: w.host.Mark(spec), Op: op, Contained: w.ending,
	}
}

// late reports whether the operation is too late to begin. An operation that has acted
// continues: a half-finished operation is worse than a late one.
func (w *work) late() bool { return !w.acted && w.host.Late(&w.op) }

// before is the content of [journal.Exec].Before, for the agent process that recovers the
// operation.
type before struct {
	Main  proc.Identity `json:"main"`
	Ticks uint64        `json:"ticks,omitempty"`
}

// execute persists that the work acts now. was is the process that runs; command is the
// spawned command, zero before it is spawned.
func (w *work) execute(was, command proc.Identity) *Completion {
	if w.record == nil {
		return nil
	}
	exec := journal.Exec{BootID: w.host.BootID, At: time.Now().UTC(), PID: command.PID, Start: command.Start}
	var err error
	if exec.Before, err = json.Marshal(before{Main: was, Ticks: w.beganTicks}); err == nil {
		err = w.record(exec)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return new(interrupted())
	}
	return new(Abnormal(err.Error()))
}

// await waits until the command has ended, at most for limit. It calls accept, if not nil, at
// each poll, and stops waiting if accept returns true. The caller kills a command that timed
// out (see endGroup).
func (w *work) await(ctx context.Context, c *command, limit time.Duration, accept func(ran time.Duration) bool) waitEnd {
	started := time.Now()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	poll := time.NewTicker(w.host.Timing.WindowPoll)
	defer poll.Stop()
	for {
		select {
		case <-c.exec.Done():
			return exited
		case <-ctx.Done():
			return left
		case <-timeout.C:
			return timedOut
		case <-poll.C:
			if accept != nil && accept(time.Since(started)) {
				return accepted
			}
		}
	}
}

// endGroup kills the process group of a command that timed out, except for the main process.
func (w *work) endGroup(ctx context.Context, c *command) {
	var keep []proc.Identity
	if main := w.main(); !main.IsZero() {
		keep = append(keep, main)
	}
	if err := proc.KillGroup(ctx, c.exec.Identity(), w.host.Timing.KillGrace, keep...); err != nil {
		w.warn("hung command: %v", err)
	}
	// KillGroup has waited until the group is gone. Only reaping remains, unless the leader
	// was spared or cannot be killed.
	select {
	case <-c.exec.Done():
	case <-time.After(w.host.Timing.Settle):
	case <-ctx.Done():
	}
}

// runCommand runs a command to its end, at most for limit, and returns how the command failed,
// "" for success. bad is set if the command did not run at all. The caller calls release when
// it no longer needs the command's output.
func (w *work) runCommand(ctx context.Context, line string, limit time.Duration, was proc.Identity) (trouble string, release func(), bad *Completion) {
	c, bad := w.spawn(ctx, line, was, nil)
	if bad != nil {
		return "", nil, bad
	}
	switch w.await(ctx, c, limit, nil) {
	case left, accepted:
		c.release()
		return "", nil, new(interrupted())
	case timedOut:
		text := c.timeoutText(limit)
		w.search(ctx)
		w.endGroup(ctx, c)
		trouble = Join(text, w.tail())
	case exited:
		if result := c.exec.Result(); !result.OK() {
			trouble = Join("command failed", result.String(), w.tail())
		}
	}
	c.finish()
	return trouble, c.release, nil
}

// timeoutText describes the timeout of a command that still runs.
func (c *command) timeoutText(limit time.Duration) string {
	text := fmt.Sprintf("command timed out; timeout=%s", limit)
	if busy := proc.Hung(c.exec.Identity()); busy != "" {
		text += " in " + busy
	}
	return text
}

func (w *work) warn(format string, args ...any) {
	w.warnings = append(w.warnings, fmt.Sprintf(format, args...))
}

// tail returns the end of the latest command's output up to now, for messages: a background
// script may write the cause of a failure after its shell has ended. It returns "" while the
// command runs.
func (w *work) tail() string {
	if w.command == nil {
		return ""
	}
	select {
	case <-w.command.exec.Done():
	default:
		return ""
	}
	if out := w.command.exec.Output(); out != "" {
		return "output tail: " + out
	}
	return ""
}
