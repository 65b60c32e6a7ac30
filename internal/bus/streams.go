package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
)

// The streams.
const (
	StreamOps     = "PROCFLEET_OPS"     // procfleet.op.<lane>.<cloud>
	StreamResults = "PROCFLEET_RESULTS" // procfleet.result.<s|b>.<cloud>
	StreamEvents  = "PROCFLEET_EVENTS"  // procfleet.task.>
)

const (
	defaultOpsBytes     = 1 << 30
	defaultResultsBytes = 4 << 30
	defaultEventsBytes  = 256 << 20
	// leastBytes is the smallest stream that a small JetStream account is
	// asked for before giving up.
	leastBytes = 1 << 20

	defaultAckWait = 10 * time.Second
	eventsAge      = 7 * 24 * time.Hour
	opsDuplicates  = 2 * time.Minute
	// noDuplicates is the least window that a server takes. Results carry no
	// message id: the store tells repeats apart, however late.
	noDuplicates = 100 * time.Millisecond
)

// Options of the streams. A zero field keeps what an existing stream has and
// gives a new one the default.
type Options struct {
	// Replicas of each stream and consumer; default 1.
	Replicas int
	// Sizes in bytes; default 1 GiB, 4 GiB and 256 MiB, halved as often as a
	// smaller JetStream account makes necessary.
	OpsMaxBytes, ResultsMaxBytes, EventsMaxBytes int64
	// AckWait is how long a consumer may work on a message without a sign of
	// progress before another gets it; default 10 s.
	AckWait time.Duration
}

// Ensure creates or updates the streams and their durable consumers. It may
// run in many processes at once and may be repeated.
func Ensure(ctx context.Context, js jetstream.JetStream, o Options) error {
	for _, cfg := range streams(o) {
		if err := ensureStream(ctx, js, cfg); err != nil {
			return fmt.Errorf("prepare stream %s: %w", cfg.Name, err)
		}
	}
	for _, lane := range procfleet.Lanes() {
		if err := ensureConsumer(ctx, js, StreamOps, deliverName(lane), opsOfLane(lane), o); err != nil {
			return err
		}
	}
	for _, lane := range []string{resultsSmall, resultsBig} {
		if err := ensureConsumer(ctx, js, StreamResults, collectName(lane), agentproto.ResultsOfLane(lane), o); err != nil {
			return err
		}
	}
	return nil
}

func streams(o Options) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{{
		Name: StreamOps, Subjects: []string{"procfleet.op.*.*"}, MaxBytes: o.OpsMaxBytes,
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		Duplicates: opsDuplicates, Replicas: o.Replicas,
	}, {
		Name: StreamResults, Subjects: []string{"procfleet.result.*.*"}, MaxBytes: o.ResultsMaxBytes,
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		Duplicates: noDuplicates, Replicas: o.Replicas,
	}, {
		Name: StreamEvents, Subjects: []string{"procfleet.task.>"}, MaxBytes: o.EventsMaxBytes,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: eventsAge,
		Duplicates: opsDuplicates, Replicas: o.Replicas,
	}}
}

// ensureStream looks again when another process created the stream meanwhile
// with another size; then that size counts.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	for {
		existing, err := js.Stream(ctx, want.Name)
		switch {
		case err == nil:
			return updateStream(ctx, js, existing.CachedInfo().Config, want)
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return err
		}
		err = createStream(ctx, js, want)
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
	}
}

func updateStream(ctx context.Context, js jetstream.JetStream, have, want jetstream.StreamConfig) error {
	if have.Retention != want.Retention || have.Storage != want.Storage {
		return fmt.Errorf("there is a stream of this name that is not procfleet's own (retention %v, storage %v; need %v, %v): remove it, or connect procfleet to another NATS account",
			have.Retention, have.Storage, want.Retention, want.Storage)
	}
	next := have // keeps what an operator tuned: placement, compression, description
	next.Subjects, next.Discard, next.MaxAge = want.Subjects, want.Discard, want.MaxAge
	next.Duplicates = want.Duplicates
	next.MaxBytes = cmp.Or(want.MaxBytes, have.MaxBytes)
	next.Replicas = cmp.Or(want.Replicas, have.Replicas)
	_, err := js.UpdateStream(ctx, next)
	return err
}

func createStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	want.Replicas = cmp.Or(want.Replicas, 1)
	given := want.MaxBytes != 0
	want.MaxBytes = cmp.Or(want.MaxBytes, defaultBytes(want.Name))
	for {
		_, err := js.CreateStream(ctx, want)
		if given || want.MaxBytes/2 < leastBytes || !isFull(err) {
			return err
		}
		want.MaxBytes /= 2
	}
}

func defaultBytes(stream string) int64 {
	switch stream {
	case StreamOps:
		return defaultOpsBytes
	case StreamResults:
		return defaultResultsBytes
	default:
		return defaultEventsBytes
	}
}

func ensureConsumer(ctx context.Context, js jetstream.JetStream, stream, name, filter string, o Options) error {
	cfg := jetstream.ConsumerConfig{
		Durable:       name,
		FilterSubject: filter,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       cmp.Or(o.AckWait, defaultAckWait),
		MaxDeliver:    -1, // workers isolate what fails again and again, and tell
		// Unlimited: what workers hold is bounded by what they pull, and
		// chunks that step aside must not stop the others.
		MaxAckPending: -1,
	}
	if _, err := js.CreateOrUpdateConsumer(ctx, stream, cfg); err != nil {
		return fmt.Errorf("prepare consumer %s of stream %s: %w", name, stream, err)
	}
	return nil
}
