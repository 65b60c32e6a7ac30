package check

import (
	"github.com/procfleet/procfleet"
)

// notifications checks the notifications of the ends of tasks.
func (j *judge) notifications() {
	keys := map[string]*Submission{}
	for _, s := range j.h.Submissions {
		keys[s.Key] = s
	}
	called, published := map[procfleet.TaskID]bool{}, map[procfleet.TaskID]bool{}
	for i := range j.h.Callbacks {
		c := &j.h.Callbacks[i]
		s := keys[c.Key]
		if s == nil {
			continue // of an earlier load, which did not wait for it
		}
		j.checkContent(c)
		switch {
		case c.State == procfleet.TaskRejected:
		case c.Header != c.Event:
			j.broken(RuleEventID, c.Task, "the callback to %s at %s has Idempotency-Key %q and event %q", c.Key, c.At.Format(clockLayout), c.Header, c.Event)
		case !s.Callback, s.Task != "" && s.Task != c.Task:
			j.broken(RuleEventID, c.Task, "notified to the callback of submission %s, whose task is %s, at %s", c.Key, s.Task, c.At.Format(clockLayout))
		}
		called[c.Task] = called[c.Task] || c.Status/100 == 2
	}
	for i := range j.h.Events {
		e := &j.h.Events[i]
		if j.tasks[e.Task] != nil {
			j.checkContent(e)
			published[e.Task] = true
		}
	}
	for task := range j.tasks {
		j.checkNumbers(task)
		if j.h.Delivered != nil {
			j.checkDeliveries(task)
		}
	}
	for _, problem := range j.h.Unverified {
		j.broken(RuleDelivered, "", "a request of the webhook: %s", problem)
	}
	for _, s := range j.h.Submissions {
		polls := j.h.TaskPolls[s.Task]
		if len(polls) == 0 || polls[len(polls)-1].Task.State != procfleet.TaskFinished {
			continue
		}
		if j.h.Events != nil && !published[s.Task] {
			j.broken(RuleNotified, s.Task, "finished without an event")
		}
		if s.Callback && !called[s.Task] {
			j.broken(RuleNotified, s.Task, "finished, but no callback to %s was acknowledged", s.Key)
		}
	}
}

// checkNumbers checks the order in which the events of a task arrived first. The acceptance is
// event 1.
func (j *judge) checkNumbers(task procfleet.TaskID) {
	last := 1
	for _, n := range j.h.Numbers[task] {
		if n > last+1 {
			j.broken(RuleNumbered, task, "event %d follows event %d", n, last)
		}
		last = max(last, n)
	}
}

// checkContent checks the content of a notification.
func (j *judge) checkContent(n *Notification) {
	if want := string(n.Task) + "/finished"; n.Event != want {
		j.broken(RuleEventID, n.Task, "event id %q, want %q", n.Event, want)
	}
	if s := j.tasks[n.Task]; s != nil && n.State == procfleet.TaskFinished && (n.Counts.Open() > 0 || n.Counts.Total() != s.items()) {
		j.broken(RuleEventID, n.Task, "the event counts %s, but %d items were requested", countsText(n.Counts), s.items())
	}
}
