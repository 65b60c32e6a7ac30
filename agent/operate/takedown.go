package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// takeDownEnd is what became of a process that had to go.
type takeDownEnd struct {
	begun    bool   // else it was left alone
	gone     bool   // it is not there any more
	how      string // what was done last
	trouble  string // why it is still there
	warnings []string
}

// text says how it ended, for people.
func (t takeDownEnd) text() string {
	if t.gone {
		return join(append([]string{"ended by " + t.how}, t.warnings...)...)
	}
	return join(append([]string{"it is still there: " + t.trouble}, t.warnings...)...)
}

// condemned asks for the end of a process.
type condemned struct {
	event supervise.Condemned
	ended func(takeDownEnd) // told exactly once; must not block
}

// takeDown asks for the end of exactly this process of a key, which is over a
// limit. Nothing happens while an operation is carried out, while the process is
// frozen or its state uncertain; whoever asks does so again as long as there is
// reason to. It does not wait.
func (e *Engine) takeDown(key string, main proc.Identity, ended func(takeDownEnd)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a, ok := e.actors[key]
	if !ok {
		ended(takeDownEnd{})
		return
	}
	a.mailbox.put(condemned{event: supervise.Condemned{Main: supervise.Identity(main), Why: supervise.OverLimit}, ended: ended})
}

// condemn lets the machine decide.
func (a *actor) condemn(ctx context.Context, msg condemned) {
	busy := a.state.Work != supervise.Idle
	defer func() {
		if !busy && a.state.Work == supervise.TakingDown {
			a.condemner = msg.ended
		} else {
			msg.ended(takeDownEnd{})
		}
	}()
	a.step(ctx, msg.event, nil)
}

// takeDown ends the process beside the goroutine.
func (a *actor) takeDown(ctx context.Context, effect supervise.TakeDown) {
	if !a.engine.drain.begin() {
		return
	}
	a.takingDown = effect.Why
	r := a.newRun(journal.Op{Action: agentproto.ActionKill, Spec: a.spec})
	r.auto = true
	a.engine.work.Go(func() { a.mailbox.put(a.takenDownBy(ctx, r, proc.Identity(effect.Main))) })
}

func (a *actor) takenDown(ctx context.Context, msg takenDown) {
	defer a.engine.drain.end()
	defer a.tellCondemner(msg.end)
	main := a.state.Main
	a.step(ctx, supervise.TakenDown{Outcome: msg.outcome}, nil)
	entry := a.log.WithField("pid", main.PID).WithField("why", string(a.takingDown))
	switch {
	case msg.outcome.Class == supervise.Interrupted:
	case !msg.end.gone:
		entry.WithField("reason", msg.end.trouble).Error("process not terminated")
	default:
		entry.WithField("how", msg.end.how).Warn("process terminated")
	}
	for _, warning := range msg.end.warnings {
		entry.WithField("reason", warning).Warn("process termination incomplete")
	}
}

func (a *actor) tellCondemner(end takeDownEnd) {
	if tell := a.condemner; tell != nil {
		a.condemner = nil
		tell(end)
	}
}

// takenDownBy ends the process and no other.
func (a *actor) takenDownBy(ctx context.Context, r *run, main proc.Identity) (msg takenDown) {
	defer a.engine.rescue(a.key, "take-down", func(cause string) {
		msg = takenDown{
			outcome: supervise.Outcome{Class: supervise.Failed, Sight: supervise.Doubt},
			end:     takeDownEnd{begun: r.acted, trouble: "internal error: " + cause},
		}
		a.fault(cause)
	})
	v, how := r.endByForce(ctx, main)
	return takenDown{outcome: r.outcome(v), end: takeDownEnd{
		begun: r.acted, gone: v.class == supervise.Done, how: how, trouble: v.message, warnings: r.warnings,
	}}
}

// endByForce ends the process as a stop would, then as a kill would, then by
// signals to all that belongs to it. It says as well what was done last.
func (r *run) endByForce(ctx context.Context, main proc.Identity) (v verdict, how string) {
	if bad := r.ready(ctx); bad != nil {
		return *bad, ""
	}
	if r.main() != main {
		return refused(fmt.Sprintf("%s is not the process any more", main)), ""
	}
	spec, all := &r.op.Spec, r.all()
	for _, command := range []struct {
		how, line string
		wait      time.Duration
	}{
		{"stop command", spec.StopCmd, ms(spec.StopCheckMS)},
		{"kill command", spec.KillCmd, r.engine.cfg.Timing.KillWait},
	} {
		if command.line == "" {
			continue
		}
		v := r.endBy(ctx, command.line, command.wait)
		if v.class == supervise.Interrupted {
			return v, command.how
		}
		if !anyAlive(all) {
			return succeeded(), command.how
		}
		r.warn("%s did not end it: %s", command.how, v.message)
	}
	return r.endTrees(ctx, all)
}

// endTrees asks whole trees to end, and kills them when their time is up.
// Workers that outlive the main process are ended as well: they use what the
// limit is about. So are all of several instances: nothing starts a missing one
// while others live.
func (r *run) endTrees(ctx context.Context, roots []proc.Identity) (v verdict, how string) {
	r.acted = true
	members := slices.Clone(roots)
	for _, root := range roots {
		tree, err := proc.SignalTree(root, r.treeScope(), syscall.SIGTERM)
		if err != nil {
			r.warn("%v", err)
		}
		members = append(members, identities(tree)...)
	}
	if !r.awaitEnd(ctx, members) {
		return interrupted(), "SIGTERM"
	}
	if how = "SIGTERM"; anyAlive(members) {
		how = "SIGKILL"
		v = r.killMembers(ctx, roots, members)
	} else {
		v = succeeded()
	}
	r.look(ctx)
	return v, how
}

// treeScope are the processes that are measured together, and no others: what
// carries the mark of the key besides has nothing to do with the limit.
func (r *run) treeScope() proc.KillScope {
	scope := r.killScope()
	scope.Key, scope.LedOnly = "", true
	return scope
}

// awaitEnd waits until all are gone or their time is up; it reports false when
// ctx ended first.
func (r *run) awaitEnd(ctx context.Context, members []proc.Identity) bool {
	polls := r.stopPolls()
	for deadline := time.Now().Add(r.engine.cfg.Timing.TakeDownGrace); anyAlive(members) && time.Now().Before(deadline); {
		if !polls.pause(ctx) {
			return false
		}
	}
	return true
}

func (r *run) killMembers(ctx context.Context, roots, members []proc.Identity) verdict {
	var err error
	for _, root := range roots {
		_, failed := proc.KillTree(ctx, root, r.treeScope())
		err = errors.Join(err, failed)
	}
	for _, id := range members {
		err = errors.Join(err, proc.Signal(id, syscall.SIGKILL))
	}
	polls := r.stopPolls()
	for deadline := time.Now().Add(r.engine.cfg.Timing.KillWait); anyAlive(members) && time.Now().Before(deadline); {
		if !polls.pause(ctx) {
			return interrupted()
		}
	}
	if !anyAlive(members) {
		return succeeded()
	}
	if err == nil {
		return checkFailed("still running pid " + pidList(members) + " after SIGKILL")
	}
	return checkFailed("still running pid "+pidList(members)+" after SIGKILL", err.Error())
}
