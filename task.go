package procfleet

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Number orders tasks by acceptance: microseconds of the store's clock since the
// Unix epoch, strictly increasing across all dispatchers.
type Number int64

// Time returns the moment of acceptance.
func (n Number) Time() time.Time { return time.UnixMicro(int64(n)).UTC() }

// TaskID returns the id of the task with this number.
func (n Number) TaskID() TaskID { return TaskID(n.appendTaskID(make([]byte, 0, taskIDLength))) }

func (n Number) appendTaskID(b []byte) []byte {
	t := n.Time()
	b = append(b, taskIDPrefix...)
	b = t.AppendFormat(b, taskIDTime)
	b = append(b, ':')
	return strconv.AppendInt(b, int64(t.Nanosecond()/1000), 10)
}

// TaskID identifies a task: "GSETASK:<yyyymmddhhmmss>:<microseconds>", in UTC.
// Callers treat it as opaque.
type TaskID string

const (
	taskIDPrefix = "GSETASK:"
	taskIDTime   = "20060102150405"
	taskIDLength = len(taskIDPrefix) + len(taskIDTime) + len(":999999") // upper bound for years of four digits
)

// ParseTaskID returns s as a TaskID, or an error if its format is not procfleet's.
func ParseTaskID(s string) (TaskID, error) {
	if _, err := TaskID(s).Number(); err != nil {
		return "", err
	}
	return TaskID(s), nil
}

// Number returns the number encoded in the id.
func (id TaskID) Number() (Number, error) {
	rest, ok := strings.CutPrefix(string(id), taskIDPrefix)
	stamp, micros, ok2 := strings.Cut(rest, ":")
	t, ok3 := readStamp(stamp)
	us, ok4 := readDigits(micros)
	if !ok || !ok2 || !ok3 || !ok4 || us > 999_999 {
		return 0, id.malformed()
	}
	n := Number(t.UnixMicro() + int64(us))
	var form [taskIDLength]byte
	if string(n.appendTaskID(form[:0])) != string(id) { // rejects non-existent dates and leading zeros
		return 0, id.malformed()
	}
	return n, nil
}

// readStamp parses a time in the layout taskIDTime. Every step of every task
// parses an id, and time.Parse takes several times as long.
func readStamp(s string) (time.Time, bool) {
	if len(s) != len(taskIDTime) {
		return time.Time{}, false
	}
	year, ok := readDigits(s[:4])
	var part [5]int // month, day, hour, minute, second
	for i := range part {
		var good bool
		part[i], good = readDigits(s[4+2*i : 6+2*i])
		ok = ok && good
	}
	return time.Date(year, time.Month(part[0]), part[1], part[2], part[3], part[4], 0, time.UTC), ok
}

// readDigits parses 1 to 6 decimal digits; ok is false for any other text.
func readDigits(s string) (n int, ok bool) {
	if s == "" || len(s) > len("999999") {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

func (id TaskID) malformed() error {
	return fmt.Errorf("task id %q is not of the form %s<yyyymmddhhmmss>:<microseconds>", clip(string(id)), taskIDPrefix)
}

// TaskState is the state of a task; see the diagram in the package comment.
type TaskState string

// Values of [TaskState].
const (
	TaskAccepted TaskState = "accepted"
	TaskRunning  TaskState = "running"
	TaskFinished TaskState = "finished"
	TaskRejected TaskState = "rejected"
)

// Done reports whether the task is finished or rejected.
func (s TaskState) Done() bool { return s == TaskFinished || s == TaskRejected }

// Lane is a task queue. Tasks of at most [SmallTask] items have a lane of their
// own, so that they do not wait for larger tasks.
type Lane string

// LaneSmall is the lane of small tasks. Large tasks are spread over the other
// lanes, so that concurrent large tasks share the workers evenly.
const LaneSmall Lane = "s"

// Size limits of tasks and chunks, and the number of lanes.
const (
	// SmallTask is the maximum number of items of a task in [LaneSmall].
	SmallTask = 256
	// ChunkItems is the maximum number of items in a chunk. A chunk exceeds it
	// only if one request has more items for a single process on a single host.
	ChunkItems = 256
	// BigLanes is the number of lanes for tasks above SmallTask.
	BigLanes = 8
)

// BigLane returns lane n modulo [BigLanes] of the lanes for large tasks.
func BigLane(n uint64) Lane { return Lane("b" + strconv.FormatUint(n%BigLanes, 10)) }

// Lanes returns all lanes, [LaneSmall] first.
func Lanes() []Lane {
	lanes := []Lane{LaneSmall}
	for n := range uint64(BigLanes) {
		lanes = append(lanes, BigLane(n))
	}
	return lanes
}

// Task is the stored execution of one accepted submission.
type Task struct {
	ID     TaskID
	Number Number
	State  TaskState
	Lane   Lane
	Items  int
	Chunks int
	// Counts has one entry per item state; the sum always equals Items.
	Counts Counts

	CreatedAt  time.Time // time of acceptance by the store's clock
	Deadline   time.Time // time at which items without a result fail
	FinishedAt time.Time // zero until the task ends
	ExpiresAt  time.Time // time at which the store deletes the task

	// Dispatched is true once all chunks have been queued.
	Dispatched bool
	// NotifyPending is true from the end of the task until its caller is notified.
	NotifyPending bool
	// EventPublished is true once the finished event is published and audited.
	// If NotifyPending is still true, only the callback is outstanding.
	EventPublished bool
	// RejectReason is the cause of TaskRejected.
	RejectReason string
	// Seq is the number of control transitions of the task, such as a pause.
	Seq int `json:",omitzero"`
	// Transitions is the number of transitions that the store has of the task, and
	// TransitionsSent how many of them are published, the first ones first.
	Transitions, TransitionsSent int `json:",omitzero"`
	// ItemCancels is the number of chunks with cancels of items that no worker has carried out.
	ItemCancels int `json:",omitzero"`
	// Hold suspends delivery; zero if the task is not held or has ended.
	Hold Hold `json:",omitzero"`
	// Cancel is the cancellation of the task; zero if it was not canceled.
	Cancel Cancel `json:",omitzero"`
	// Rollout is the progress of a gradual task; nil if all items are delivered at once.
	Rollout *Rollout `json:",omitempty"`
	// RetryOf is the task whose items this task repeats; empty if it is no retry.
	RetryOf TaskID `json:",omitzero"`
	// UndoOf is the task whose effect this task reverts; empty if it reverts none.
	UndoOf TaskID `json:",omitzero"`
	// UndoneBy is the task that reverts the task; empty without one.
	UndoneBy TaskID `json:",omitzero"`
	// RetriedBy lists the retries of the task, in their order.
	RetriedBy []TaskID `json:",omitempty"`

	Actions     []Action // distinct actions of the operations
	Dialect     string
	Application string
	Business    string
	Callback    string
	Origin      Origin
	// Trace is the W3C traceparent of the acceptance, so that later work on the
	// task continues the same trace; empty without a trace.
	Trace string
}

// Held reports whether delivery is suspended.
func (t *Task) Held() bool { return t.Hold.Kind != "" }

// Canceled reports whether the task was canceled. It ends when its last item has a result.
func (t *Task) Canceled() bool { return t.Cancel.Mode != "" }

// HoldLimit is the time at which the pending items of a held task fail: halfway
// between its deadline and its expiry, so that callers can read their results.
func (t *Task) HoldLimit() time.Time { return t.Deadline.Add(t.ExpiresAt.Sub(t.Deadline) / 2) }

// Cancel ends a task: items that no agent has begun do not run.
type Cancel struct {
	Mode   CancelMode
	Reason string    // reason given by the caller, at most [MaxHoldReason] bytes
	Since  time.Time // by the store's clock
}

// CancelMode says what happens to items that agents have begun.
type CancelMode string

// Values of [CancelMode].
const (
	CancelDrain     CancelMode = "drain"     // they end by themselves
	CancelInterrupt CancelMode = "interrupt" // agents terminate their commands
)

// Hold suspends the delivery of a task. Items that agents have accepted go on.
type Hold struct {
	Kind   HoldKind
	Reason string    // reason given by the caller, at most [MaxHoldReason] bytes
	Since  time.Time // by the store's clock
}

// HoldKind is the cause of a [Hold].
type HoldKind string

// HoldOperator is the hold of a caller that paused the task.
const HoldOperator HoldKind = "operator"

// MaxHoldReason bounds the reason of a [Hold] in bytes.
const MaxHoldReason = 1 << 10

// Origin describes the caller of a task in the audit log, in addition to the
// application. Each part may be empty and has at most [MaxOriginPart] bytes.
type Origin struct {
	User    string `json:"u,omitempty"` // user on whose behalf the application called
	Address string `json:"a,omitempty"` // peer address of the connection; empty for a submission by NATS
	Request string `json:"r,omitempty"` // request id that appears in the logs
	// Override is the reason to operate outside of maintenance windows; "" without one.
	Override string `json:"w,omitempty"`
}

// MaxOriginPart bounds the parts of an [Origin] but Override in bytes.
const MaxOriginPart = 128

// Counts maps each item state to its number of items.
type Counts map[State]int

// Open returns the number of items without a final result.
func (c Counts) Open() int { return c[StatePending] + c[StateDelivered] }

// Total returns the number of items.
func (c Counts) Total() int {
	n := 0
	for _, v := range c {
		n += v
	}
	return n
}

// Failed returns the number of items that are failed, unreachable, timed out, cancelled or rejected.
func (c Counts) Failed() int {
	n := 0
	for state, items := range c {
		if state.Failure() {
			n += items
		}
	}
	return n
}
