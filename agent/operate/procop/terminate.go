package procop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// Termination ends a process that exceeds a limit or is unhealthy, without an operation.
type Termination struct {
	shutdown

	how string // last attempt: stop command, kill command, SIGTERM or SIGKILL
}

// Termination returns the work of terminating the process of a spec.
func (h *Host) Termination(spec *agentproto.Spec, known Knowledge) *Termination {
	return &Termination{shutdown: shutdown{h.work(journal.Op{Action: agentproto.ActionKill, Spec: *spec}, known)}}
}

// TerminationEnd is the result of a termination.
type TerminationEnd struct {
	Outcome  supervise.Outcome
	Begun    bool                 // false = nothing was done to the process
	Gone     bool                 // the process has ended
	Exit     *agentproto.LastExit // how the process ended, if the caller of Run knows it; nil = unknown
	How      string               // last attempt: stop command, kill command, SIGTERM or SIGKILL
	Trouble  string               // reason why the process has not ended
	Warnings []string
}

// Text returns the result as a sentence for events.
func (t TerminationEnd) Text() string {
	if t.Gone {
		return Join(append([]string{"ended by " + t.How}, t.Warnings...)...)
	}
	return Join(append([]string{"it still runs: " + t.Trouble}, t.Warnings...)...)
}

// Run ends the process main if it is still the key's process, and no other process.
func (t *Termination) Run(ctx context.Context, main proc.Identity) TerminationEnd {
	c := t.terminate(ctx, main)
	return TerminationEnd{
		Outcome: t.outcome(c), Begun: t.acted, Gone: c.Class == supervise.Done, How: t.how, Trouble: c.Message, Warnings: t.warnings,
	}
}

// Failed returns the result of a termination that panicked.
func (t *Termination) Failed(cause string) TerminationEnd {
	outcome := supervise.Outcome{Class: supervise.Failed, Observation: supervise.Indeterminate}
	return TerminationEnd{Outcome: outcome, Begun: t.acted, Trouble: "internal error: " + cause}
}

// terminate ends the process by the stop command, then the kill command, then signals to its
// process tree.
func (t *Termination) terminate(ctx context.Context, main proc.Identity) Completion {
	if bad := t.ready(ctx); bad != nil {
		return *bad
	}
	if t.main() != main {
		return Refused(fmt.Sprintf("%s is no longer the process", main))
	}
	all := t.all()
	for _, command := range []struct {
		name, line string
		wait       time.Duration
	}{
		{"stop command", t.spec.StopCmd, procspec.Milliseconds(t.spec.StopCheckMS)},
		{"kill command", t.spec.KillCmd, t.host.Timing.KillWait},
	} {
		if command.line == "" {
			continue
		}
		t.how = command.name
		c := t.endBy(ctx, command.line, command.wait)
		if c.Class == supervise.Interrupted {
			return c
		}
		if !anyAlive(all) {
			return Succeeded()
		}
		t.warn("%s did not end it: %s", command.name, c.Message)
	}
	return t.endTrees(ctx, all)
}

// endTrees sends SIGTERM to the process trees of roots, and SIGKILL after the grace period.
// Descendants that outlive the main process are killed too, since their usage counts
// towards the limit. All instances are ended, since a missing one is not started while
// others run.
func (t *Termination) endTrees(ctx context.Context, roots []proc.Identity) Completion {
	t.acted, t.how = true, "SIGTERM"
	members := slices.Clone(roots)
	for _, root := range roots {
		tree, err := proc.SignalTree(root, t.treeScope(), syscall.SIGTERM)
		if err != nil {
			t.warn("%v", err)
		}
		members = append(members, identities(tree)...)
	}
	if !t.polls().awaitEnd(ctx, members, t.host.Timing.TerminateGrace) {
		return interrupted()
	}
	c := Succeeded()
	if anyAlive(members) {
		t.how = "SIGKILL"
		c = t.killMembers(ctx, roots, members)
	}
	t.search(ctx)
	return c
}

// treeScope selects the processes that are measured together. Other processes with the mark
// of the key do not count towards the limit.
func (t *Termination) treeScope() proc.KillScope {
	scope := t.killScope()
	scope.Key, scope.LedOnly = "", true
	return scope
}

func (t *Termination) killMembers(ctx context.Context, roots, members []proc.Identity) Completion {
	var failures []error
	for _, root := range roots {
		_, err := proc.KillTree(ctx, root, t.treeScope())
		failures = append(failures, err)
	}
	for _, id := range members {
		failures = append(failures, proc.Signal(id, syscall.SIGKILL))
	}
	if !t.polls().awaitEnd(ctx, members, t.host.Timing.KillWait) {
		return interrupted()
	}
	if !anyAlive(members) {
		return Succeeded()
	}
	text := "still running pid " + PIDList(members) + " after SIGKILL"
	if err := errors.Join(failures...); err != nil {
		return checkFailed(text, err.Error())
	}
	return checkFailed(text)
}
