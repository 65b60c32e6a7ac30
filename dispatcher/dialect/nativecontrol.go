package dialect

import (
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
		if err := tooLong("reason", body.Reason, procfleet.MaxHoldReason); err != nil {
			return TaskControl{}, refused(err, same)
		}
		if body.IfSeq != nil && *body.IfSeq < 0 {
			return TaskControl{}, invalid("if_seq", "is negative")
		}
		return TaskControl{Task: id, Transition: transition, Reason: body.Reason, IfSeq: body.IfSeq}, nil
	}
}

func nativeControlled(_ *TaskControl, t *procfleet.Task, _ string) Reply { return nativeEvent(t) }
