package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/agentproto"
)

// This file serves agents of the previous release, which publish results and
// events to streams. Remove it in the next release, with worker/collect/olderagents.go.

// StreamOldResults is the stream to which agents of the previous release publish
// results.
const StreamOldResults = "PROCFLEET_RESULTS"

// drainedSubject replaces the subjects of a detached [StreamOldResults], because a
// stream must have a subject.
const drainedSubject = "procfleet.drained.results"

// DetachOldStreams stops the streams from capturing agents' results and events, so
// that only workers receive them. It returns the consumers of [StreamOldResults],
// or none if that stream does not exist. A dispatcher of the previous release
// attaches both streams again when it starts.
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

// attach sets the subject of a stream and reports whether the stream exists.
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

// RemoveOldResults deletes [StreamOldResults] if it is detached and empty, and
// reports whether it was deleted.
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
		return false, nil // another worker deleted the stream
	}
	if err != nil {
		return false, publishError("remove stream "+StreamOldResults, err)
	}
	return true, nil
}

// OldStreamOf returns the stream to which agents of the previous release publish
// messages of the given type.
func OldStreamOf(messageType string) string {
	if messageType == agentproto.TypeEvent {
		return StreamHostEvents
	}
	return StreamOldResults
}
