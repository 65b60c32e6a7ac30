package bus

import (
	"strconv"

	"github.com/procfleet/procfleet"
)

// SubjectFinished is where the end of a task is published.
const SubjectFinished = "procfleet.task.finished"

// hintSubject is where workers hint that a task changed. No stream captures it.
//
//	procfleet.progress.1795239322123456
func hintSubject(n procfleet.Number) string {
	return "procfleet.progress." + strconv.FormatInt(int64(n), 10)
}

// hostEventSubject is where workers publish the events of a cloud area's hosts
// that they have verified. Agents must not publish there.
//
//	procfleet.hostevent.0
func hostEventSubject(cloud procfleet.CloudArea) string {
	return "procfleet.hostevent." + strconv.FormatInt(int64(cloud), 10)
}

const hostEventsAll = "procfleet.hostevent.*"

// Lanes of results: one for small tasks, one for all the others.
const (
	ResultsSmall = "s"
	ResultsBig   = "b"
)

// ResultLane returns the lane, "s" or "b", in which the results of a task in
// the given lane travel.
func ResultLane(l procfleet.Lane) string {
	if l == procfleet.LaneSmall {
		return ResultsSmall
	}
	return ResultsBig
}

// opsSubject is where a chunk is queued.
//
//	procfleet.op.s.0
func opsSubject(lane procfleet.Lane, cloud procfleet.CloudArea) string {
	return "procfleet.op." + string(lane) + "." + strconv.FormatInt(int64(cloud), 10)
}

// opsAll matches every chunk.
const opsAll = "procfleet.op.*.*"

// opsOfLane matches a lane's chunks in every cloud area.
//
//	procfleet.op.s.*
func opsOfLane(lane procfleet.Lane) string { return "procfleet.op." + string(lane) + ".*" }

func deliverName(lane procfleet.Lane) string { return "deliver-" + string(lane) }
