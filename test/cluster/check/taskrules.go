package check

import (
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// submissions checks the responses to submissions.
func (j *judge) submissions() {
	keys := map[procfleet.TaskID]string{} // key of each task's submission
	tasks := map[string]Response{}        // first task of each key
	for _, a := range j.h.Responses {
		switch {
		case a.Status/100 == 2:
			j.checkAcceptance(a, tasks, keys)
		case a.Code == codeUnknown && a.Task == "":
			j.broken(RuleNamed, "", "%s: response of %s to submission %s: %d %s", a.Span, a.Dispatcher, a.Key, a.Status, a.Text)
		case !tryAgain(a.Status):
			j.broken(RuleAccepted, "", "%s: response of %s to submission %s: %d %s", a.Span, a.Dispatcher, a.Key, a.Status, a.Text)
		}
	}
	for _, s := range j.h.Submissions {
		promise, checkAcceptance := tasks[s.Key]
		switch {
		case s.Task != "":
		case !s.Keyless:
			j.broken(RuleAccepted, "", "no response to submission %s: %v", s.Key, s.Err)
		case checkAcceptance:
			j.broken(RuleExists, promise.Task, "%s %s named it in the response to submission %s, but the final list lacks it", promise.Span, promise.Dispatcher, s.Key)
		}
	}
	j.unexpectedTasks(keys)
}

// codeUnknown is the error code of a submission with an unknown outcome.
const codeUnknown = "unknown"

// checkAcceptance checks one response that names a task.
func (j *judge) checkAcceptance(a Response, tasks map[string]Response, keys map[procfleet.TaskID]string) {
	if first, ok := tasks[a.Key]; !ok {
		tasks[a.Key] = a
	} else if first.Task != a.Task {
		j.broken(RuleOneKey, a.Task, "key %s: the response of %s %s named this task, but the response of %s %s task %s",
			a.Key, a.Span, a.Dispatcher, first.Span, first.Dispatcher, first.Task)
	}
	if key, ok := keys[a.Task]; ok && key != a.Key {
		j.broken(RuleOneKey, a.Task, "the response of %s %s to key %s named it, but it is the task of key %s", a.Span, a.Dispatcher, a.Key, key)
	}
	keys[a.Task] = a.Key
}

// tryAgain reports whether an HTTP status permits a retry.
func tryAgain(status int) bool {
	return (&client.Error{Status: status}).Retryable()
}

// unexpectedTasks checks the list of all tasks: a task that no response named must be
// rejected.
func (j *judge) unexpectedTasks(keys map[procfleet.TaskID]string) {
	keyless := map[string]*Submission{}
	for _, s := range j.h.Submissions {
		if s.Keyless {
			keyless[s.Key] = s
		}
	}
	for i := range j.h.Tasks {
		t := &j.h.Tasks[i]
		if t.State == procfleet.TaskRejected || j.tasks[t.ID] != nil || t.RetryOf != "" {
			continue
		}
		switch s := keyless[t.Business]; {
		case s == nil && t.Business == j.h.Run && keys[t.ID] == "":
			j.broken(RuleOneKey, t.ID, "listed as %s, created %s, but no response named it", t.State, t.CreatedAt)
		case s != nil && s.Task != "":
			j.broken(RuleOnce, t.ID, "listed as %s, created %s, in addition to task %s of submission %s, which was sent once", t.State, t.CreatedAt, s.Task, s.Key)
		case s != nil && !s.outcomeUnknown():
			j.broken(RuleRefused, t.ID, "listed as %s, created %s, but submission %s was rejected: %v", t.State, t.CreatedAt, s.Key, s.Err)
		}
	}
}

// Slack is the maximum time from the deadline of a task to its end: a worker
// requests missing results from agents for up to 30 s, and another worker takes
// over the sweep of a killed one after 15 s. After a fail-over of the store it
// counts from the end of the fail-over.
const Slack = 45 * time.Second

// acceptances returns the latest possible acceptance of each task by the clock of
// the test: the first response or poll that contains it.
func (h *History) acceptances() map[procfleet.TaskID]time.Time {
	first := map[procfleet.TaskID]time.Time{}
	note := func(id procfleet.TaskID, seen Span) {
		if at, ok := first[id]; !ok || seen.Until.Before(at) {
			first[id] = seen.Until
		}
	}
	for _, a := range h.Responses {
		if a.Status/100 == 2 {
			note(a.Task, a.Span)
		}
	}
	for id, polls := range h.TaskPolls {
		if len(polls) > 0 {
			note(id, polls[0].Span)
		}
	}
	return first
}

// deadline returns the deadline of a submission's task, without the slack.
// A pause moves it.
func (j *judge) deadline(s *Submission) time.Time {
	return j.accepted[s.Task].Add(s.timeLimit() + j.h.held(s.Task))
}

// due returns the time by which a submission's task must be done. Workers may measure the
// time of a pause, which is part of the deadline, once more after a fault.
func (j *judge) due(s *Submission) time.Time {
	due := j.deadline(s).Add(Slack)
	fails := slices.SortedFunc(slices.Values(j.h.Failovers), func(a, b Span) int { return a.From.Compare(b.From) })
	for _, f := range fails {
		if after := f.Until.Add(Slack + j.h.held(s.Task)); f.touches(Span{j.accepted[s.Task], due}) && after.After(due) {
			due = after
		}
	}
	for _, at := range j.h.StepsBack {
		after := at.Add(2*(s.timeLimit()+j.h.held(s.Task)) + Slack)
		if at.After(j.accepted[s.Task]) && at.Before(due) && after.After(due) {
			due = after
		}
	}
	return due
}

// checkPolls checks the successive counters of a task.
func (j *judge) checkPolls(s *Submission) {
	all := j.h.TaskPolls[s.Task]
	var before *TaskPoll
	for i := range all {
		l := &all[i]
		if l.Missing {
			j.broken(RuleExists, s.Task, "%s, but a response to submission %s named it", l, s.Key)
			continue
		}
		j.checkPoll(s, l)
		if before != nil && wentBack(before, l) && !j.h.mayBeLost(before.Span, l.Span) {
			j.broken(RuleProgress, s.Task, "first %s; then %s", before, l)
		}
		before = l
	}
	j.inTime(s, all)
	switch {
	case before == nil:
		j.broken(RuleEnds, s.Task, "no dispatcher responded to polls of it")
	case !before.Task.Done():
		j.broken(RuleEnds, s.Task, "the last poll is %s; its deadline was %s", before, before.Task.Deadline)
	}
}

// inTime checks that a task was done in time.
func (j *judge) inTime(s *Submission, polls []TaskPoll) {
	due := j.due(s)
	for i := range polls {
		if l := &polls[i]; !l.Missing && !l.Task.Done() && l.From.After(due) {
			j.broken(RuleInTime, s.Task, "%s; deadline %s, with slack %s", l, j.deadline(s).Format(clockLayout), due.Format(clockLayout))
			return
		}
	}
}

// checkPoll checks one poll of the counters.
func (j *judge) checkPoll(s *Submission, l *TaskPoll) {
	if l.Task.Items != s.items() {
		j.broken(RuleItems, s.Task, "%s has %d items, want %d", l, l.Task.Items, s.items())
	}
	if sum := l.Task.Counts.Total(); sum != l.Task.Items {
		j.broken(RuleSum, s.Task, "%s adds up to %d, want %d", l, sum, l.Task.Items)
	}
	if l.Task.State == procfleet.TaskRejected {
		j.broken(RuleExists, s.Task, "%s (%s), but a response to submission %s named it", l, l.Task.RejectReason, s.Key)
	}
	if open := l.Task.Counts.Open(); l.Task.State == procfleet.TaskFinished && open != 0 {
		j.broken(RuleSum, s.Task, "%s: finished, but %d items are open", l, open)
	}
}

// wentBack reports whether the second poll shows less progress than the first.
func wentBack(first, second *TaskPoll) bool {
	return stage(second.Task.State) < stage(first.Task.State) ||
		second.Task.Counts.Open() > first.Task.Counts.Open() ||
		second.Task.Counts[procfleet.StatePending] > first.Task.Counts[procfleet.StatePending]
}

// stage returns the order of a state.
func stage(s procfleet.TaskState) int {
	switch s {
	case procfleet.TaskAccepted:
		return 0
	case procfleet.TaskRunning:
		return 1
	case procfleet.TaskFinished, procfleet.TaskRejected:
		return 2
	}
	return -1
}
