package bus

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
)

// QuietestLane returns the lane for big tasks in which the fewest chunks wait
// or are being delivered; of several, the first from the turn-th on. Two calls
// that nothing was queued in between answer alike for the same turn.
func (b *Bus) QuietestLane(ctx context.Context, turn uint64) (procfleet.Lane, error) {
	const doing = "look for the quietest lane"
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
