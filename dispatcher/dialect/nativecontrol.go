package dialect

import (
	"errors"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// decodeTaskControl returns the decoder of a control call. The body may be empty.
func decodeTaskControl(transition Transition) func(*Request) (TaskControl, error) {
	return func(r *Request) (TaskControl, error) {
		id, err := decodeNativeTaskID(r)
		if err != nil {
			return TaskControl{}, err
		}
		var body v1.TaskControl
		if len(r.Body) > 0 {
			if err := decodeNativeBody(r, &body); err != nil {
				return TaskControl{}, err
			}
		}
		if body.IfSeq != nil && *body.IfSeq < 0 {
			err = invalid("if_seq", "is negative")
		}
		q := TaskControl{Task: id, Transition: transition, Reason: body.Reason, IfSeq: body.IfSeq}
		return q, errors.Join(tooLong("reason", body.Reason, procfleet.MaxHoldReason), err)
	}
}

func nativeControlled(_ *TaskControl, t *procfleet.Task, _ string) Reply { return nativeEvent(t) }
