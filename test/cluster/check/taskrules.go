package check

import (
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
			j.accepted(a, tasks, keys)
		case !tryAgain(a.Status):
			j.broken(RuleAnswer, "", "%s: %s answered submission %s with %d: %s", a.Span, a.Door, a.Key, a.Status, a.Text)
		}
	}
	for _, s := range j.h.Submissions {
		if s.Task == "" {
			j.broken(RuleAnswer, "", "submission %s came to no answer: %v", s.Key, s.Err)
		}
	}
	j.strangers(keys)
}

// accepted judges one promise of a task.
func (j *judge) accepted(a Answer, tasks map[string]Answer, keys map[procfleet.TaskID]string) {
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
	for i := range j.h.Tasks {
		t := &j.h.Tasks[i]
		if t.Business == j.h.Run && keys[t.ID] == "" && j.tasks[t.ID] == nil && t.State != procfleet.TaskRejected {
			j.broken(RuleOneKey, t.ID, "it is listed as %s, made %s, and no submission was answered with it", t.State, t.CreatedAt)
		}
	}
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
	switch {
	case before == nil:
		j.broken(RuleEnds, s.Task, "no dispatcher could be asked for it")
	case !before.Task.Done():
		j.broken(RuleEnds, s.Task, "the last that was seen is %s; its deadline was %s", before, before.Task.Deadline)
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
