// Package bus manages the JetStream streams of dispatchers and workers: references
// to chunks that wait for delivery, task events, host events, and the audit log.
//
// A message of [StreamOps] contains only a reference to a chunk; the items are in
// the task store. So the stream stays small, the sweep can requeue a chunk from
// the task store, and a client with access to the bus cannot alter commands.
//
// Two more streams hold submissions: operations that producers publish instead of
// sending an HTTP request, and the submissions that failed.
//
// The bus never drops work silently: work queues reject new messages when full
// ([ErrFull]) and retain messages without an age limit. Hints that a task changed
// ([Bus.Hint]) may be lost: they are sent outside the streams and only shorten the
// polling delay of a task's watchers.
package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// Errors of the methods that publish.
var (
	// ErrFull means that the stream is full; consumers must process its messages
	// first.
	ErrFull = errors.New("bus: stream is full")
	// ErrUnavailable means that JetStream did not acknowledge in time; the message
	// may or may not have been stored.
	ErrUnavailable = errors.New("bus: JetStream does not answer")
)

// Bus publishes to and reads from the streams that [Ensure] creates. It is safe
// for concurrent use.
type Bus struct {
	js    jetstream.JetStream
	hints listener
	keys  func() *fleetkey.Ring

	eventReaders chan struct{} // semaphore for concurrent reads of event pages
}

// New returns a bus on js. js must have a timeout for asynchronous publishes, as
// [JetStream] sets it.
func New(js jetstream.JetStream) *Bus {
	return &Bus{js: js, hints: listener{conn: js.Conn()}, eventReaders: make(chan struct{}, eventReaders), keys: func() *fleetkey.Ring { return nil }}
}

// Use makes the bus sign messages to agents and verify messages from agents with
// the keys returned by keys. Without it no message is signed or verified. It must
// be called before any other method.
func (b *Bus) Use(keys func() *fleetkey.Ring) { b.keys = keys }

// ChunkRef identifies a chunk that is queued for delivery.
type ChunkRef struct {
	Task  procfleet.TaskID    `json:"task"`
	Chunk int                 `json:"chunk"`
	Lane  procfleet.Lane      `json:"lane"`
	Cloud procfleet.CloudArea `json:"cloud"`
	// Upto selects the items of the grant of a rollout with this end; 0 selects all items.
	Upto int `json:"upto,omitempty"`
	// Granted is the time of the grant in microseconds: a grant that a fail-over of the store
	// lost is made again, and the stream must not drop it.
	Granted int64 `json:"granted,omitempty"`
	// Cancels: carry out the cancels of items of the chunk, and deliver nothing.
	Cancels bool `json:"cancels,omitempty"`
	// Advances: move the rollout of the task on, and deliver nothing.
	Advances bool `json:"advances,omitempty"`
}

// PublishChunks queues chunks and waits until all are acknowledged: sequences[i]
// is the stream sequence of refs[i]. The stream drops a repeat with the same
// round: use "0" at acceptance and a new round to queue a chunk again. An error,
// which may wrap [ErrFull] or [ErrUnavailable], means that some chunks may not be
// queued. The messages contain the trace of ctx.
func (b *Bus) PublishChunks(ctx context.Context, refs []ChunkRef, round string) (sequences []uint64, err error) {
	futures := make([]jetstream.PubAckFuture, len(refs))
	for i, ref := range refs {
		msg, err := ref.message(ctx, round)
		if err != nil {
			return nil, err
		}
		if futures[i], err = b.js.PublishMsgAsync(msg, jetstream.WithStallWait(stallWait)); err != nil {
			return nil, publishError("queue chunks", err)
		}
	}
	sequences = make([]uint64, len(refs))
	for i, future := range futures {
		if sequences[i], err = b.acknowledged(ctx, future); err != nil {
			return nil, publishError("queue chunks", err)
		}
	}
	return sequences, nil
}

// acknowledged waits for the stream sequence of a published message. While the
// replicas have not agreed on an earlier message with the same id, the stream
// rejects this one, so acknowledged publishes it again.
func (b *Bus) acknowledged(ctx context.Context, future jetstream.PubAckFuture) (sequence uint64, err error) {
	const pause, tries = 20 * time.Millisecond, 50
	for range tries {
		if sequence, err = acknowledgment(ctx, future); !hasCode(err, codeDuplicateInProcess) {
			return sequence, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		if future, err = b.js.PublishMsgAsync(future.Msg()); err != nil {
			return 0, err
		}
	}
	return acknowledgment(ctx, future)
}

func acknowledgment(ctx context.Context, future jetstream.PubAckFuture) (sequence uint64, err error) {
	select {
	case ack := <-future.Ok():
		return ack.Sequence, nil
	case err := <-future.Err():
		return 0, err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// CancelRound returns the round in which the chunks of a canceled task, or the cancels of its
// items, are queued.
func CancelRound(task *procfleet.Task) string { return "cancel-" + strconv.Itoa(task.Seq) }

// GrantRound returns the round in which the grants of a rollout are queued: the stream drops a
// repeat, unless the task was controlled since.
func GrantRound(task *procfleet.Task) string { return "grant-" + strconv.Itoa(task.Seq) }

func (r ChunkRef) message(ctx context.Context, round string) (*nats.Msg, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode chunk reference: %w", err)
	}
	msg := &nats.Msg{Subject: opsSubject(r.Lane, r.Cloud), Data: data, Header: nats.Header{}}
	switch {
	case r.Cancels:
		round += "/cancels"
	case r.Advances:
		round += "/advances"
	case r.Upto > 0:
		round += "/" + strconv.Itoa(r.Upto) + "/" + strconv.FormatInt(r.Granted, 10)
	}
	msg.Header.Set(jetstream.MsgIDHeader, string(r.Task)+"/"+strconv.Itoa(r.Chunk)+"/"+round)
	tracecontext.Inject(ctx, msg.Header)
	return msg, nil
}

// stallWait is how long a publish blocks while the number of unacknowledged
// messages is at its limit. A single task of very many chunks reaches the limit.
const stallWait = 5 * time.Second

const maxChunkRef = 1 << 10 // bytes; a reference has about 90

// DecodeChunkRef decodes a message of [StreamOps]. It never panics.
func DecodeChunkRef(data []byte) (ChunkRef, error) {
	if len(data) > maxChunkRef {
		return ChunkRef{}, fmt.Errorf("bus: chunk reference of %d bytes is over the limit of %d", len(data), maxChunkRef)
	}
	var ref ChunkRef
	if err := json.Unmarshal(data, &ref); err != nil {
		return ChunkRef{}, fmt.Errorf("bus: chunk reference: %w", err)
	}
	if _, err := procfleet.ParseTaskID(string(ref.Task)); err != nil {
		return ChunkRef{}, fmt.Errorf("bus: chunk reference: %w", err)
	}
	switch {
	case ref.Chunk < 0:
		return ChunkRef{}, fmt.Errorf("bus: chunk reference: chunk %d is negative", ref.Chunk)
	case ref.Upto < 0:
		return ChunkRef{}, fmt.Errorf("bus: chunk reference: end of items %d is negative", ref.Upto)
	case ref.Cloud < 0:
		return ChunkRef{}, fmt.Errorf("bus: chunk reference: cloud area %d is negative", ref.Cloud)
	case !slices.Contains(procfleet.Lanes(), ref.Lane):
		return ChunkRef{}, fmt.Errorf("bus: chunk reference: unknown lane %q", ref.Lane)
	}
	return ref, nil
}

// Queued reports for each sequence whether [StreamOps] still holds its message.
// After the stream was lost and recreated, a sequence may belong to another chunk
// for a while; the caller must check again later. Queued sends one request, and
// another for each sequence not below the stream's first.
func (b *Bus) Queued(ctx context.Context, sequences []uint64) ([]bool, error) {
	stream, err := b.js.Stream(ctx, StreamOps)
	if err != nil {
		return nil, publishError("read "+StreamOps, err)
	}
	queued, oldest := make([]bool, len(sequences)), stream.CachedInfo().State.FirstSeq
	for i, sequence := range sequences {
		if sequence < max(oldest, 1) {
			continue
		}
		_, err := stream.GetMsg(ctx, sequence)
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, publishError("read "+StreamOps, err)
		}
		queued[i] = err == nil
	}
	return queued, nil
}

// DeliverConsumer returns the consumer of the chunk references in a lane.
func (b *Bus) DeliverConsumer(ctx context.Context, lane procfleet.Lane) (jetstream.Consumer, error) {
	return b.consumer(ctx, StreamOps, deliverName(lane))
}

func (b *Bus) consumer(ctx context.Context, stream, name string) (jetstream.Consumer, error) {
	consumer, err := b.js.Consumer(ctx, stream, name)
	if err != nil {
		return nil, fmt.Errorf("open consumer %s of stream %s: %w", name, stream, err)
	}
	return consumer, nil
}

func publishError(doing string, err error) error {
	switch {
	case isFull(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrFull, err)
	case isUnavailable(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// JetStream error codes for a full stream or exhausted storage.
const (
	codeAccountResources jetstream.ErrorCode = 10002
	codeNoResources      jetstream.ErrorCode = 10023
	codeNoMemory         jetstream.ErrorCode = 10028
	codeNoStorage        jetstream.ErrorCode = 10047
	codeStoreFailed      jetstream.ErrorCode = 10077
	codeStreamTooBig     jetstream.ErrorCode = 10122 // larger than the account allows for one stream
	codeMaxConsumers     jetstream.ErrorCode = 10026
	codeMaxStreams       jetstream.ErrorCode = 10027
)

// JetStream error codes for an unavailable server.
const (
	codeNoPeers            jetstream.ErrorCode = 10005 // too few cluster servers are up for the replicas
	codeDuplicateInProcess jetstream.ErrorCode = 10158
)

func isFull(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.ErrorCode == codeStoreFailed {
		// The store reports every failure with one code; only the text identifies limits.
		return strings.HasPrefix(api.Description, "maximum ")
	}
	return hasCode(err, codeAccountResources, codeNoResources, codeNoMemory, codeNoStorage, codeStreamTooBig)
}

func hasCode(err error, codes ...jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && slices.Contains(codes, api.ErrorCode)
}

func isUnavailable(err error) bool {
	api, isAPI := errors.AsType[*jetstream.APIError](err)
	return isAPI && api.Code == 503 || // JetStream has no leader or is restarting
		hasCode(err, codeNoPeers, codeDuplicateInProcess) ||
		slices.ContainsFunc(unavailable, func(target error) bool { return errors.Is(err, target) })
}

var unavailable = []error{
	context.DeadlineExceeded, context.Canceled,
	nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionClosed,
	nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, nats.ErrConnectionDraining,
	jetstream.ErrNoStreamResponse, jetstream.ErrAsyncPublishTimeout, jetstream.ErrTooManyStalledMsgs,
	jetstream.ErrJetStreamNotEnabled, jetstream.ErrStreamNotFound,
}
