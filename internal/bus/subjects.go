package bus

import (
	"context"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

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

// QuietestLane returns the lane for big tasks with the fewest chunks waiting or
// in delivery; of several, the first from the turn-th on. Two calls with the same
// turn return the same lane if nothing was queued in between.
func (b *Bus) QuietestLane(ctx context.Context, turn uint64) (procfleet.Lane, error) {
	const doing = "find the quietest lane"
	stream, err := b.js.Stream(ctx, StreamOps)
	if err != nil {
		return "", publishError(doing, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(opsAll))
	if err != nil {
		return "", publishError(doing, err)
	}
	waiting := make(map[procfleet.Lane]uint64, procfleet.BigLanes)
	for subject, n := range info.State.Subjects {
		waiting[laneOf(subject)] += n
	}
	best := procfleet.BigLane(turn)
	for n := turn + 1; n < turn+procfleet.BigLanes; n++ {
		if lane := procfleet.BigLane(n); waiting[lane] < waiting[best] {
			best = lane
		}
	}
	return best, nil
}

// laneOf is the lane of a subject that [opsSubject] made.
func laneOf(subject string) procfleet.Lane {
	lane, _, _ := strings.Cut(strings.TrimPrefix(subject, "procfleet.op."), ".")
	return procfleet.Lane(lane)
}
