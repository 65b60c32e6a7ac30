package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// gathered takes over which processes of several run, and watches them. That
// one is missing is told and not mended: the start command is for all of them,
// and would make a second one of each that runs.
func (a *actor) gathered(ids []proc.Identity) {
	if !procspec.HasInstances(&a.spec) || a.state.Desired != supervise.Up {
		ids = nil
	}
	if len(ids) == 0 && len(a.instances) == 0 {
		return
	}
	a.instances = ids
	a.engine.host.Claims.ClaimInstances(a.key, ids)
	a.watchMates()
	a.publish()
	a.trySave()
	wanted := a.spec.Instances
	switch {
	case len(ids) == 0, len(ids) >= wanted:
		a.missing = 0
	case wanted-len(ids) != a.missing:
		a.missing = wanted - len(ids)
		text := fmt.Sprintf("%d of %d instances run, pid %s; a restart brings all of them", len(ids), wanted, procop.PIDList(ids))
		a.log.WithField("pid", ids[0].PID).WithField("reason", text).Warn("process instances missing")
		a.announce(agentproto.Event{
			Kind: agentproto.EventInstancesMissing, PID: ids[0].PID, Message: text,
			Details: map[string]any{"running": len(ids), "wanted": wanted},
		})
	}
}

// mateDied says that one of several processes ended.
type mateDied struct{}

// watchMates has the end of each of several processes noticed at once, but for
// the main one's, which is watched anyway.
func (a *actor) watchMates() {
	for id, stop := range a.mates {
		if !slices.Contains(a.instances, id) {
			stop()
			delete(a.mates, id)
		}
	}
	for _, id := range a.instances {
		if _, watched := a.mates[id]; watched {
			continue
		}
		stop, err := a.engine.watcher.Add(id, func(proc.Death) { a.mailbox.remind(mateDied{}) })
		switch {
		case errors.Is(err, proc.ErrGone):
			a.mailbox.remind(mateDied{})
		case err != nil:
			a.log.WithError(err).Warn("instance watch failed, polling instead")
		default:
			a.mates[id] = stop
		}
	}
}

func (a *actor) stopWatchingMates() {
	for id, stop := range a.mates {
		stop()
		delete(a.mates, id)
	}
}

// recount looks for all instances again, unless something is just being done
// with them.
func (a *actor) recount(ctx context.Context) {
	if procspec.HasInstances(&a.spec) && a.state.Desired == supervise.Up && a.state.Work == supervise.Idle && a.state.Phase == supervise.Running {
		a.look(ctx, a.state.Gen)
	}
}

// incomplete reports whether an instance is missing.
func (a *actor) incomplete() bool {
	return procspec.HasInstances(&a.spec) && (len(a.instances) < a.spec.Instances || !allAlive(a.instances))
}

func allAlive(ids []proc.Identity) bool {
	return !slices.ContainsFunc(ids, func(id proc.Identity) bool { return !proc.Alive(id) })
}

// pids are those of all instances that live.
func pids(ids []proc.Identity) []int {
	var all []int
	for _, id := range ids {
		if proc.Alive(id) {
			all = append(all, id.PID)
		}
	}
	return all
}
