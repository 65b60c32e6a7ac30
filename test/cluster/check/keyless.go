package check

import (
	"context"
	"errors"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// business is that of a submission's task. A submission without a key has one
// of its own, by which its task is found when the answer is lost.
func (h *History) business(s *Submission) string {
	if s.Keyless {
		return s.Key
	}
	return h.Run
}

// inDoubt reports whether a submission may have become a task although its
// answer did not say so. What has no key must not be repeated then.
func (s *Submission) inDoubt() bool {
	return s.Keyless && s.Task == "" && errors.Is(s.Err, client.ErrUnknown)
}

// settleDoubts lists all tasks, and returns those that turned out to be of
// submissions whose answer did not say so.
func (l *Load) settleDoubts(ctx context.Context) ([]procfleet.TaskID, error) {
	if err := l.list(ctx); err != nil {
		return nil, err
	}
	found := map[*Submission]procfleet.TaskID{}
	l.log.edit(func(h *History) {
		tasks := map[string]procfleet.TaskID{}
		for i := range h.Tasks {
			if t := &h.Tasks[i]; t.State != procfleet.TaskRejected {
				tasks[t.Business] = t.ID
			}
		}
		for _, s := range h.Submissions {
			if id := tasks[s.Key]; s.inDoubt() && id != "" {
				found[s] = id
			}
		}
	})
	var ids []procfleet.TaskID
	for s, id := range found {
		l.log.answered(s, id, nil)
		ids = append(ids, id)
	}
	return ids, nil
}
