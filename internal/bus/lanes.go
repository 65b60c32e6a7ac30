package bus

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
)

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
