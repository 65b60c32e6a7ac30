package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Settle ends the load: it stops submissions, waits until every task is done, and
// reads all tasks once more. Call it after all faults have ended. It returns the
// violated rules; an error means that the check was not possible. It blocks for at
// most about three times the sum of [Config.Timeout] and [Config.Patience].
func (l *Load) Settle(ctx context.Context) ([]Violation, error) {
	defer l.Stop()
	ctx, cancel := context.WithTimeout(ctx, 3*(l.cfg.Timeout+l.cfg.Patience)) // each wait below may last for the patience
	defer cancel()
	l.stop()
	l.cfg.Log("settling: waiting for submissions in progress")
	giveUp := time.AfterFunc(l.cfg.Patience, l.abandon)
	l.submitters.Wait()
	l.controls.Wait()
	giveUp.Stop()
	if _, err := l.resolveUnknown(ctx); err != nil {
		return nil, fmt.Errorf("list all tasks: %w", err)
	}
	l.cfg.Log("settling: waiting for the ends of tasks")
	l.untilDone(ctx)
	l.stopPolls()
	l.pollers.Wait()
	l.cfg.Log("settling: reading all tasks once more")
	if l.calls != nil {
		defer l.unfollow()
	}
	return l.judge(ctx)
}

// untilDone waits until a poll has shown every task as done, or the patience ends.
func (l *Load) untilDone(ctx context.Context) {
	deadline := time.Now().Add(l.cfg.Timeout + l.cfg.Patience)
	for time.Now().Before(deadline) {
		if open, _ := l.log.share(0, 1); len(open) == 0 {
			return
		}
		if rest(ctx, l.cfg.Between) != nil {
			return
		}
	}
}

// judge reads and checks all tasks. It repeats this for violations that may end by
// themselves, such as a late result, until they have ended or the patience ends.
func (l *Load) judge(ctx context.Context) ([]Violation, error) {
	tasks := l.log.all()
	deadline := time.Now().Add(l.cfg.Patience)
	for round := 0; ; round++ {
		for _, id := range tasks {
			if err := l.readLast(ctx, id); err != nil {
				l.cfg.Log("final read of task %s failed: %v", id, err)
			}
		}
		if err := l.queryFinalStates(ctx, round); err != nil {
			l.cfg.Log("final states of processes not read: %v", err)
		}
		late, err := l.resolveUnknown(ctx)
		if err != nil {
			return nil, fmt.Errorf("list all tasks: %w", err)
		}
		if err := l.readEvents(ctx); err != nil {
			return nil, err
		}
		found, err := l.violations()
		if err != nil {
			return nil, err
		}
		tasks = slices.Concat(recovering(found), late)
		if len(found) == 0 || !slices.ContainsFunc(found, mayRecover) || time.Now().After(deadline) {
			return found, nil
		}
		if err := rest(ctx, time.Second); err != nil {
			return found, nil //nolint:nilerr // the patience ended, and found has the violations
		}
	}
}

// mayRecover reports whether a violation may end by itself.
func mayRecover(v Violation) bool {
	switch v.Rule {
	case RuleEnds, RuleNotLost, RuleState, RuleResult, RuleNotified, RuleDelivered:
		return true
	default:
		return false
	}
}

// recovering returns the tasks of violations that may end by themselves, without
// duplicates.
func recovering(found []Violation) []procfleet.TaskID {
	var tasks []procfleet.TaskID
	for _, v := range found {
		if mayRecover(v) && v.Task != "" && !slices.Contains(tasks, v.Task) {
			tasks = append(tasks, v.Task)
		}
	}
	return tasks
}

// violations checks the current history.
func (l *Load) violations() (found []Violation, err error) {
	marks, err := l.cfg.Marks()
	if err != nil {
		return nil, fmt.Errorf("read the marks: %w", err)
	}
	deaths, wipes := l.cfg.Deaths(), l.cfg.Wipes()
	l.log.edit(func(h *History) {
		h.Deaths, h.Wipes = deaths, wipes
		if l.cfg.Unexplained {
			found = h.judge(marks).found
		} else {
			found = h.Violations(marks)
		}
	})
	return found, nil
}

// History returns the history. No work may be in progress.
func (l *Load) History() *History { return &l.log.h }

// readLast polls the counters of a task from every dispatcher, and its results.
func (l *Load) readLast(ctx context.Context, id procfleet.TaskID) error {
	for i := range l.dispatchers {
		d := &l.dispatchers[i]
		if err := l.persist(ctx, func() error { return l.pollResults(ctx, d, id, true) }); err != nil {
			return err
		}
		if err := l.persist(ctx, func() error { return l.pollTask(ctx, d, id) }); err != nil {
			return err
		}
	}
	return nil
}

// persist retries a call for a while: all faults have ended, but dispatchers may be
// slow.
func (l *Load) persist(ctx context.Context, try func() error) error {
	const patience = 30 * time.Second
	deadline := time.Now().Add(patience)
	for {
		err := try()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if ended := rest(ctx, l.cfg.Between); ended != nil {
			return err
		}
	}
}

// list reads the list of all tasks.
func (l *Load) list(ctx context.Context) error {
	var tasks []client.Task
	err := l.persist(ctx, func() error {
		tasks = nil
		for t, err := range l.dispatchers[0].client.Tasks(ctx, client.TaskQuery{}) {
			if err != nil {
				return err
			}
			tasks = append(tasks, t)
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.log.edit(func(h *History) { h.Tasks = tasks })
	return nil
}

// queryFinalStates queries the status of all resident processes.
func (l *Load) queryFinalStates(ctx context.Context, round int) error {
	s := &Submission{Key: fmt.Sprintf("%s-stand-%d", l.cfg.Run, round)}
	for n := range residents {
		s.Operations = append(s.Operations, Operation{Action: procfleet.ActionStatus, Process: resident(n), Stays: true, Hosts: l.cfg.Hosts})
	}
	l.log.submitted(s, l.cfg.Timeout)
	id, err := l.clients[0].Submit(ctx, l.request(s))
	l.log.setOutcome(s, id, err)
	if err != nil {
		return err
	}
	if _, err := l.clients[0].Wait(ctx, id); err != nil {
		return err
	}
	if err := l.readLast(ctx, id); err != nil {
		return err
	}
	l.log.edit(func(h *History) { h.FinalStates = finalStates(h.last(id)) })
	return nil
}

// finalStates reads the states of processes from the results of a status.
func finalStates(r *ResultsPoll) []FinalState {
	var all []FinalState
	for i := range r.Results {
		result := &r.Results[i]
		st := FinalState{Process: result.Name, Host: result.Host, At: r.Until}
		if result.Status == nil {
			st.Unknown = fmt.Sprintf("%s %d %q", result.State, result.Code, result.Message)
		} else {
			st.Running = result.Status.Running
		}
		all = append(all, st)
	}
	return all
}

// Totals are the sizes of a history.
type Totals struct {
	Submissions, Items      int
	Repeats, TryAgain       int // responses after the first of a submission, and responses that accept nothing
	TaskPolls, ResultsPolls int // polls of counters and of results
	Retries                 int // retries of tasks whose items were read
	Rollouts                int // submissions with a window
	Fullest                 int // largest share of a window that was at work at a poll, in percent
	Queued, Waited          int // submissions with a queue, and those with hosts that waited at a poll
}

// Totals counts the observations so far.
func (l *Load) Totals() Totals {
	var t Totals
	l.log.edit(func(h *History) {
		t.Submissions, t.Repeats = len(h.Submissions), len(h.Responses)-len(h.Submissions)
		t.Retries = len(h.Retries)
		for _, s := range h.Submissions {
			t.Items += s.items()
			if s.Queue > 0 {
				t.Queued++
				waits := func(p TaskPoll) bool { return p.Task.Rollout != nil && p.Task.Rollout.Waiting > 0 }
				if slices.ContainsFunc(h.TaskPolls[s.Task], waits) {
					t.Waited++
				}
			}
			if s.Window == 0 {
				continue
			}
			t.Rollouts++
			for _, p := range h.TaskPolls[s.Task] {
				if r := p.Task.Rollout; r != nil {
					t.Fullest = max(t.Fullest, 100*r.Active/s.Window)
				}
			}
		}
		for _, all := range h.TaskPolls {
			t.TaskPolls += len(all)
		}
		for _, all := range h.ResultsPolls {
			t.ResultsPolls += len(all)
		}
		for _, a := range h.Responses {
			if a.Status/100 != 2 {
				t.TryAgain++
			}
		}
	})
	return t
}

func (t Totals) String() string {
	return fmt.Sprintf("%d submissions of %d items, %d further responses (%d of them permit a retry), %d polls of counters and %d of results, %d retries, %d rollouts with at most %d %% of a window at work, %d submissions with a queue (%d with hosts that waited)",
		t.Submissions, t.Items, t.Repeats, t.TryAgain, t.TaskPolls, t.ResultsPolls, t.Retries, t.Rollouts, t.Fullest, t.Queued, t.Waited)
}
