package dispatcher

import (
	"context"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/taskstore"
)

// processAt is a process on a host.
type processAt struct {
	host    procfleet.Host
	process string // its key
}

// addNewerTasks names in the plan, for each process on each host, the newest task after
// than that operated it. It searches as many tasks as one page of a list.
func (a *api) addNewerTasks(ctx context.Context, p *v1.Plan, than procfleet.Number) error {
	newest := map[processAt]procfleet.TaskID{}
	for i := range p.Operations {
		for _, h := range p.Operations[i].Hosts {
			newest[plannedAt(&p.Operations[i], h.Host)] = ""
		}
	}
	complete, err := a.findNewest(ctx, than, newest)
	if err != nil {
		return err
	}
	if !complete {
		p.Problems = append(p.Problems, v1.PlanProblem{
			Reason: v1.NotSearched, Message: fmt.Sprintf("only the newest %d tasks were searched for newer operations", scanPages*scanPage),
		})
	}
	for i := range p.Operations {
		o, overtaken := &p.Operations[i], 0
		for j := range o.Hosts {
			if o.Hosts[j].NewerTask = newest[plannedAt(o, o.Hosts[j].Host)]; o.Hosts[j].NewerTask != "" {
				overtaken++
			}
		}
		if overtaken > 0 {
			p.Problems = append(p.Problems, v1.PlanProblem{
				Index: o.Index, Reason: v1.NewerOperation, Name: o.Name,
				Message: fmt.Sprintf("later tasks operated it on %d of %d hosts: the retry may undo what they did", overtaken, len(o.Hosts)),
			})
		}
	}
	return nil
}

func plannedAt(o *v1.PlannedOperation, host procfleet.Host) processAt {
	if o.Process == nil { // not registered, so the retry does nothing there
		return processAt{host: host}
	}
	return processAt{host, o.Process.Key()}
}

// findNewest sets the task of each place in newest. It reports whether it searched all tasks
// after than.
func (a *api) findNewest(ctx context.Context, than procfleet.Number, newest map[processAt]procfleet.TaskID) (complete bool, err error) {
	query := taskstore.TaskQuery{Limit: scanPage}
	for range scanPages {
		tasks, err := a.store.Tasks(ctx, query)
		if err != nil {
			return false, err
		}
		for i := range tasks {
			t := &tasks[i]
			if t.Number <= than {
				return true, nil
			}
			if t.State == procfleet.TaskRejected || !slices.ContainsFunc(t.Actions, procfleet.Action.Mutating) {
				continue
			}
			for it, err := range a.itemsOf(ctx, t) {
				if err != nil {
					return false, err
				}
				at := processAt{it.Item.Target.Host, it.Spec.Key()}
				if found, wanted := newest[at]; wanted && found == "" && it.Item.Action.Mutating() {
					newest[at] = t.ID
				}
			}
		}
		if len(tasks) < query.Limit {
			return true, nil
		}
		query.Before = tasks[len(tasks)-1].Number
	}
	return false, nil
}
