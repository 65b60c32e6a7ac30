package worker

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

// metrics is what a worker counts. No host or task appears in it.
type metrics struct {
	delivered metric.Int64Counter
	recorded  metric.Int64Counter
	results   metric.Int64Counter
	ended     metric.Int64Counter
	completed metric.Int64Counter
	troubles  metric.Int64Counter
	visits    metric.Int64Counter
	swept     metric.Int64Counter
	told      metric.Int64Counter
	callbacks metric.Int64Counter
	announced metric.Int64Counter
	reported  metric.Int64Counter
	asked     metric.Int64Counter
	distrust  metric.Int64Counter
	refusedID metric.Int64Counter
	dropped   metric.Int64Counter

	hostEvents  metric.Int64Counter
	busyReplies metric.Int64Counter
	unanswered  metric.Int64Counter

	lag   metric.Float64Histogram
	batch metric.Int64Histogram

	chunks atomic.Int64 // in flight, parked ones included
	sweeps sweepGauges
	queues queueGauges
}

// Buckets of histograms.
var (
	lagBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	batchBuckets = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}
)

func newMetrics(meter metric.Meter, room *parkingRoom) (*metrics, error) {
	var m metrics
	errs := m.counters(meter)
	gauge := func(name, text string, value *atomic.Int64) {
		_, err := meter.Int64ObservableGauge("procfleet_worker_"+name, metric.WithDescription(text), observe(value))
		errs = append(errs, err)
	}
	gauge("chunks_in_flight", "Chunks being delivered, parked ones included.", &m.chunks)
	gauge("chunks_parked", "Chunks that stepped aside for slow hosts.", &room.parked)
	histogram := func(to *metric.Float64Histogram, name, text string, buckets []float64) {
		var err error
		*to, err = meter.Float64Histogram("procfleet_worker_"+name, metric.WithDescription(text), metric.WithUnit("s"),
			metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
	}
	histogram(&m.lag, "result_lag_seconds", "From an agent's finish, by its corrected clock, to the result being stored, "+
		"by the store's clock; of the oldest result in each batch.", lagBuckets)
	var err error
	m.batch, err = meter.Int64Histogram("procfleet_worker_collect_batch_results",
		metric.WithDescription("Results of one task in one call to the store."), metric.WithExplicitBucketBoundaries(batchBuckets...))
	errs = append(errs, err, m.sweeps.register(meter), m.queues.register(meter))
	return &m, errors.Join(errs...)
}

// Why messages of results are not stored although the store is available.
const (
	droppedUnread   = "not_understood"
	droppedUnstored = "not_stored" // the store refused the message, even alone
)

func (m *metrics) drop(reason string) {
	m.dropped.Add(context.Background(), 1, metric.WithAttributes(attribute.String("reason", reason)))
}

func (m *metrics) counters(meter metric.Meter) (errs []error) {
	for _, c := range []struct {
		to         *metric.Int64Counter
		name, text string
	}{
		{&m.delivered, "items_delivered", "Items that an agent accepted."},
		{&m.recorded, "results_recorded", "Results that became their item's result."},
		{&m.results, "results", "Results of agents and of the server given to the store, by state and reason, repeats included."},
		{&m.ended, "server_results", "Results made by the server for want of an agent's word, by reason."},
		{&m.completed, "tasks_completed", "Tasks whose last open item got its result."},
		{&m.troubles, "host_troubles", "Answers other than a host's acceptance, by trouble."},
		{&m.visits, "sweep_visits", "Visits of the sweep to tasks."},
		{&m.swept, "sweep_actions", "What the sweep had to do, by action."},
		{&m.told, "tasks_told", "Ends of tasks that were told."},
		{&m.callbacks, "callbacks", "Tries of callbacks, by outcome."},
		{&m.announced, "announcements", "Announcements of agents, by outcome."},
		{&m.reported, "process_reports", "Reports of agents on their processes, by outcome."},
		{&m.asked, "settings_questions", "Questions of agents for what holds for their hosts, by outcome."},
		{&m.distrust, "messages_refused", "Messages that are not known to be from the agents that they name, by type and reason."},
		{&m.refusedID, "agent_ids_refused", "Announcements with an agent id that the host's identity does not hold."},
		{&m.dropped, "dropped_result_messages", "Messages of results that were not understood or that the store refused; their agents may send them again."},
		{&m.hostEvents, "host_events", "Events of hosts for the stream of host events, by outcome."},
		{&m.busyReplies, "busy_replies", "Requests of agents that were not stored and are to be sent again later, by inbox and cause."},
		{&m.unanswered, "inbox_dropped_messages", "Messages of agents that came faster than this worker could refuse them, by inbox; agents send them again."},
	} {
		var err error
		*c.to, err = meter.Int64Counter("procfleet_worker_"+c.name, metric.WithDescription(c.text))
		errs = append(errs, err)
	}
	m.begin()
	return errs
}

// begin gives every counter its series at once: a rate over a series that
// begins with its first event does not see that event.
func (m *metrics) begin() {
	ctx := context.Background()
	for _, c := range []metric.Int64Counter{m.delivered, m.recorded, m.completed, m.told, m.visits, m.refusedID} {
		c.Add(ctx, 0)
	}
	each := func(c metric.Int64Counter, label string, values ...string) {
		for _, value := range values {
			c.Add(ctx, 0, metric.WithAttributes(attribute.String(label, value)))
		}
	}
	each(m.ended, "reason", string(procfleet.ReasonUnreachable), string(procfleet.ReasonTimedOut),
		string(procfleet.ReasonRefused), string(procfleet.ReasonCommandFailed))
	each(m.troubles, "trouble", troubleNobody, troubleGrace, troubleRefused, troubleSilent, troubleConflict, troubleAgentIDConflict, troubleOverflowed)
	each(m.swept, "action", sweepForget, sweepNotify, sweepDispatch, sweepRequeue, sweepResend, sweepOverdue)
	each(m.callbacks, "outcome", callbackOK, callbackFailed, callbackRefused)
	each(m.announced, "outcome", announcedStored, announcedLost, announcedBad, announcedStale, announcedOverflowed)
	each(m.reported, "outcome", reportsStored, reportsLost, reportsBad, reportsOverflowed)
	each(m.dropped, "reason", droppedUnread, droppedUnstored)
	each(m.hostEvents, "outcome", eventsStored, eventsLost, eventsBad, eventsRefused)
	each(m.asked, "outcome", settingsTold, settingsUnknown, settingsLost, settingsBad, settingsOverflowed)
	for _, messageType := range []string{
		agentproto.TypeReply, agentproto.TypeResendReply, agentproto.TypeResults,
		agentproto.TypePresence, agentproto.TypeProcesses, agentproto.TypeSettingsAsk, agentproto.TypeEvent,
	} {
		for _, reason := range fleetkey.Reasons() {
			m.distrust.Add(ctx, 0, metric.WithAttributes(
				attribute.String("type", agentproto.ShortType(messageType)), attribute.String("reason", reason)))
		}
	}
}

// Actions of the sweep.
const (
	sweepForget   = "forget"   // an entry of the index without a task
	sweepNotify   = "notify"   // an end that was not told yet
	sweepDispatch = "dispatch" // a task that its dispatcher did not finish publishing
	sweepRequeue  = "requeue"  // chunks that the stream had lost
	sweepResend   = "resend"   // hosts asked for results again
	sweepOverdue  = "overdue"  // items ended at the deadline
)

func observe(value *atomic.Int64) metric.Int64ObservableGaugeOption {
	return metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(value.Load())
		return nil
	})
}

func (m *metrics) sweep(ctx context.Context, action string, n int) {
	if n > 0 {
		m.swept.Add(ctx, int64(n), metric.WithAttributes(attribute.String("action", action)))
	}
}

// Outcomes of callbacks.
const (
	callbackOK      = "ok"
	callbackFailed  = "failed"  // tried again
	callbackRefused = "refused" // its receiver is not allowed; not tried again
)

func (m *metrics) callback(ctx context.Context, err error) {
	outcome := callbackOK
	switch {
	case refused(err):
		outcome = callbackRefused
	case err != nil:
		outcome = callbackFailed
	}
	m.callbacks.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}

// What became of announcements.
const (
	announcedStored = "stored"
	announcedLost   = "not_stored" // agents repeat them
	announcedBad    = "dropped"    // not understood, or not from where they say
	announcedStale  = "stale"      // not sent now; agents are told the time and repeat them

	announcedOverflowed = "overflowed" // came faster than the store takes them; agents repeat them
)

func (m *metrics) announcements(n int, outcome string) {
	m.announced.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("outcome", outcome)))
}

// What became of reports.
const (
	reportsStored     = "stored"
	reportsLost       = "not_stored" // agents make new ones
	reportsBad        = "dropped"    // not understood, or not from where they say
	reportsOverflowed = "overflowed" // came faster than the store takes them
)

func (m *metrics) reports(n int, outcome string) {
	m.reported.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("outcome", outcome)))
}

// What became of events of hosts.
const (
	eventsStored  = "stored"
	eventsLost    = "not_stored" // the stream is unavailable; agents send them again
	eventsBad     = "dropped"    // not understood, or not from where they say
	eventsRefused = "refused"    // by the stream
)

func (m *metrics) events(n int, outcome string) {
	m.hostEvents.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("outcome", outcome)))
}

// Why requests are not stored.
const (
	busyFull        = "full"        // the inbox has no room
	busyUnavailable = "unavailable" // what stores them
)

func (m *metrics) busy(inbox, cause string, n int) {
	m.busyReplies.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("inbox", inbox), attribute.String("cause", cause)))
}

func (m *metrics) inboxDropped(inbox string, n int) {
	m.unanswered.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("inbox", inbox)))
}

// inboxes has the metrics of inboxes begin.
func (m *metrics) inboxes(meter metric.Meter, all []*inbox) error {
	for _, in := range all {
		m.inboxDropped(in.name, 0)
		if in.refuses == nil {
			continue // it sends no busy replies
		}
		for _, cause := range []string{busyFull, busyUnavailable} {
			m.busy(in.name, cause, 0)
		}
	}
	_, err := meter.Int64ObservableGauge("procfleet_worker_inbox_waiting_messages", metric.WithDescription("Messages of agents that wait for this worker, by inbox."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for _, in := range all {
				o.Observe(in.waiting(), metric.WithAttributes(attribute.String("inbox", in.name)))
			}
			return nil
		}))
	return err
}

// refused counts a message that is not believed.
func (m *metrics) refused(messageType string, err error) {
	m.distrust.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("type", agentproto.ShortType(messageType)), attribute.String("reason", fleetkey.Reason(err))))
}

// What became of questions for settings.
const (
	settingsTold    = "answered"
	settingsUnknown = "not_known"    // the store could not be asked; agents keep what they have
	settingsLost    = "not_answered" // agents ask again
	settingsBad     = "dropped"      // not understood, or not from where they say

	settingsOverflowed = "overflowed" // came faster than the store is asked; agents ask again
)

func (m *metrics) settings(outcome string) {
	m.asked.Add(context.Background(), 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}

// Troubles with hosts.
const (
	troubleNobody   = "nobody"   // nobody listens
	troubleGrace    = "grace"    // nobody listens now, and that is borne with
	troubleRefused  = "refused"  // the command was turned away as a whole
	troubleSilent   = "silent"   // no answer to any try
	troubleConflict = "conflict" // two agents claim the host

	troubleAgentIDConflict = "agent_id_conflict" // the agents of several hosts claim the agent id

	troubleOverflowed = "overflowed" // an answer found no room; the host is asked again
)

// trouble counts an answer that was none, or not the one that was hoped for.
func (m *metrics) trouble(what string) {
	m.troubles.Add(context.Background(), 1, metric.WithAttributes(attribute.String("trouble", what)))
}

// stored counts results that the store was given.
func (m *metrics) stored(ctx context.Context, results []procfleet.Result) {
	byReason := make(map[procfleet.Reason]int64, 1)
	for i := range results {
		byReason[results[i].Reason]++
		if results[i].Rank == procfleet.RankServer {
			m.ended.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", string(results[i].Reason))))
		}
	}
	for reason, n := range byReason {
		m.results.Add(ctx, n, metric.WithAttributes(
			attribute.String("state", string(reason.State())), attribute.String("reason", string(reason))))
	}
}

// collected counts batches of agents' results that are stored at the given
// moment of the store's clock.
func (m *metrics) collected(ctx context.Context, batches []taskstore.Batch, now time.Time) {
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
