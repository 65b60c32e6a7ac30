package dialect

import (
	"errors"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// decodeTaskPause decodes a pause. The body may be empty.
func decodeTaskPause(r *Request) (TaskControl, error) {
	var body v1.TaskControl
	return decodeControl(r, PauseTask, &body, &body)
}

// decodeTaskResume decodes a resume. The body may be empty.
func decodeTaskResume(r *Request) (TaskControl, error) {
	var body v1.TaskResume
	q, err := decodeControl(r, ResumeTask, &body, &body.TaskControl)
	q.Hold, q.MaxFailures = body.Hold, body.MaxFailures
	switch {
	case q.Hold == procfleet.HoldApproval:
		err = errors.Join(err, invalid("hold", "is approval, which ends with an approval of the stage"))
	case q.Hold == "":
		q.Hold = procfleet.HoldOperator
	case !slices.Contains(endableHolds, q.Hold):
		err = errors.Join(err, invalid("hold", "is not one of %v", endableHolds))
	}
	err = errors.Join(err, q.MaxFailures.Validate("max_failures"))
	switch budget := q.Hold == procfleet.HoldBudget; {
	case budget && !q.MaxFailures.Given():
		err = errors.Join(err, invalid("max_failures", "is required to end the hold budget: the number of failed hosts to tolerate from now on"))
	case !budget && q.MaxFailures.Given():
		err = errors.Join(err, invalid("max_failures", "is only for the hold budget"))
	}
	return q, err
}

// endableHolds are the holds that a resume ends.
var endableHolds = []procfleet.HoldKind{
	procfleet.HoldOperator, procfleet.HoldBudget, procfleet.HoldStalled, procfleet.HoldUnhealthy, procfleet.HoldInconclusive,
}

// decodeTaskApproval decodes an approval.
func decodeTaskApproval(r *Request) (TaskControl, error) {
	var body v1.TaskApproval
	q, err := decodeControl(r, ApproveTask, &body, &body.TaskControl)
	if q.Stage = body.Stage; q.Stage < 1 && err == nil {
		err = invalid("stage", "is not the number of a stage, from 1")
	}
	return q, err
}

// decodeTaskCancel decodes a cancel. The body may be empty.
func decodeTaskCancel(r *Request) (TaskControl, error) {
	var body v1.TaskCancel
	q, err := decodeControl(r, CancelTask, &body, &body.TaskControl)
	q.Hosts = body.Hosts
	switch q.Mode = body.Mode; q.Mode {
	case procfleet.CancelDrain, procfleet.CancelInterrupt:
	case "":
		q.Mode = procfleet.CancelDrain
	default:
		err = errors.Join(err, invalid("mode", "is not drain or interrupt"))
	}
	return q, err
}

// retryStates are the states of items that a retry repeats by default.
var retryStates = []procfleet.State{procfleet.StateFailed, procfleet.StateUnreachable, procfleet.StateTimedOut, procfleet.StateCancelled}

// decodeTaskRetry decodes a retry. The body may be empty.
func decodeTaskRetry(r *Request) (TaskControl, error) {
	var body v1.TaskRetry
	q, err := decodeControl(r, RetryTask, &body, &body.TaskControl)
	q.States, q.Hosts = body.States, body.Hosts
	if len(q.States) == 0 {
		q.States = retryStates
	}
	for _, state := range q.States {
		if !slices.Contains(retryStates, state) {
			err = errors.Join(err, invalid("states", "contains %q, which is not one of %v", state, retryStates))
		}
	}
	var bad error
	q.Planned, bad = Planned(r)
	return q, errors.Join(err, bad)
}

// decodeTaskUndo decodes an undo. The body may be empty.
func decodeTaskUndo(r *Request) (TaskControl, error) {
	var body v1.TaskUndo
	q, err := decodeControl(r, UndoTask, &body, &body.TaskControl)
	q.Speed = body.Speed
	return q, errors.Join(err, body.Speed.Validate("speed"))
}

// decodeControl decodes the body, which contains control.
func decodeControl(r *Request, transition Transition, body any, control *v1.TaskControl) (TaskControl, error) {
	id, err := decodeNativeTaskID(r)
	if err != nil {
		return TaskControl{}, err
	}
	if len(r.Body) > 0 {
		if err := decodeNativeBody(r, body); err != nil {
			return TaskControl{}, err
		}
	}
	if control.IfSeq != nil && *control.IfSeq < 0 {
		err = invalid("if_seq", "is negative")
	}
	q := TaskControl{Task: id, Transition: transition, Reason: control.Reason, IfSeq: control.IfSeq}
	return q, errors.Join(tooLong("reason", control.Reason, procfleet.MaxHoldReason), err)
}

func nativeControlled(_ *TaskControl, c Controlled, id string) Reply {
	if c.Plan != nil {
		return nativePlan(c.Plan, id)
	}
	return nativeEvent(c.Task)
}
