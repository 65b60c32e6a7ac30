package check

import (
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// submissions judges what became of the requests themselves.
func (j *judge) submissions() {
	keys := map[procfleet.TaskID]string{} // whose task it is
	tasks := map[string]Answer{}          // the first task of each key
	for _, a := range j.h.Answers {
		switch {
		case a.Status/100 == 2:
			j.promised(a, tasks, keys)
		case a.Code == codeUnknown && a.Task == "":
			j.broken(RuleNamed, "", "%s: %s answered submission %s with %d: %s", a.Span, a.Door, a.Key, a.Status, a.Text)
		case !tryAgain(a.Status):
			j.broken(RuleAnswer, "", "%s: %s answered submission %s with %d: %s", a.Span, a.Door, a.Key, a.Status, a.Text)
		}
	}
	for _, s := range j.h.Submissions {
		promise, promised := tasks[s.Key]
		switch {
		case s.Task != "":
		case !s.Keyless:
			j.broken(RuleAnswer, "", "submission %s came to no answer: %v", s.Key, s.Err)
		case promised:
			j.broken(RuleKept, promise.Task, "%s %s answered submission %s with it; in the end it is not listed", promise.Span, promise.Door, s.Key)
		}
	}
	j.strangers(keys)
}

// codeUnknown is how a dispatcher says that it does not know the outcome of a
// submission.
const codeUnknown = "unknown"

// promised judges one promise of a task.
func (j *judge) promised(a Answer, tasks map[string]Answer, keys map[procfleet.TaskID]string) {
	if first, ok := tasks[a.Key]; !ok {
		tasks[a.Key] = a
	} else if first.Task != a.Task {
		j.broken(RuleOneKey, a.Task, "key %s: %s %s answered with this task, but %s %s with task %s",
			a.Key, a.Span, a.Door, first.Span, first.Door, first.Task)
	}
	if key, ok := keys[a.Task]; ok && key != a.Key {
		j.broken(RuleOneKey, a.Task, "%s %s answered with it to key %s, but it is that of key %s", a.Span, a.Door, a.Key, key)
	}
	keys[a.Task] = a.Key
}

// tryAgain is whether an HTTP status says that it is a matter of time.
func tryAgain(status int) bool {
	return (&client.Error{Status: status}).Retryable()
}

// strangers judges the list of all tasks: what nobody was promised may be there
// only if it was taken back.
func (j *judge) strangers(keys map[procfleet.TaskID]string) {
	keyless := map[string]*Submission{}
	for _, s := range j.h.Submissions {
		if s.Keyless {
			keyless[s.Key] = s
		}
	}
	for i := range j.h.Tasks {
		t := &j.h.Tasks[i]
		if t.State == procfleet.TaskRejected || j.tasks[t.ID] != nil {
			continue
		}
		switch s := keyless[t.Business]; {
		case s == nil && t.Business == j.h.Run && keys[t.ID] == "":
			j.broken(RuleOneKey, t.ID, "it is listed as %s, made %s, and no submission was answered with it", t.State, t.CreatedAt)
		case s != nil && s.Task != "":
			j.broken(RuleOnce, t.ID, "it is listed as %s, made %s, beside task %s of submission %s, which was sent once", t.State, t.CreatedAt, s.Task, s.Key)
		case s != nil && !s.inDoubt():
			j.broken(RuleRefused, t.ID, "it is listed as %s, made %s, but submission %s was refused: %v", t.State, t.CreatedAt, s.Key, s.Err)
		}
	}
}

// Slack is how long after its deadline a task may end: agents that are silent
// are asked for results for up to 30 s, and another worker takes over the sweep
// of one that died after 15 s. A fail-over of the store counts from its end.
const Slack = 45 * time.Second

// acceptances returns by when each task was accepted, by the clock of the test:
// the first answer or look that had it.
func (h *History) acceptances() map[procfleet.TaskID]time.Time {
	first := map[procfleet.TaskID]time.Time{}
	note := func(id procfleet.TaskID, seen Span) {
		if at, ok := first[id]; !ok || seen.Until.Before(at) {
			first[id] = seen.Until
		}
	}
	for _, a := range h.Answers {
		if a.Status/100 == 2 {
			note(a.Task, a.Span)
		}
	}
	for id, looks := range h.Looks {
		if len(looks) > 0 {
			note(id, looks[0].Span)
		}
	}
	return first
}

// deadline is when a submission's task must end, without the slack.
func (j *judge) deadline(s *Submission) time.Time { return j.accepted[s.Task].Add(s.Timeout) }

// due is when a submission's task must have ended.
func (j *judge) due(s *Submission) time.Time {
	due := j.deadline(s).Add(Slack)
	fails := slices.SortedFunc(slices.Values(j.h.Failovers), func(a, b Span) int { return a.From.Compare(b.From) })
	for _, f := range fails {
		if after := f.Until.Add(Slack); f.touches(Span{j.accepted[s.Task], due}) && after.After(due) {
			due = after
		}
	}
	return due
}

// looks judges the counters of a task, one poll after the other.
func (j *judge) looks(s *Submission) {
	all := j.h.Looks[s.Task]
	var before *Look
	for i := range all {
		l := &all[i]
		if l.Missing {
			j.broken(RuleKept, s.Task, "%s, but submission %s was answered with it", l, s.Key)
			continue
		}
		j.look(s, l)
		if before != nil && wentBack(before, l) && !j.h.forgiven(before.Span, l.Span) {
			j.broken(RuleOnward, s.Task, "first %s; then %s", before, l)
		}
		before = l
	}
	j.inTime(s, all)
	switch {
	case before == nil:
		j.broken(RuleEnds, s.Task, "no dispatcher could be asked for it")
	case !before.Task.Done():
		j.broken(RuleEnds, s.Task, "the last that was seen is %s; its deadline was %s", before, before.Task.Deadline)
	}
}

// inTime judges whether a task was still open when it had to be over.
func (j *judge) inTime(s *Submission, looks []Look) {
	due := j.due(s)
	for i := range looks {
		if l := &looks[i]; !l.Missing && !l.Task.Done() && l.From.After(due) {
			j.broken(RuleInTime, s.Task, "%s; it was to end by %s, and by %s at the latest", l, j.deadline(s).Format(clockLayout), due.Format(clockLayout))
			return
		}
	}
}

// look judges one poll by itself.
func (j *judge) look(s *Submission, l *Look) {
	if l.Task.Items != s.items() {
		j.broken(RuleItems, s.Task, "%s says %d items, asked for were %d", l, l.Task.Items, s.items())
	}
	if sum := l.Task.Counts.Total(); sum != l.Task.Items {
		j.broken(RuleSum, s.Task, "%s adds up to %d, not to %d", l, sum, l.Task.Items)
	}
	if l.Task.State == procfleet.TaskRejected {
		j.broken(RuleKept, s.Task, "%s (%s), but submission %s was answered with it", l, l.Task.RejectReason, s.Key)
	}
	if open := l.Task.Counts.Open(); l.Task.State == procfleet.TaskFinished && open != 0 {
		j.broken(RuleSum, s.Task, "%s: it is finished and %d items are open", l, open)
	}
}

// wentBack is whether the second look shows less progress than the first.
func wentBack(first, second *Look) bool {
	return stage(second.Task.State) < stage(first.Task.State) ||
		second.Task.Counts.Open() > first.Task.Counts.Open() ||
		second.Task.Counts[procfleet.StatePending] > first.Task.Counts[procfleet.StatePending]
}

// stage is how far a state is.
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
