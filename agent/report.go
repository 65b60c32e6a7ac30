package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// Bounds of one message of results.
const (
	resultsPerMessage = 256
	resultsBytes      = 512 << 10
)

// publishTimeout bounds the wait for the stream's acknowledgement.
const publishTimeout = 5 * time.Second

// reporter publishes results until the stream has acknowledged them. Only
// their names wait in memory, the results wait in the journal, so that a
// stream that is away for long costs little.
type reporter struct {
	stream  publisher
	journal *journal.Journal
	clock   *clock
	self    identity
	crash   func(point string)
	log     logrus.FieldLogger

	added   chan struct{} // holds a token when something was queued
	retries backOff       // run's and flush's own

	mu     sync.Mutex
	groups map[groupKey][]journal.ID
	order  []groupKey // each key of groups once, the next to publish first
	queued map[journal.ID]struct{}
}

// publisher is the part of JetStream that a reporter uses.
type publisher interface {
	PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error)
}

// groupKey tells which results may travel in one message.
type groupKey struct{ task, lane, trace string }

func newReporter(stream publisher, j *journal.Journal, c *clock, self identity, cfg *Config) *reporter {
	return &reporter{
		stream: stream, journal: j, clock: c, self: self, crash: cfg.Crash, log: cfg.Log,
		added: make(chan struct{}, 1), retries: newBackOff(),
		groups: map[groupKey][]journal.ID{}, queued: map[journal.ID]struct{}{},
	}
}

// add queues the result of an operation that the journal knows as finished.
// It does not block; what is queued already stays once.
func (r *reporter) add(id journal.ID, lane, trace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.queued[id]; ok {
		return
	}
	r.queued[id] = struct{}{}
	r.put(groupKey{task: id.Task, lane: lane, trace: trace}, id)
	signal(r.added)
}

func (r *reporter) put(key groupKey, ids ...journal.ID) {
	if len(r.groups[key]) == 0 {
		r.order = append(r.order, key)
	}
	r.groups[key] = append(r.groups[key], ids...)
}

// retryNow ends a pause after a failure, because the connection is back.
func (r *reporter) retryNow() { r.retries.end() }

// signal leaves a token in a channel that holds one.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// take removes the results of one message from the queue.
func (r *reporter) take() (groupKey, []journal.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.order) == 0 {
		return groupKey{}, nil
	}
	key := r.order[0]
	r.order = r.order[1:]
	ids := r.groups[key]
	delete(r.groups, key)
	n := min(len(ids), resultsPerMessage)
	if rest := ids[n:]; len(rest) > 0 {
		r.put(key, rest...)
	}
	return key, ids[:n:n]
}

// waiting is how many results are queued.
func (r *reporter) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queued)
}

// run publishes until ctx ends.
func (r *reporter) run(ctx context.Context) {
	for ctx.Err() == nil {
		if r.waiting() > 0 {
			r.publishNext(ctx)
			continue
		}
		select {
		case <-ctx.Done():
		case <-r.added:
		}
	}
}

// flush publishes what is queued; what is left when ctx ends is published by
// the next start. It must not run beside run.
func (r *reporter) flush(ctx context.Context) {
	for ctx.Err() == nil && r.waiting() > 0 {
		r.publishNext(ctx)
	}
}

// publishNext publishes one message and waits a while if that fails.
func (r *reporter) publishNext(ctx context.Context) {
	key, ids := r.take()
	sent, err := r.publish(ctx, key, ids)
	if err != nil {
		r.putBack(key, ids)
		r.backOff(ctx, err)
		return
	}
	r.putBack(key, ids[len(sent):])
	if r.retries.failures > 0 {
		r.retries.failures = 0
		r.log.Info("results are taken again")
	}
	r.crash(CrashAfterPublish)
	if err := r.journal.Acknowledge(sent); err != nil {
		// They are published again by the next start, which does no harm.
		r.log.WithError(err).WithField("task", key.task).Warn("acknowledgement was not written down")
	}
	r.forget(sent)
}

func (r *reporter) putBack(key groupKey, ids []journal.ID) {
	if len(ids) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(key, ids...)
}

func (r *reporter) forget(ids []journal.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.queued, id)
	}
}

// publish sends as many of ids, from the first on, as one message holds and
// returns them once the stream has them.
func (r *reporter) publish(ctx context.Context, key groupKey, ids []journal.ID) ([]journal.ID, error) {
	results, sent, err := r.collect(ids)
	if err != nil || len(results) == 0 {
		return sent, err
	}
	data, err := agentproto.Encode(&agentproto.Results{
		Header: newHeader(agentproto.TypeResults), Task: key.task, Host: r.self.host, Instance: r.self.instance, Results: results,
	})
	if err != nil {
		return nil, err
	}
	msg := nats.NewMsg(agentproto.ResultSubject(key.lane, r.self.cloud))
	msg.Data = data
	tracecontext.Inject(tracecontext.FromText(ctx, key.trace), msg.Header)
	r.self.sign(msg.Header, agentproto.TypeResults, "", data)
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if _, err := r.stream.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0)); err != nil {
		return nil, fmt.Errorf("publish %d results of task %s: %w", len(results), key.task, err)
	}
	return sent, nil
}

// collect reads results up to the size of a message, and returns them with
// the ids that they, and results that no longer exist, account for.
func (r *reporter) collect(ids []journal.ID) ([]agentproto.Result, []journal.ID, error) {
	found := r.journal.Results(ids)
	var results []agentproto.Result
	size := 0
	for i, id := range ids {
		result, ok := found[id]
		if !ok {
			continue
		}
		r.clock.correct(&result)
		data, err := json.Marshal(&result)
		if err != nil {
			return nil, nil, fmt.Errorf("encode result %s/%d: %w", id.Task, id.Item, err)
		}
		if size += len(data); size > resultsBytes && len(results) > 0 {
			return results, ids[:i], nil
		}
		results = append(results, result)
	}
	return results, ids, nil
}

// backOff waits after a failure.
func (r *reporter) backOff(ctx context.Context, cause error) {
	if ctx.Err() != nil {
		return
	}
	entry := r.log.WithError(cause).WithField("waiting", r.waiting())
	if r.retries.failures == 0 {
		entry.Warn("results are not taken, trying again until they are")
	} else {
		entry.Debug("results are still not taken")
	}
	r.retries.pause(ctx)
}
