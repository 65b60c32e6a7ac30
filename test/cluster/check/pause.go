package check

import (
	"context"
	"errors"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

const (
	// pauseEvery is the number of submissions per submission whose task is paused.
	pauseEvery = 7
	// pauseFor is the duration of a pause. It exceeds the time after which a paused task
	// begins nothing.
	pauseFor = 20 * time.Second
)

// Hold is one pause of a task: the requests that paused and resumed it.
type Hold struct {
	Task            procfleet.TaskID
	Paused, Resumed Span
	// Confirmed states that the client got the response to the pause.
	Confirmed bool
}

// pause pauses a task, and resumes it after a while or when submitting ends. working
// limits the repeats.
func (l *Load) pause(submitting, working context.Context, c *client.Client, id procfleet.TaskID) {
	p := Hold{Task: id}
	p.Paused.From = time.Now()
	_, err := c.PauseTask(working, id, client.TaskControl{Reason: "check"})
	p.Paused.Until = time.Now()
	if ended(err) {
		return
	}
	p.Confirmed = err == nil
	_ = rest(submitting, pauseFor)
	p.Resumed.From = time.Now()
	for working.Err() == nil {
		if _, err := c.ResumeTask(working, id, client.TaskResume{}); err == nil || ended(err) {
			break
		}
		_ = rest(working, l.cfg.Between)
	}
	p.Resumed.Until = time.Now()
	l.log.edit(func(h *History) { h.Holds = append(h.Holds, p) })
}

// ended reports whether a task could not be controlled because it had ended.
func ended(err error) bool {
	var refusal *client.Error
	return errors.As(err, &refusal) && !refusal.Retryable()
}

// pausedAfter is the time from the confirmation of a pause after which no agent accepts a
// command of the task.
const pausedAfter = 10 * time.Second

// paused checks that no agent accepted and ran a command of a task while it was paused.
// Commands of items that were accepted before may wait in the agent.
func (j *judge) paused(marks []Mark) {
	pauses := map[procfleet.TaskID][]Hold{}
	for _, p := range j.h.Holds {
		if p.Confirmed {
			pauses[p.Task] = append(pauses[p.Task], p)
		}
	}
	for _, m := range marks {
		position, _ := m.fence()
		for _, p := range pauses[m.task()] {
			limit := p.Paused.Until.Add(pausedAfter + clockError)
			accepted := j.acceptedAt(p.Task, position.item)
			if m.At.After(limit) && m.At.Before(p.Resumed.From) && accepted.After(limit) {
				j.brokenItem(RulePaused, p.Task, position.item, m.Host, "paused %s, resumed %s, but %s of %s was accepted %s and ran %s",
					p.Paused, p.Resumed, m.Verb, m.Token, accepted.Format(clockLayout), m.At.Format(clockLayout))
			}
		}
	}
}

// acceptedAt returns when the agent accepted an item, by its final result; zero if the
// result does not show it.
func (j *judge) acceptedAt(task procfleet.TaskID, item int) time.Time {
	if r := j.final(task, item); r != nil {
		return r.AcceptedAt
	}
	return time.Time{}
}

// held returns the maximum time for which a task was paused.
func (h *History) held(task procfleet.TaskID) (total time.Duration) {
	for _, p := range h.Holds {
		if p.Task == task {
			total += p.Resumed.Until.Sub(p.Paused.From)
		}
	}
	return total
}
