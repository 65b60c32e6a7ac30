package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Settle ends the load: no more submissions, every task to its end, and all of
// it read once more. Call it when everything has healed. It returns what was
// broken; an error means that this could not be found out. It blocks for at most
// about twice [Config.Timeout] and [Config.Patience] together.
func (l *Load) Settle(ctx context.Context) ([]Violation, error) {
	defer l.Stop()
	ctx, cancel := context.WithTimeout(ctx, 2*(l.cfg.Timeout+l.cfg.Patience))
	defer cancel()
	l.stop()
	l.cfg.Log("settling: waiting for submissions under way")
	giveUp := time.AfterFunc(l.cfg.Patience, l.abandon)
	l.submitters.Wait()
	giveUp.Stop()
	if _, err := l.settleDoubts(ctx); err != nil {
		return nil, fmt.Errorf("list all tasks: %w", err)
	}
	l.cfg.Log("settling: waiting for the ends of tasks")
	l.untilDone(ctx)
	l.stopPolls()
	l.pollers.Wait()
	l.cfg.Log("settling: reading everything once more")
	return l.judge(ctx)
}

// untilDone waits until every task was seen done, as long as that may take.
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

// judge reads everything and judges it. What time may still heal, such as an
// agent's late word, is read again until it has or the patience ends.
func (l *Load) judge(ctx context.Context) ([]Violation, error) {
	tasks := l.log.all()
	deadline := time.Now().Add(l.cfg.Patience)
	for round := 0; ; round++ {
		for _, id := range tasks {
			if err := l.readLast(ctx, id); err != nil {
				l.cfg.Log("task %s could not be read in the end: %v", id, err)
			}
		}
		if err := l.stand(ctx, round); err != nil {
			l.cfg.Log("the processes' standing could not be asked for: %v", err)
		}
		late, err := l.settleDoubts(ctx)
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
		tasks = slices.Concat(healing(found), late)
		if len(found) == 0 || !slices.ContainsFunc(found, mayHeal) || time.Now().After(deadline) {
			return found, nil
		}
		if err := rest(ctx, time.Second); err != nil {
			return found, nil //nolint:nilerr // the time is over, and what was found is found
		}
	}
}

// mayHeal is whether a violation may be gone when it is looked at again.
func mayHeal(v Violation) bool {
	switch v.Rule {
	case RuleEnds, RuleSilent, RuleStands, RuleResult, RuleNotified:
		return true
	default:
		return false
	}
}

// healing returns the tasks of violations that may heal, each once.
func healing(found []Violation) []procfleet.TaskID {
	var tasks []procfleet.TaskID
	for _, v := range found {
		if mayHeal(v) && v.Task != "" && !slices.Contains(tasks, v.Task) {
			tasks = append(tasks, v.Task)
		}
	}
	return tasks
}

// violations judges all that is known by now.
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

// History returns what was seen. Nothing may be under way any more.
func (l *Load) History() *History { return &l.log.h }

// readLast looks at a task through every dispatcher, and reads its results.
func (l *Load) readLast(ctx context.Context, id procfleet.TaskID) error {
	for i := range l.doors {
		d := &l.doors[i]
		if err := l.persist(ctx, func() error { return l.read(ctx, d, id, true) }); err != nil {
			return err
		}
		if err := l.persist(ctx, func() error { return l.look(ctx, d, id) }); err != nil {
			return err
		}
	}
	return nil
}

// persist repeats what a dispatcher could not do, for a while: everything has
// healed, but may be slow.
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

// list asks for all tasks.
func (l *Load) list(ctx context.Context) error {
	var tasks []client.Task
	err := l.persist(ctx, func() error {
		tasks = nil
		for t, err := range l.doors[0].client.Tasks(ctx, client.Query{}) {
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

// stand asks for the status of all resident processes.
func (l *Load) stand(ctx context.Context, round int) error {
	s := &Submission{Key: fmt.Sprintf("%s-stand-%d", l.cfg.Run, round)}
	for n := range residents {
		s.Asks = append(s.Asks, Ask{Action: procfleet.ActionStatus, Process: resident(n), Stays: true, Hosts: l.cfg.Hosts})
	}
	l.log.submitted(s, l.cfg.Timeout)
	id, err := l.clients[0].Submit(ctx, l.request(s))
	l.log.answered(s, id, err)
	if err != nil {
		return err
	}
	if _, err := l.clients[0].Wait(ctx, id); err != nil {
		return err
	}
	if err := l.readLast(ctx, id); err != nil {
		return err
	}
	l.log.edit(func(h *History) { h.Standings = standings(h.last(id)) })
	return nil
}

// standings reads how processes stand from the results of a status.
func standings(r *Reading) []Standing {
	var all []Standing
	for i := range r.Results {
		result := &r.Results[i]
		st := Standing{Process: result.Name, Host: result.Host, At: r.Until}
		if result.Status == nil {
			st.Unknown = fmt.Sprintf("%s %d %q", result.State, result.Code, result.Message)
		} else {
			st.Running = result.Status.Running
		}
		all = append(all, st)
	}
	return all
}

// Totals say how much was seen.
type Totals struct {
	Submissions, Items int
	Repeats, TryAgain  int // answers beyond the first of a submission, and those that were no acceptance
	Looks, Readings    int // of tasks
}

// Totals counts what was seen until now.
func (l *Load) Totals() Totals {
	var t Totals
	l.log.edit(func(h *History) {
		t.Submissions, t.Repeats = len(h.Submissions), len(h.Answers)-len(h.Submissions)
		for _, s := range h.Submissions {
			t.Items += s.items()
		}
		for _, all := range h.Looks {
			t.Looks += len(all)
		}
		for _, all := range h.Readings {
			t.Readings += len(all)
		}
		for _, a := range h.Answers {
			if a.Status/100 != 2 {
				t.TryAgain++
			}
		}
	})
	return t
}

func (t Totals) String() string {
	return fmt.Sprintf("%d submissions of %d items, answered %d times beyond the first (%d times with \"try again\"), seen in %d looks and %d readings",
		t.Submissions, t.Items, t.Repeats, t.TryAgain, t.Looks, t.Readings)
}
