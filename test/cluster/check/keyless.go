package check

import (
	"context"
	"errors"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// business returns the business of a submission's task. A submission without a key
// has a business of its own, by which the load finds its task after a lost
// response.
func (h *History) business(s *Submission) string {
	if s.Keyless {
		return s.Key
	}
	return h.Run
}

// outcomeUnknown reports whether a submission may have a task although no response
// confirmed it. A submission without a key must then not be repeated.
func (s *Submission) outcomeUnknown() bool {
	return s.Keyless && s.Task == "" && errors.Is(s.Err, client.ErrUnknown)
}

// resolveUnknown lists all tasks, and returns the tasks of submissions whose response
// did not confirm them.
func (l *Load) resolveUnknown(ctx context.Context) ([]procfleet.TaskID, error) {
	if err := l.list(ctx); err != nil {
		return nil, err
	}
	found := map[*Submission]procfleet.TaskID{}
	l.log.edit(func(h *History) {
		tasks := map[string]procfleet.TaskID{}
		for i := range h.Tasks {
			if t := &h.Tasks[i]; t.State != procfleet.TaskRejected && t.RetryOf == "" {
				tasks[t.Business] = t.ID
			}
		}
		for _, s := range h.Submissions {
			if id := tasks[s.Key]; s.outcomeUnknown() && id != "" {
				found[s] = id
			}
		}
	})
	var ids []procfleet.TaskID
	for s, id := range found {
		l.log.setOutcome(s, id, nil)
		ids = append(ids, id)
	}
	return ids, nil
}
