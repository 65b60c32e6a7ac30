// Package metrics has the counters and gauges of a worker. Their labels contain no
// hosts or tasks, so the number of series is bounded.
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

// Metrics has all metrics of a worker. [New] returns one.
type Metrics struct {
	Delivered  metric.Int64Counter // items accepted by agents
	Completed  metric.Int64Counter // completed tasks
	Recorded   metric.Int64Counter // results that became their item's result
	Visits     metric.Int64Counter
	Notified   metric.Int64Counter // tasks whose notification was sent
	RefusedIDs metric.Int64Counter // announcements with a refused agent id

	results, ended, troubles, swept, callbacks               metric.Int64Counter
	announced, reported, settings, hostEvents                metric.Int64Counter
	rejected, droppedResults, busyReplies, subscriptionDrops metric.Int64Counter

	lag   metric.Float64Histogram
	batch metric.Int64Histogram

	Chunks atomic.Int64 // chunks in flight, including parked chunks
	Parked atomic.Int64 // parked chunks
	Sweeps SweepGauges
	Queues QueueGauges
}

var (
	lagBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	batchBuckets = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}
)

// New registers the metrics with meter.
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

// Gauge registers a gauge procfleet_worker_<name> that reports value.
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

// begin creates every series with zero, because a rate omits the first event otherwise.
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
		agentproto.TypePresence, agentproto.TypeProcesses, agentproto.TypeSettingsRequest, agentproto.TypeEvent,
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

// Outcomes of messages from agents. Agents resend messages that are not stored.
const (
	Stored     = "stored"
	NotStored  = "not_stored" // the store or stream is unavailable; for results: the store rejected the message
	Dropped    = "dropped"    // message not decoded or not verified
	Stale      = "stale"      // announcement with a send time outside the accepted window
	Overflowed = "overflowed" // message arrived faster than the store accepts them
	Refused    = "refused"    // event rejected by the stream

	NotUnderstood = "not_understood" // message of results not decoded

	Answered    = "answered"     // settings request with a reply
	NotKnown    = "not_known"    // settings unreadable in the store; agents keep the previous settings
	NotAnswered = "not_answered" // reply not sent
)

func (m *Metrics) Announcements(n int, outcome string) { count(m.announced, n, "outcome", outcome) }

func (m *Metrics) Reports(n int, outcome string) { count(m.reported, n, "outcome", outcome) }

func (m *Metrics) Events(n int, outcome string) { count(m.hostEvents, n, "outcome", outcome) }

func (m *Metrics) Settings(outcome string) { count(m.settings, 1, "outcome", outcome) }

// DroppedResults counts a message of results that is not stored although the store is
// available. reason is NotUnderstood or NotStored.
func (m *Metrics) DroppedResults(reason string) { count(m.droppedResults, 1, "reason", reason) }

// Causes of busy receipts.
const (
	BusyFull        = "full"        // the inbox is full
	BusyUnavailable = "unavailable" // the store or the stream is unavailable
)

// Busy counts n requests of an inbox that agents will resend later.
func (m *Metrics) Busy(inbox, cause string, n int) {
	m.busyReplies.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("inbox", inbox), attribute.String("cause", cause)))
}

// InboxDropped counts n messages dropped by the subscription of an inbox.
func (m *Metrics) InboxDropped(inbox string, n int) { count(m.subscriptionDrops, n, "inbox", inbox) }

// Rejected counts a message with an unverified signature.
func (m *Metrics) Rejected(messageType string, err error) {
	m.rejected.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("type", agentproto.ShortType(messageType)), attribute.String("reason", fleetkey.Reason(err))))
}

// Values of the label "trouble": why a host did not accept a command.
const (
	TroubleNoResponders = "nobody"   // no agent subscribes to the host's subject
	TroubleGrace        = "grace"    // no agent subscribes, but the host has a grace period for a reconnect
	TroubleRefused      = "refused"  // the agent refused the whole command
	TroubleNoReply      = "silent"   // no reply to any attempt
	TroubleConflict     = "conflict" // two agents claim the host

	TroubleAgentIDConflict = "agent_id_conflict" // agents of several hosts claim the same agent id

	TroubleOverflowed = "overflowed" // reply dropped because of a full buffer; the host gets another request
)

// Trouble counts a missing reply, or a reply other than an acceptance.
func (m *Metrics) Trouble(what string) { count(m.troubles, 1, "trouble", what) }

// Actions of the sweep.
const (
	SweepForget   = "forget"   // index entries removed because they have no task
	SweepNotify   = "notify"   // pending completion notifications
	SweepDispatch = "dispatch" // tasks that their dispatcher did not finish publishing
	SweepRequeue  = "requeue"  // chunks that were lost from the stream
	SweepResend   = "resend"   // hosts that were asked to resend results
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
	CallbackFailed  = "failed"  // failed attempt; retried
	CallbackRefused = "refused" // receiver not allowed; not retried
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

// Collected counts batches of agents' results that were stored at the store time now.
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
