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

	Announcements, Reports, Events, Settings Counter // messages of agents, by outcome
	DroppedResults                           Counter // messages of results not stored although the store is available
	InboxDrops                               Counter // messages dropped by the subscription of an inbox
	Troubles                                 Counter // missing replies, and replies other than an acceptance
	SweepActions, Callbacks, Holds           Counter

	serverResults                  Counter
	results, rejected, busyReplies metric.Int64Counter
	lag                            metric.Float64Histogram
	batch                          metric.Int64Histogram

	Chunks atomic.Int64 // chunks in flight, including parked chunks
	Parked atomic.Int64 // parked chunks
	Sweeps SweepGauges
	Queues QueueGauges

	meter metric.Meter
}

// Counter counts by the value of one label.
type Counter struct {
	metric.Int64Counter
	label string
}

// Add adds n to the series with the label value.
func (c Counter) Add(n int, value string) {
	c.Int64Counter.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String(c.label, value)))
}

var (
	lagBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	batchBuckets = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}
)

// New registers the metrics with meter.
func New(meter metric.Meter) (*Metrics, error) {
	m := &Metrics{meter: meter}
	errs := append(m.counters(), m.labeledCounters()...)
	var err, err2 error
	m.lag, err = meter.Float64Histogram("procfleet_worker_result_lag_seconds", metric.WithUnit("s"),
		metric.WithDescription("Time from an agent's finish, by its corrected clock, until the result is stored, by the store's clock; of the oldest result in each batch."),
		metric.WithExplicitBucketBoundaries(lagBuckets...))
	m.batch, err2 = meter.Int64Histogram("procfleet_worker_collect_batch_results",
		metric.WithDescription("Results of one task in one call to the store."), metric.WithExplicitBucketBoundaries(batchBuckets...))
	errs = append(errs, err, err2, m.Sweeps.register(m), m.Queues.register(m),
		m.GaugeOf("chunks_in_flight", "Chunks in delivery, including parked chunks.", &m.Chunks),
		m.GaugeOf("chunks_parked", "Chunks parked because their hosts are slow.", &m.Parked))
	return m, errors.Join(errs...)
}

// Gauge registers a gauge procfleet_worker_<name> whose values observe reports.
func (m *Metrics) Gauge(name, text string, observe func(metric.Int64Observer)) error {
	_, err := m.meter.Int64ObservableGauge("procfleet_worker_"+name, metric.WithDescription(text),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			observe(o)
			return nil
		}))
	return err
}

// GaugeOf is [Metrics.Gauge] for one value without labels.
func (m *Metrics) GaugeOf(name, text string, value *atomic.Int64) error {
	return m.Gauge(name, text, func(o metric.Int64Observer) { o.Observe(value.Load()) })
}

func (m *Metrics) counter(to *metric.Int64Counter, name, text string) (err error) {
	*to, err = m.meter.Int64Counter("procfleet_worker_"+name, metric.WithDescription(text))
	return err
}

// counters registers the counters without a label. They begin with zero, because a rate
// omits the first event otherwise.
func (m *Metrics) counters() (errs []error) {
	for _, c := range []struct {
		to         *metric.Int64Counter
		name, text string
	}{
		{&m.Delivered, "items_delivered", "Items that an agent accepted."},
		{&m.Recorded, "results_recorded", "Results that became their item's result."},
		{&m.Completed, "tasks_completed", "Tasks whose last open item got its result."},
		{&m.Visits, "sweep_visits", "Visits of the sweep to tasks."},
		{&m.Notified, "tasks_told", "Completion notifications sent."},
		{&m.RefusedIDs, "agent_ids_refused", "Announcements with an agent id that is not part of the host's identity."},
	} {
		errs = append(errs, m.counter(c.to, c.name, c.text))
		(*c.to).Add(context.Background(), 0)
	}
	return errs
}

// labeledCounters registers the counters with labels. The series of known label values
// begin with zero.
func (m *Metrics) labeledCounters() (errs []error) {
	for _, c := range []struct {
		to                *Counter
		name, text, label string
		values            []string
	}{
		{
			&m.serverResults, "server_results", "Results made by the server because no agent reported one, by reason.", "reason",
			[]string{string(procfleet.ReasonUnreachable), string(procfleet.ReasonTimedOut), string(procfleet.ReasonRefused), string(procfleet.ReasonCommandFailed)},
		},
		{
			&m.Troubles, "host_troubles", "Missing replies of hosts, and replies other than an acceptance, by trouble.", "trouble",
			[]string{TroubleNoResponders, TroubleGrace, TroubleRefused, TroubleNoReply, TroubleConflict, TroubleAgentIDConflict, TroubleOverflowed},
		},
		{
			&m.SweepActions, "sweep_actions", "Actions of the sweep, by action.", "action",
			[]string{SweepForget, SweepNotify, SweepDispatch, SweepRequeue, SweepResend, SweepOverdue},
		},
		{
			&m.Holds, "rollout_holds", "Holds of rollouts that the sweep has found, by kind.", "kind",
			[]string{
				string(procfleet.HoldBudget), string(procfleet.HoldApproval), string(procfleet.HoldStalled), string(procfleet.HoldWindow),
				string(procfleet.HoldUnhealthy), string(procfleet.HoldInconclusive),
			},
		},
		{&m.Callbacks, "callbacks", "Attempts of callbacks, by outcome.", "outcome", []string{CallbackOK, CallbackFailed, CallbackRefused}},
		{&m.Announcements, "announcements", "Announcements of agents, by outcome.", "outcome", []string{Stored, NotStored, Dropped, Stale, Overflowed}},
		{&m.Reports, "process_reports", "Process reports of agents, by outcome.", "outcome", []string{Stored, NotStored, Dropped, Overflowed}},
		{&m.Events, "host_events", "Events of hosts for the stream of host events, by outcome.", "outcome", []string{Stored, NotStored, Dropped, Refused}},
		{&m.Settings, "settings_questions", "Settings requests of agents, by outcome.", "outcome", []string{Answered, NotKnown, NotAnswered, Dropped, Overflowed}},
		{
			&m.DroppedResults, "dropped_result_messages", "Messages of results that were malformed or rejected by the store, by reason; agents may resend them.", "reason",
			[]string{NotUnderstood, NotStored},
		},
		{&m.InboxDrops, "inbox_dropped_messages", "Agents' messages dropped because they arrived faster than this worker could reject them, by inbox; agents resend them.", "inbox", nil},
	} {
		c.to.label = c.label
		errs = append(errs, m.counter(&c.to.Int64Counter, c.name, c.text))
		for _, value := range c.values {
			c.to.Add(0, value)
		}
	}
	errs = append(errs,
		m.counter(&m.results, "results", "Results of agents and of the server passed to the store, by state and reason, repeats included."),
		m.counter(&m.busyReplies, "busy_replies", "Agents' requests that were not stored and that agents will resend, by inbox and cause."),
		m.counter(&m.rejected, "messages_refused", "Messages whose signature was not verified, by type and reason."))
	for _, messageType := range []string{
		agentproto.TypeReply, agentproto.TypeResendReply, agentproto.TypeResults,
		agentproto.TypePresence, agentproto.TypeProcesses, agentproto.TypeSettingsRequest, agentproto.TypeEvent,
	} {
		for _, reason := range fleetkey.Reasons() {
			m.reject(0, messageType, reason)
		}
	}
	return errs
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

// Causes of busy receipts.
const (
	BusyFull        = "full"        // the inbox is full
	BusyUnavailable = "unavailable" // the store or the stream is unavailable
)

// Busy counts n requests of an inbox that agents will resend later.
func (m *Metrics) Busy(inbox, cause string, n int) {
	m.busyReplies.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("inbox", inbox), attribute.String("cause", cause)))
}

// Rejected counts a message with an unverified signature.
func (m *Metrics) Rejected(messageType string, err error) {
	m.reject(1, messageType, fleetkey.Reason(err))
}

func (m *Metrics) reject(n int64, messageType, reason string) {
	m.rejected.Add(context.Background(), n, metric.WithAttributes(
		attribute.String("type", agentproto.ShortType(messageType)), attribute.String("reason", reason)))
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

// Actions of the sweep.
const (
	SweepForget   = "forget"   // index entries removed because they have no task
	SweepNotify   = "notify"   // pending completion notifications
	SweepDispatch = "dispatch" // tasks that their dispatcher did not finish publishing
	SweepRequeue  = "requeue"  // chunks that were lost from the stream
	SweepResend   = "resend"   // resend requests to hosts
	SweepOverdue  = "overdue"  // items ended at the deadline
)

// Outcomes of callbacks.
const (
	CallbackOK      = "ok"
	CallbackFailed  = "failed"  // failed attempt; retried
	CallbackRefused = "refused" // receiver not allowed; not retried
)

// Results counts results that are passed to the store.
func (m *Metrics) Results(ctx context.Context, results []procfleet.Result) {
	byReason := make(map[procfleet.Reason]int64, 1)
	for i := range results {
		byReason[results[i].Reason]++
		if results[i].Rank == procfleet.RankServer {
			m.serverResults.Add(1, string(results[i].Reason))
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
