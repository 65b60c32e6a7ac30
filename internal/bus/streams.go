package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
)

// Names of the streams, with the subjects that they capture.
const (
	StreamOps    = "PROCFLEET_OPS"    // procfleet.op.<lane>.<cloud>
	StreamEvents = "PROCFLEET_EVENTS" // procfleet.task.>; also the audit log's ends of tasks

	StreamHostEvents = "PROCFLEET_HOST_EVENTS" // procfleet.hostevent.<cloud>

	StreamAudit = "PROCFLEET_AUDIT" // procfleet.audit.<event>

	StreamSubmit       = "PROCFLEET_SUBMIT"        // procfleet.submit
	StreamSubmitFailed = "PROCFLEET_SUBMIT_FAILED" // procfleet.submit.failed
	StreamSubmitTrials = "PROCFLEET_SUBMIT_TRIALS" // procfleet.submit.trial.*.*
)

const (
	// Default sizes of streams. A JetStream with less storage gets a part of them, down
	// to 4, 1, 1 and 1 MiB, and 1 MiB or less for submissions.
	opsBytes    = 1 << 30
	eventsBytes = 256 << 20 // StreamEvents, StreamHostEvents and StreamAudit each
	submitBytes = 256 << 20
	failedBytes = 128 << 20
	trialsBytes = 16 << 20
	// smallestShare divides the default sizes for the smallest usable JetStream.
	smallestShare = 256

	defaultAckWait = 10 * time.Second
	hostEventsAge  = 7 * 24 * time.Hour
	auditAge       = 30 * 24 * time.Hour
	opsDuplicates  = 2 * time.Minute
	// noDuplicates is the shortest duplicate window that a server accepts.
	noDuplicates = 100 * time.Millisecond
)

// Options configure the streams.
type Options struct {
	// Replicas of each stream and consumer. By default, an existing stream stays
	// unchanged, and a new stream has as many as the existing streams, or else 1.
	Replicas int
	// AckWait is how long a consumer may process a message without a progress
	// acknowledgement before the message is redelivered; default 10 s.
	AckWait time.Duration
}

// Ensure creates or updates the streams and their durable consumers. It is
// idempotent and may run in several processes at once. The error wraps
// [ErrUnavailable] if a retry may succeed. If JetStream allows too little storage,
// the error names the required amount.
func Ensure(ctx context.Context, js jetstream.JetStream, o Options) error {
	err := ensureAll(ctx, js, o)
	switch {
	case err == nil:
		return nil
	case isFull(err), hasCode(err, codeMaxStreams, codeMaxConsumers):
		return fmt.Errorf("prepare the bus: %w: %s", err, leastStorage)
	}
	return publishError("prepare the bus", err)
}

// leastStorage is the storage requirement with the default sizes divided by
// smallestShare.
const leastStorage = "the NATS account, and its server, must allow 7 streams, 9 consumers for each, and 9 MiB for each replica of the streams together"

func ensureAll(ctx context.Context, js jetstream.JetStream, o Options) error {
	if err := checkServer(ctx, js); err != nil {
		return err
	}
	err := ensureStreams(ctx, js, o, 1)
	for share := int64(2); isFull(err) && share <= smallestShare; share *= 2 {
		err = ensureStreams(ctx, js, o, share)
	}
	if err != nil {
		return err
	}
	for _, lane := range procfleet.Lanes() {
		if err := ensureConsumer(ctx, js, StreamOps, deliverName(lane), opsOfLane(lane), o); err != nil {
			return err
		}
	}
	return ensureConsumer(ctx, js, StreamSubmit, submitConsumer, subjectSubmit, o)
}

// ensureStreams creates or updates each stream. A new stream gets its default size
// divided by share.
func ensureStreams(ctx context.Context, js jetstream.JetStream, o Options, share int64) error {
	for _, cfg := range append(streams(), submissionStreams(js.Conn().MaxPayload())...) {
		cfg.Replicas = o.Replicas
		if err := ensureStream(ctx, js, cfg, share); err != nil {
			return fmt.Errorf("prepare stream %s: %w", cfg.Name, err)
		}
	}
	return nil
}

func streams() []jetstream.StreamConfig {
	return []jetstream.StreamConfig{{
		Name: StreamOps, Subjects: []string{opsAll}, MaxBytes: opsBytes,
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		Duplicates: opsDuplicates,
	}, {
		Name: StreamEvents, Subjects: []string{tasksAll}, MaxBytes: eventsBytes,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: auditAge, // retained as long as the audit log
		Duplicates: opsDuplicates,
	}, {
		Name: StreamHostEvents, Subjects: []string{hostEventsAll}, MaxBytes: eventsBytes, MaxMsgSize: maxEventMessage + eventHeaders,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: hostEventsAge,
		Duplicates: opsDuplicates,
	}, {
		Name: StreamAudit, Subjects: []string{auditAll}, MaxBytes: eventsBytes, MaxMsgSize: maxAuditMessage,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: auditAge,
		Duplicates: opsDuplicates,
	}}
}

// ensureStream creates or updates a stream. If another process created it with a
// different size meanwhile, that size remains.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, share int64) error {
	for {
		existing, err := js.Stream(ctx, want.Name)
		switch {
		case err == nil:
			return updateStream(ctx, js, existing.CachedInfo(), want, share)
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return err
		}
		fresh := want
		forbidRemoval(&fresh)
		if want.Replicas == 0 {
			if fresh.Replicas, err = mostReplicas(ctx, js); err != nil {
				return err
			}
		}
		fresh.MaxBytes = want.MaxBytes / share
		if err := checkSize(&fresh); err != nil {
			return err
		}
		_, err = js.CreateStream(ctx, fresh)
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
	}
}

// mostReplicas returns the highest number of replicas among existing streams, so
// that a missing stream becomes as durable as the others.
func mostReplicas(ctx context.Context, js jetstream.JetStream) (int, error) {
	most := 1
	for _, cfg := range append(streams(), submissionStreams(0)...) {
		stream, err := js.Stream(ctx, cfg.Name)
		switch {
		case err == nil:
			most = max(most, stream.CachedInfo().Config.Replicas)
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return 0, err
		}
	}
	return most, nil
}

func updateStream(ctx context.Context, js jetstream.JetStream, have *jetstream.StreamInfo, want jetstream.StreamConfig, share int64) error {
	next := have.Config // preserves the operator's placement, compression and description
	if next.Retention != want.Retention || next.Storage != want.Storage {
		return fmt.Errorf("a stream of this name exists and is not procfleet's own (retention %v, storage %v; need %v, %v): remove it, or connect procfleet to another NATS account",
			next.Retention, next.Storage, want.Retention, want.Storage)
	}
	forbidRemoval(&next)
	next.Subjects, next.Discard, next.MaxAge = want.Subjects, want.Discard, want.MaxAge
	next.Duplicates = want.Duplicates
	if want.MaxMsgSize > 0 {
		next.MaxMsgSize = want.MaxMsgSize
	}
	next.Replicas = cmp.Or(want.Replicas, next.Replicas)
	if share > 1 && have.State.Msgs == 0 { // shrinking a stream would drop its messages
		next.MaxBytes = min(next.MaxBytes, want.MaxBytes/share)
	}
	if err := checkSize(&next); err != nil {
		return err
	}
	_, err := js.UpdateStream(ctx, next)
	return err
}

// forbidRemoval makes JetStream reject requests to delete or purge messages: a
// message leaves a stream by acknowledgement, age or size only. [Trial.End] purges
// notes on trials.
func forbidRemoval(cfg *jetstream.StreamConfig) {
	cfg.DenyDelete = true
	cfg.DenyPurge = cfg.Name != StreamSubmitTrials
}

// leastAuditBytes is the maximum size of a stored audit record.
const leastAuditBytes = maxAuditMessage + 1<<10

// checkSize rejects a stream size that is too small for one audit record or event:
// the stream would acknowledge the record and delete it at once.
func checkSize(cfg *jetstream.StreamConfig) error {
	if (cfg.Name == StreamAudit || cfg.Name == StreamEvents) && cfg.MaxBytes > 0 && cfg.MaxBytes < leastAuditBytes {
		return fmt.Errorf("its size (max_bytes) is %d bytes, and one message may have more; give it at least %d", cfg.MaxBytes, leastAuditBytes)
	}
	return nil
}

func ensureConsumer(ctx context.Context, js jetstream.JetStream, stream, name, filter string, o Options) error {
	cfg := jetstream.ConsumerConfig{
		Durable:       name,
		FilterSubject: filter,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       cmp.Or(o.AckWait, defaultAckWait),
		MaxDeliver:    -1, // workers isolate and log messages that fail repeatedly
		// Unlimited: workers limit what they pull, and parked chunks must not
		// block other chunks.
		MaxAckPending: -1,
	}
	if stream == StreamSubmit {
		cfg.MaxAckPending = submitAckPending
	}
	if _, err := js.CreateOrUpdateConsumer(ctx, stream, cfg); err != nil {
		return fmt.Errorf("prepare consumer %s of stream %s: %w", name, stream, err)
	}
	return nil
}
