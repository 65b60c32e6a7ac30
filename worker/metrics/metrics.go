// Package metrics has the counters and gauges of a worker. No host or task
// appears in their labels.
package metrics

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
)

// Metrics is what a worker counts. Make one with [New].
type Metrics struct {
	Delivered  metric.Int64Counter // items
	Completed  metric.Int64Counter // tasks
	Recorded   metric.Int64Counter // results
	Visits     metric.Int64Counter
	Notified   metric.Int64Counter // tasks
	RefusedIDs metric.Int64Counter // agent ids

	results, ended, troubles, swept, callbacks               metric.Int64Counter
	announced, reported, settings, hostEvents                metric.Int64Counter
	rejected, droppedResults, busyReplies, subscriptionDrops metric.Int64Counter

	lag   metric.Float64Histogram
	batch metric.Int64Histogram

	Chunks atomic.Int64 // in flight, parked ones included
	Parked atomic.Int64 // chunks
	Sweeps SweepGauges
	Queues QueueGauges
}

// Buckets of histograms.
var (
	lagBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	batchBuckets = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}
)

// New registers the metrics.
func New(meter metric.Meter) (*Metrics, error) {
	m := &Metrics{}
	errs := m.counters(meter)
	var err, err2 error
	m.lag, err = meter.Float64Histogram("procfleet_worker_result_lag_seconds", metric.WithUnit("s"),
		metric.WithDescription("From an agent's finish, by its corrected clock, to the result being stored, by the store's clock; of the oldest result in each batch."),
		metric.WithExplicitBucketBoundaries(lagBuckets...))
	m.batch, err2 = meter.Int64Histogram("procfleet_worker_collect_batch_results",
		metric.WithDescription("Results of one task in one call to the store."), metric.WithExplicitBucketBoundaries(batchBuckets...))
	errs = append(errs, Gauge(meter, "chunks_in_flight", "Chunks being delivered, parked ones included.", &m.Chunks),
		Gauge(meter, "chunks_parked", "Chunks parked because their hosts are slow.", &m.Parked), err, err2, m.Sweeps.register(meter), m.Queues.register(meter))
	return m, errors.Join(errs...)
}

// Gauge registers a gauge of the worker.
func Gauge(meter metric.Meter, name, text string, value *atomic.Int64) error {
	_, err := meter.Int64ObservableGauge("procfleet_worker_"+name, metric.WithDescription(text),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(value.Load())
			return nil
		}))
	return err
}

func (m *Metrics) counters(meter metric.Meter) (errs []error) {
	for _, c := range []struct {
		to         *metric.Int64Counter
		name, text string
	}{
		{&m.Delivered, "items_delivered", "Items that an agent accepted."},
		{&m.Recorded, "results_recorded", "Results that became their item's result."},
		{&m.results, "results", "Results of agents and of the server given to the store, by state and reason, repeats included."},
		{&m.ended, "server_results", "Results made by the server because no agent reported one, by reason."},
		{&m.Completed, "tasks_completed", "Tasks whose last open item got its result."},
		{&m.troubles, "host_troubles", "Replies other than a host's acceptance, by trouble."},
		{&m.Visits, "sweep_visits", "Visits of the sweep to tasks."},
		{&m.swept, "sweep_actions", "Actions of the sweep, by action."},
		{&m.Notified, "tasks_told", "Completion notifications sent."},
		{&m.callbacks, "callbacks", "Attempts of callbacks, by outcome."},
		{&m.announced, "announcements", "Announcements of agents, by outcome."},
		{&m.reported, "process_reports", "Reports of agents on their processes, by outcome."},
		{&m.settings, "settings_questions", "Settings requests of agents, by outcome."},
		{&m.rejected, "messages_refused", "Messages whose signature was not verified, by type and reason."},
		{&m.RefusedIDs, "agent_ids_refused", "Announcements with an agent id that the host's identity does not hold."},
		{&m.droppedResults, "dropped_result_messages", "Messages of results that could not be decoded or that the store refused; their agents may send them again."},
		{&m.hostEvents, "host_events", "Events of hosts for the stream of host events, by outcome."},
		{&m.busyReplies, "busy_replies", "Requests of agents that were not stored and are to be sent again later, by inbox and cause."},
		{&m.subscriptionDrops, "inbox_dropped_messages", "Messages of agents that arrived faster than this worker could refuse them, by inbox; agents send them again."},
	} {
		var err error
		*c.to, err = meter.Int64Counter("procfleet_worker_"+c.name, metric.WithDescription(c.text))
		errs = append(errs, err)
	}
	m.begin()
	return errs
}

// begin gives every counter its series at once: a rate over a series that
// begins with its first event does not include that event.
func (m *Metrics) begin() {
	ctx := context.Background()
	for _, c := range []metric.Int64Counter{m.Delivered, m.Recorded, m.Completed, m.Notified, m.Visits, m.RefusedIDs} {
		c.Add(ctx, 0)
	}
	each := func(c metric.Int64Counter, label string, values ...string) {
		for _, value := range values {
			count(c, 0, label, value)
		}
	}
	each(m.ended, "reason", string(procfleet.ReasonUnreachable), string(procfleet.ReasonTimedOut),
		string(procfleet.ReasonRefused), string(procfleet.ReasonCommandFailed))
	each(m.troubles, "trouble", TroubleNoResponders, TroubleGrace, TroubleRefused, TroubleNoReply, TroubleConflict, TroubleAgentIDConflict, TroubleOverflowed)
	each(m.swept, "action", SweepForget, SweepNotify, SweepDispatch, SweepRequeue, SweepResend, SweepOverdue)
	each(m.callbacks, "outcome", CallbackOK, CallbackFailed, CallbackRefused)
	each(m.announced, "outcome", Stored, NotStored, Dropped, Stale, Overflowed)
	each(m.reported, "outcome", Stored, NotStored, Dropped, Overflowed)
	each(m.droppedResults, "reason", NotUnderstood, NotStored)
	each(m.hostEvents, "outcome", Stored, NotStored, Dropped, Refused)
	each(m.settings, "outcome", Answered, NotKnown, NotAnswered, Dropped, Overflowed)
	for _, messageType := range []string{
		agentproto.TypeReply, agentproto.TypeResendReply, agentproto.TypeResults,
		agentproto.TypePresence, agentproto.TypeProcesses, agentproto.TypeSettingsAsk, agentproto.TypeEvent,
	} {
		for _, reason := range fleetkey.Reasons() {
			m.rejected.Add(ctx, 0, metric.WithAttributes(
				attribute.String("type", agentproto.ShortType(messageType)), attribute.String("reason", reason)))
		}
	}
}

func count(c metric.Int64Counter, n int, label, value string) {
	c.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String(label, value)))
}

// Outcomes of messages of agents. What is not stored, agents send again.
const (
	Stored     = "stored"
	NotStored  = "not_stored" // the store or stream is unavailable; of a message of results: the store refused it, even alone
	Dropped    = "dropped"    // not decoded, or not verified
	Stale      = "stale"      // an announcement that was sent at another time
	Overflowed = "overflowed" // arrived faster than the store accepts them
	Refused    = "refused"    // an event, by the stream

	NotUnderstood = "not_understood" // a message of results that was not decoded

	Answered    = "answered"     // a settings request
	NotKnown    = "not_known"    // the store could not be read; agents keep the previous settings
	NotAnswered = "not_answered" // the reply could not be sent
)

func (m *Metrics) Announcements(n int, outcome string) { count(m.announced, n, "outcome", outcome) }

func (m *Metrics) Reports(n int, outcome string) { count(m.reported, n, "outcome", outcome) }

func (m *Metrics) Events(n int, outcome string) { count(m.hostEvents, n, "outcome", outcome) }

func (m *Metrics) Settings(outcome string) { count(m.settings, 1, "outcome", outcome) }

// DroppedResults counts a message of results that is not stored although the
// store is available: NotUnderstood or NotStored.
func (m *Metrics) DroppedResults(reason string) { count(m.droppedResults, 1, "reason", reason) }

// Why requests are not stored.
const (
	BusyFull        = "full"        // the inbox is full
	BusyUnavailable = "unavailable" // the store or the stream
)

// Busy counts n requests of an inbox whose agents send them again later.
func (m *Metrics) Busy(inbox, cause string, n int) {
	m.busyReplies.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("inbox", inbox), attribute.String("cause", cause)))
}

// InboxDropped counts n messages that the subscription of an inbox dropped.
func (m *Metrics) InboxDropped(inbox string, n int) { count(m.subscriptionDrops, n, "inbox", inbox) }

// Rejected counts a message whose signature was not verified.
func (m *Metrics) Rejected(messageType string, err error) {
	m.rejected.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("type", agentproto.ShortType(messageType)), attribute.String("reason", fleetkey.Reason(err))))
}

// Troubles with hosts.
const (
	TroubleNoResponders = "nobody"   // no agent subscribes to the host's subject
	TroubleGrace        = "grace"    // the same, while the host is given time
	TroubleRefused      = "refused"  // the agent refused the whole command
	TroubleNoReply      = "silent"   // to any attempt
	TroubleConflict     = "conflict" // two agents claim the host

	TroubleAgentIDConflict = "agent_id_conflict" // the agents of several hosts claim the agent id

	TroubleOverflowed = "overflowed" // a reply exceeded the buffer; the host is sent another request
)

// Trouble counts a reply that was none, or not an acceptance.
func (m *Metrics) Trouble(what string) { count(m.troubles, 1, "trouble", what) }

// Actions of the sweep.
const (
	SweepForget   = "forget"   // an entry of the index without a task
	SweepNotify   = "notify"   // a pending completion notification
	SweepDispatch = "dispatch" // a task that its dispatcher did not finish publishing
	SweepRequeue  = "requeue"  // chunks that the stream had lost
	SweepResend   = "resend"   // hosts whose results were requested again
	SweepOverdue  = "overdue"  // items ended at the deadline
)

func (m *Metrics) Sweep(action string, n int) {
	if n > 0 {
		count(m.swept, n, "action", action)
	}
}

// Outcomes of callbacks.
const (
	CallbackOK      = "ok"
	CallbackFailed  = "failed"  // retried
	CallbackRefused = "refused" // its receiver is not allowed; not retried
)

func (m *Metrics) Callback(outcome string) { count(m.callbacks, 1, "outcome", outcome) }

func (m *Metrics) Results(ctx context.Context, results []procfleet.Result) {
	byReason := make(map[procfleet.Reason]int64, 1)
	for i := range results {
		byReason[results[i].Reason]++
		if results[i].Rank == procfleet.RankServer {
			count(m.ended, 1, "reason", string(results[i].Reason))
		}
	}
	for reason, n := range byReason {
		m.results.Add(ctx, n, metric.WithAttributes(
			attribute.String("state", string(reason.State())), attribute.String("reason", string(reason))))
	}
}

// Collected counts batches of agents' results that are stored at the given
// moment of the store's clock.
func (m *Metrics) Collected(ctx context.Context, batches []taskstore.Batch, now time.Time) {
	for i := range batches {
		results := batches[i].Results
		m.batch.Record(ctx, int64(len(results)))
		oldest := now
		for n := range results {
			if at := results[n].FinishedAt; !at.IsZero() && at.Before(oldest) {
				oldest = at
			}
		}
		if len(results) > 0 {
			m.lag.Record(ctx, now.Sub(oldest).Seconds())
		}
	}
}
