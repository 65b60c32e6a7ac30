package dispatcher

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/internal/undo"
)

// addNewerTasks names in the plan, for each process on each host, the newest task after
// a task that operated it. It searches as many tasks as one page of a list.
func (a *api) addNewerTasks(ctx context.Context, p *v1.Plan, task *procfleet.Task) error {
	newest := map[undo.ProcessAt]procfleet.TaskID{}
	for i := range p.Operations {
		for _, h := range p.Operations[i].Hosts {
			newest[plannedAt(&p.Operations[i], h.Host)] = ""
		}
	}
	complete, err := undo.FindLater(ctx, a.store, task, scanPages*scanPage, newest)
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

func plannedAt(o *v1.PlannedOperation, host procfleet.Host) undo.ProcessAt {
	if o.Process == nil { // not registered, so the retry does nothing there
		return undo.ProcessAt{Host: host}
	}
	return undo.ProcessAt{Host: host, Key: o.Process.Key()}
}
