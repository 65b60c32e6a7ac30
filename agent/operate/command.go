package operate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// ending is why waiting for a command is over.
type ending int

const (
	exited   ending = iota
	timedOut        // it ran for op_timeout
	accepted        // it is the process itself and goes on running
	left            // ctx ended; the command is left alone
)

// command is a control command under way.
type command struct {
	exec    *proc.Execution // nil until it is spawned
	output  string          // file
	ended   func()          // gives its slot back; what follows the command, a start window above all, needs none
	over    func()          // does so, and makes its group one like any other
	release func()          // gives back all that the command took; to be called once nobody asks for its output any more
}

// spawn runs a command line as soon as there is room for one more command.
// was is the process that ran before.
func (r *run) spawn(ctx context.Context, line string, was proc.Identity) (*command, *verdict) {
	if !r.engine.commandSlots.take(ctx) {
		v := interrupted()
		return nil, &v
	}
	c, handedOver := r.newCommand(), false
	defer func() {
		if !handedOver {
			c.release()
		}
	}()
	if r.late() { // after waiting for the slot
		v := expired(&r.op)
		return nil, &v
	}
	if bad := r.execute(was, proc.Identity{}); bad != nil {
		return nil, bad
	}
	r.acted = true
	r.engine.owners.mark(r.engine.markOf(&r.op.Spec), &r.op.Spec)
	r.engine.cfg.Crash(CrashBeforeExec)
	exec, err := r.engine.runner.Start(ctx, r.commandLine(line, c.output))
	if err != nil {
		v := notRun(err)
		if v.fault == supervise.NoRoom {
			r.engine.pauseStarts(v.message)
		}
		if ctx.Err() != nil {
			v = interrupted()
		}
		return nil, &v
	}
	c.exec, r.command = exec, c
	r.engine.groups.add(exec.Identity().PID)
	r.engine.cfg.Crash(CrashAfterSpawn)
	if bad := r.execute(was, exec.Identity()); bad != nil {
		// It runs already, and that it may run is durable: an agent that
		// finds the operation interrupted only knows less about it.
		r.warn("the command's pid was not recorded: %s", bad.message)
	}
	handedOver = true
	return c, nil
}

// newCommand is a command that has its slot and is not spawned yet.
func (r *run) newCommand() *command {
	c := &command{output: r.engine.outputs.path(r.engine.markOf(&r.op.Spec)), ended: sync.OnceFunc(r.engine.commandSlots.give)}
	c.over = sync.OnceFunc(func() {
		if c.exec != nil {
			r.engine.groups.remove(c.exec.Identity().PID)
		}
		c.ended()
	})
	c.release = sync.OnceFunc(func() {
		c.over()
		r.engine.outputs.keep(c.output)
	})
	return c
}

func (r *run) commandLine(line, output string) proc.Command {
	spec := &r.op.Spec
	return proc.Command{
		Shell: proc.Shell(spec.Shell), Line: line, Dir: spec.SetupPath, Account: accountOf(spec), Env: spec.Env,
		LoginProfile: !spec.NoProfile, OutputPath: output, Key: r.engine.markOf(spec), Op: opMark(r),
		Contained: r.ending,
	}
}

func opMark(r *run) string {
	if r.auto {
		return "auto"
	}
	return fmt.Sprintf("%s/%d", r.op.Task, r.op.Item)
}

// await waits until the command has ended, at most the operation's timeout.
// accept, if not nil, is asked at every poll whether to wait no longer though
// the command runs. The caller ends a command that timed out (see endGroup).
func (r *run) await(ctx context.Context, c *command, accept func(ran time.Duration) bool) ending {
	started := time.Now()
	timeout := time.NewTimer(opTimeout(&r.op.Spec))
	defer timeout.Stop()
	poll := time.NewTicker(r.engine.cfg.Timing.WindowPoll)
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

// endGroup ends a command that hangs, sparing the process itself.
func (r *run) endGroup(ctx context.Context, c *command) {
	var keep []proc.Identity
	if main := r.main(); !main.IsZero() {
		keep = append(keep, main)
	}
	if err := proc.KillGroup(ctx, c.exec.Identity(), r.engine.cfg.Timing.KillGrace, keep...); err != nil {
		r.warn("hung command: %v", err)
	}
	// Its end was just waited for; the rest is reaping, unless the leader is
	// the process that was spared or cannot be killed.
	select {
	case <-c.exec.Done():
	case <-time.After(r.engine.cfg.Timing.Settle):
	case <-ctx.Done():
	}
}

// complete runs a command to its end and returns how it failed, "" for
// success. bad is set when it did not run at all. The caller calls done when it
// is done with the command's output.
func (r *run) complete(ctx context.Context, line string, was proc.Identity) (trouble string, done func(), bad *verdict) {
	c, bad := r.spawn(ctx, line, was)
	if bad != nil {
		return "", nil, bad
	}
	if trouble, bad = r.finish(ctx, c); bad != nil {
		c.release()
		return "", nil, bad
	}
	c.over()
	return trouble, c.release, nil
}

func (r *run) finish(ctx context.Context, c *command) (trouble string, bad *verdict) {
	switch r.await(ctx, c, nil) {
	case left, accepted:
		v := interrupted()
		return "", &v
	case timedOut:
		r.look(ctx)
		r.endGroup(ctx, c)
		return join(r.timeoutText(), c.tail()), nil
	case exited:
	}
	if result := c.exec.Result(); !result.OK() {
		return join("command failed", result.String(), c.tail()), nil
	}
	return "", nil
}

func (r *run) timeoutText() string {
	return fmt.Sprintf("command timed out; timeout=%s", opTimeout(&r.op.Spec))
}

// tail is what the latest command has written by now, for messages: a script in
// background says only after its shell has ended what keeps it from its work.
func (r *run) tail() string {
	if r.command == nil {
		return ""
	}
	return r.command.tail()
}

// tail is the end of the command's output, for messages.
func (c *command) tail() string {
	select {
	case <-c.exec.Done():
	default:
		return ""
	}
	if out := c.exec.Output(); out != "" {
		return "output tail: " + out
	}
	return ""
}

// slots bounds how much goes on at a time.
type slots chan struct{}

// take waits for a free slot; it reports false when ctx ended first.
func (s slots) take(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case s <- struct{}{}:
		return true
	}
}

func (s slots) give() { <-s }

// groups are the process groups of the commands under way, none of whose
// members is a managed process.
type groups struct {
	mu    sync.Mutex
	pgids map[int]bool
}

func (g *groups) add(pgid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pgids[pgid] = true
}

func (g *groups) remove(pgid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pgids, pgid)
}

func (g *groups) has(pgid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pgids[pgid]
}

// excluding rejects members of every group but own: a command that brings a
// process up may be the process.
func (g *groups) excluding(own int) func(proc.Process) bool {
	return func(p proc.Process) bool { return p.PGID != own && g.has(p.PGID) }
}
