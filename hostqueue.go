package procfleet

import "time"

// HostQueue lets the operations on a host without an agent wait until an agent of it is connected.
type HostQueue struct {
	// For is the time from the acceptance of the task until waiting operations end as unreachable,
	// with [RefusalExpired]: 1 minute to 23 days.
	For Duration `json:"for"`
	// Coalesce cancels the waiting operations on a process as soon as a later task operates it.
	Coalesce bool `json:"coalesce,omitempty"`
}

// maxQueue leaves a task that waits time for the operations, within [MaxRolloutTime].
const maxQueue = MaxRolloutTime - MaxTimeout

// Validate returns a [FieldError] for a time out of range.
func (q *HostQueue) Validate() error { return within("for", q.For, time.Minute, maxQueue) }

// validateQueue returns a [FieldError] for a submission whose operations cannot wait.
func (s *Submission) validateQueue() error {
	if s.Queue == nil {
		return nil
	}
	for i := range s.Operations {
		if a := s.Operations[i].Action; !a.Mutating() {
			return &FieldError{"queue", "is not allowed with the action " + string(a) + ": its result is of interest now only"}
		}
	}
	return In("queue", s.Queue.Validate())
}
