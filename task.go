package procfleet

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Number orders tasks by acceptance: microseconds of the
// store's clock since the Unix epoch, strictly increasing across all
// dispatchers, and never going back.
type Number int64

// Time is the moment of acceptance.
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

// TaskID names a task: "GSETASK:<yyyymmddhhmmss>:<microseconds>", in UTC.
// Callers treat it as opaque.
type TaskID string

const (
	taskIDPrefix = "GSETASK:"
	taskIDTime   = "20060102150405"
	taskIDLength = len(taskIDPrefix) + len(taskIDTime) + len(":999999") // at most, in this age
)

// ParseTaskID checks that s has the form of a task id that procfleet made.
func ParseTaskID(s string) (TaskID, error) {
	if _, err := TaskID(s).Number(); err != nil {
		return "", err
	}
	return TaskID(s), nil
}

// Number returns the number that the id was made from.
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
	if string(n.appendTaskID(form[:0])) != string(id) { // a day that is not there, or leading zeros: not a form that we write
		return 0, id.malformed()
	}
	return n, nil
}

// readStamp reads a moment in the form of taskIDTime. Every step of every task
// begins with it, and time.Parse takes several times as long.
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

// readDigits reads a number of at most six digits and nothing else.
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

// TaskState is where a task stands; see the diagram in the package comment.
type TaskState string

// The states of a task.
const (
	TaskAccepted TaskState = "accepted"
	TaskRunning  TaskState = "running"
	TaskFinished TaskState = "finished"
	TaskRejected TaskState = "rejected"
)

// Done reports whether nothing more is awaited.
func (s TaskState) Done() bool { return s == TaskFinished || s == TaskRejected }

// Lane is the queue in which a task travels: tasks of at most [SmallTask]
// items do not wait behind bigger ones.
type Lane string

// LaneSmall carries small tasks; big ones are spread over the others, so that
// big tasks which run at the same time share the workers evenly.
const LaneSmall Lane = "s"

// Limits of a task's parts.
const (
	// SmallTask is the most items that a task in [LaneSmall] has.
	SmallTask = 256
	// ChunkItems is the most items in a chunk, unless a single process on a
	// single host has more items than that in one request.
	ChunkItems = 256
	// BigLanes is the number of lanes for tasks above SmallTask.
	BigLanes = 8
)

// BigLane returns the n-th lane for big tasks; n is taken modulo [BigLanes].
func BigLane(n uint64) Lane { return Lane("b" + strconv.FormatUint(n%BigLanes, 10)) }

// Lanes returns every lane, the small one first.
func Lanes() []Lane {
	lanes := []Lane{LaneSmall}
	for n := range uint64(BigLanes) {
		lanes = append(lanes, BigLane(n))
	}
	return lanes
}

// Task is the accepted, stored, queryable execution of one submission.
type Task struct {
	ID     TaskID
	Number Number
	State  TaskState
	Lane   Lane
	Items  int
	Chunks int
	// Counts has one entry per item state; they add up to Items, always.
	Counts Counts

	CreatedAt  time.Time // acceptance, the store's clock
	Deadline   time.Time // when items without a result fail
	FinishedAt time.Time // zero while open
	ExpiresAt  time.Time // when the store forgets the task

	// Dispatched is true once all chunks are known to be queued.
	Dispatched bool
	// NotifyPending is true from the task's end until its caller was notified.
	NotifyPending bool
	// EventPublished is true once the finished event was published and
	// audited: while NotifyPending, only the callback is left.
	EventPublished bool
	// RejectReason says why State is TaskRejected.
	RejectReason string

	Actions     []Action // distinct
	Dialect     string
	Application string
	Business    string
	Callback    string
	Origin      Origin
	// Trace is the W3C traceparent under which the task was accepted, so that
	// later work on the task, however late, continues this trace; empty without
	// one.
	Trace string
}

// Origin describes the caller of a task in the audit log, beside the
// application. Each part may be empty, and has at most [MaxOriginPart] bytes.
type Origin struct {
	User    string `json:"u,omitempty"` // for whom the application called
	Address string `json:"a,omitempty"` // of the connection; empty for a published submission
	Request string `json:"r,omitempty"` // id of the request, as the logs have it
}

// MaxOriginPart bounds each part of an [Origin] in bytes.
const MaxOriginPart = 128

// Counts is the number of items in each state.
type Counts map[State]int

// Open is the number of items without a final result.
func (c Counts) Open() int { return c[StatePending] + c[StateDelivered] }

// Total is the number of items.
func (c Counts) Total() int {
	n := 0
	for _, v := range c {
		n += v
	}
	return n
}

// Failed is the number of items without the requested outcome: failed, unreachable, timed out, cancelled or rejected.
func (c Counts) Failed() int {
	n := 0
	for _, s := range States() {
		if s.Failure() {
			n += c[s]
		}
	}
	return n
}
