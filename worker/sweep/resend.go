package sweep

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
)

// isLost reports whether the result of a delivered item counts as lost: its action must
// have ended by now, or its agent was first seen after the task was created, because the
// agent may have been reinstalled.
func isLost(began, now time.Time, item *procfleet.ItemResult, agent *taskstore.Presence) bool {
	if agent.Conflict {
		return false // another instance than the one with the result may reply
	}
	return now.After(began.Add(item.Spec.Budget(item.Item.Action))) || agent.Since.After(began)
}

const (
	resendPage = 1000 // items per page
	// resendPages bounds the pages of one repair; the next repair continues after them.
	resendPages = 10
)

// complete returns the small tasks of a round without lost results, which need no
// repair. It reads the delivered items of all of them together. Tasks that it omits, or
// that cannot be read, are checked by a repair each.
func (s *Sweeper) complete(ctx context.Context, tasks []procfleet.Task) map[procfleet.TaskID]bool {
	now := s.cfg.Clock.Now()
	var small []procfleet.Task
	items := 0
	for i := range tasks {
		t := &tasks[i]
		if t.Chunks == 1 && t.Rollout == nil && t.Dispatched && !t.State.Done() && items+t.Items <= resendPage && s.needsResults(t, ageOf(t, now)) {
			small, items = append(small, *t), items+t.Items
		}
	}
	if len(small) == 0 {
		return nil
	}
	delivered, err := s.cfg.Store.DeliveredItems(ctx, small)
	if err != nil {
		return nil
	}
	agents, err := s.agentsOf(ctx, delivered...)
	if err != nil {
		return nil
	}
	complete := make(map[procfleet.TaskID]bool, len(small))
	for i := range small {
		complete[small[i].ID] = !slices.ContainsFunc(delivered[i], func(item procfleet.ItemResult) bool {
			return isLost(small[i].CreatedAt, now, &item, agents[item.Item.Target.Host])
		})
	}
	return complete
}

// requestResends requests agents to resend the results of delivered items, all or only
// the lost ones, and fails the items that their agent does not know.
func (s *Sweeper) requestResends(ctx context.Context, r *repair, all bool) error {
	for range resendPages {
		page, next, err := s.cfg.Store.Results(ctx, r.task.ID, taskstore.ResultQuery{
			State: procfleet.StateDelivered, Cursor: r.cursor, Limit: resendPage,
		})
		if err != nil {
			r.cursor = ""
			return fmt.Errorf("list delivered items: %w", err)
		}
		if err := s.resendOf(ctx, r, page, all); err != nil {
			return err
		}
		if r.cursor = next; next == "" {
			break
		}
	}
	return nil
}

func (s *Sweeper) resendOf(ctx context.Context, r *repair, page []procfleet.ItemResult, all bool) error {
	agents, err := s.agentsOf(ctx, page)
	if err != nil {
		return err
	}
	task := &r.task
	hosts := byHost(slices.DeleteFunc(page, func(item procfleet.ItemResult) bool {
		return !all && !isLost(r.began(item.Index), r.now, &item, agents[item.Item.Target.Host])
	}))
	if len(hosts) == 0 {
		return nil
	}
	ctx, span := s.traceSweep(ctx, task, metrics.SweepResend)
	defer span.End()
	s.cfg.Metrics.SweepActions.Add(len(hosts), metrics.SweepResend)
	var results []procfleet.Result
	for _, reply := range s.sendResends(ctx, task, hosts) {
		h := hosts[reply.host]
		presence := agents[h.host]
		if len(reply.unknown) == 0 || presence.Conflict || !announced(presence, reply.agent) {
			continue // the agent that replied may differ from the agent that accepted the items
		}
		s.cfg.Log.WithFields(logrus.Fields{"task": task.ID, "host": h.host.String(), "items": len(reply.unknown)}).
			Warn("delivered items unknown to the agent")
		for _, item := range reply.unknown {
			results = append(results, agentlink.ServerResult(item, procfleet.CodeFailed, procfleet.ReasonCommandFailed,
				lostMessage(h.host, presence, r.began(item)), s.cfg.Clock.Now()))
		}
	}
	if len(results) == 0 {
		return nil
	}
	_, err = s.cfg.Recorder.Record(ctx, task.ID, results)
	return err
}

func lostMessage(host procfleet.Host, presence *taskstore.Presence, began time.Time) string {
	cause := "lost the command after accepting it"
	if presence.Since.After(began) {
		cause = "was reinstalled after accepting the command"
	}
	return fmt.Sprintf("agent of host %s %s, outcome unknown: query the status, then repeat if needed", host, cause)
}
