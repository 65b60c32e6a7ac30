package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/agentproto"
)

// This file serves the release before, whose agents published results and events
// to streams. It goes with the next release, as worker/olderagents.go does.

// StreamOldResults is the stream to which agents of the release before publish
// results.
const StreamOldResults = "PROCFLEET_RESULTS"

// drainedSubject takes the place of the subjects of [StreamOldResults]: a stream
// has to have one.
const drainedSubject = "procfleet.drained.results"

// DetachOldStreams has agents' results and events go to workers alone. It
// returns the consumers of [StreamOldResults], none if that does not exist. A
// dispatcher of the release before attaches both streams again when it starts.
func (b *Bus) DetachOldStreams(ctx context.Context) ([]jetstream.Consumer, error) {
	if _, err := b.attach(ctx, StreamHostEvents, hostEventsAll); err != nil {
		return nil, err
	}
	if found, err := b.attach(ctx, StreamOldResults, drainedSubject); err != nil || !found {
		return nil, err
	}
	var consumers []jetstream.Consumer
	for _, lane := range []string{ResultsSmall, ResultsBig} {
		consumer, err := b.consumer(ctx, StreamOldResults, "collect-"+lane)
		if err != nil {
			return nil, err
		}
		consumers = append(consumers, consumer)
	}
	return consumers, nil
}

// attach has a stream, if it exists, take the messages of one subject only.
func (b *Bus) attach(ctx context.Context, stream, subject string) (found bool, err error) {
	s, err := b.js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, nil
	}
	if err == nil {
		if cfg := s.CachedInfo().Config; !slices.Equal(cfg.Subjects, []string{subject}) {
			cfg.Subjects = []string{subject}
			_, err = b.js.UpdateStream(ctx, cfg)
		}
	}
	if err != nil {
		return false, publishError(fmt.Sprintf("attach stream %s to %s", stream, subject), err)
	}
	return true, nil
}

// RemoveOldResults removes [StreamOldResults] if it is detached and empty, and
// reports whether it did.
func (b *Bus) RemoveOldResults(ctx context.Context) (removed bool, err error) {
	s, err := b.js.Stream(ctx, StreamOldResults)
	if err == nil {
		info := s.CachedInfo()
		if info.State.Msgs > 0 || !slices.Equal(info.Config.Subjects, []string{drainedSubject}) {
			return false, nil
		}
		err = b.js.DeleteStream(ctx, StreamOldResults)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, nil // another worker removed it
	}
	if err != nil {
		return false, publishError("remove stream "+StreamOldResults, err)
	}
	return true, nil
}

// OldStreamOf returns the stream to which agents of the release before published
// a message of the given type.
func OldStreamOf(messageType string) string {
	if messageType == agentproto.TypeEvent {
		return StreamHostEvents
	}
	return StreamOldResults
}
