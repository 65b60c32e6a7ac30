package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// several reports whether one start of a process that lives on makes more than one process.
func several(s *agentproto.Spec) bool { return lives(s) && s.Instances > 1 }

// instancesOf is how many processes to look for.
func instancesOf(s *agentproto.Spec) int {
	if several(s) {
		return s.Instances
	}
	return 1
}

// instances are all processes of a program that has several, as the latest
// look found them; nil where there is one.
func (r *run) instances() []proc.Identity {
	if !several(&r.op.Spec) || r.main().IsZero() {
		return nil
	}
	return identities(r.seen.Procs)
}

// all are the processes that a stop or a take-down ends: the main one, and the
// others of a program that has several.
func (r *run) all() []proc.Identity {
	if several(&r.op.Spec) {
		return r.instances()
	}
	return []proc.Identity{r.main()}
}

// isComplete reports whether as many processes run as the spec wants. Those that
// ran before was had to be replaced do not count.
func (r *run) isComplete(was proc.Identity) bool {
	if !several(&r.op.Spec) {
		return true
	}
	n := 0
	for _, id := range r.instances() {
		if was.IsZero() || id.Start >= r.beganTicks {
			n++
		}
	}
	return n >= r.op.Spec.Instances
}

// count says how many of several processes run: "2/3"; "" where there is one.
func (r *run) count() string {
	if !several(&r.op.Spec) {
		return ""
	}
	return fmt.Sprintf("%d/%d", len(r.instances()), r.op.Spec.Instances)
}

// gathered takes over which processes of several run, and watches them. That
// one is missing is told and not mended: the start command is for all of them,
// and would make a second one of each that runs.
func (a *actor) gathered(ids []proc.Identity) {
	if !several(&a.spec) || a.state.Desired != supervise.Up {
		ids = nil
	}
	if len(ids) == 0 && len(a.instances) == 0 {
		return
	}
	a.instances = ids
	a.engine.owners.keepMates(a.key, ids)
	a.watchMates()
	a.publish()
	a.trySave()
	wanted := a.spec.Instances
	switch {
	case len(ids) == 0, len(ids) >= wanted:
		a.missing = 0
	case wanted-len(ids) != a.missing:
		a.missing = wanted - len(ids)
		text := fmt.Sprintf("%d of %d instances run, pid %s; a restart brings all of them", len(ids), wanted, pidList(ids))
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
	if several(&a.spec) && a.state.Desired == supervise.Up && a.state.Work == supervise.Idle && a.state.Phase == supervise.Running {
		a.look(ctx, a.state.Gen)
	}
}

// incomplete reports whether an instance is missing.
func (a *actor) incomplete() bool {
	return several(&a.spec) && (len(a.instances) < a.spec.Instances || !allAlive(a.instances))
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

// keepMates notes that these processes are the key's, beside its main one.
func (o *owners) keepMates(key string, ids []proc.Identity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range o.mates[key] {
		delete(o.byMate, id)
		delete(o.byMatePID, id.PID)
	}
	delete(o.mates, key)
	if len(ids) == 0 {
		return
	}
	o.mates[key] = ids
	for _, id := range ids {
		o.byMate[id], o.byMatePID[id.PID] = key, key
	}
}
