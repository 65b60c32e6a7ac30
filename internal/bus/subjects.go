package bus

import (
	"context"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
)

// hintSubject returns the subject of the hints about a task, which no stream captures.
//
//	procfleet.progress.1795239322123456
func hintSubject(n procfleet.Number) string {
	return "procfleet.progress." + strconv.FormatInt(int64(n), 10)
}

// hostEventSubject returns the subject to which workers publish verified host
// events of a cloud area. Agents must not publish to it.
//
//	procfleet.hostevent.0
func hostEventSubject(cloud procfleet.CloudArea) string {
	return "procfleet.hostevent." + strconv.FormatInt(int64(cloud), 10)
}

const hostEventsAll = "procfleet.hostevent.*"

// Lanes of results: one for small tasks, one for all other tasks.
const (
	ResultsSmall = "s"
	ResultsBig   = "b"
)

// ResultLane returns the lane for the results of a task in the given lane: "s" or
// "b".
func ResultLane(l procfleet.Lane) string {
	if l == procfleet.LaneSmall {
		return ResultsSmall
	}
	return ResultsBig
}

// opsSubject returns the subject to which the chunks of a lane and cloud area are queued.
//
//	procfleet.op.s.0
func opsSubject(lane procfleet.Lane, cloud procfleet.CloudArea) string {
	return "procfleet.op." + string(lane) + "." + strconv.FormatInt(int64(cloud), 10)
}

// opsAll matches the subjects of all chunks.
const opsAll = "procfleet.op.*.*"

// opsOfLane matches the subjects of a lane's chunks in all cloud areas.
//
//	procfleet.op.s.*
func opsOfLane(lane procfleet.Lane) string { return "procfleet.op." + string(lane) + ".*" }

func deliverName(lane procfleet.Lane) string { return "deliver-" + string(lane) }

// QuietestLane returns the lane for big tasks with the fewest chunks in the queue,
// including chunks in delivery. Among equal lanes it returns the first from
// BigLane(turn) on.
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

func laneOf(subject string) procfleet.Lane {
	lane, _, _ := strings.Cut(strings.TrimPrefix(subject, "procfleet.op."), ".")
	return procfleet.Lane(lane)
}
