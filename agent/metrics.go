package agent

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// metrics holds the agent's metrics. They have no attribute for task, process or host: the
// number of series is bounded, and the scrape target identifies the host.
type metrics struct {
	operations metric.Int64Counter
	restarts   metric.Int64Counter
	events     metric.Int64Counter
	lost       metric.Int64Counter
	appends    metric.Int64Counter
	bytes      metric.Int64Counter
	syncs      metric.Float64Histogram
	unverified metric.Int64Counter
}

func newMetrics(m metric.Meter, a *Agent) (*metrics, error) {
	var s metrics
	var errs [13]error
	s.operations, errs[0] = m.Int64Counter("procfleet_agent_operations",
		metric.WithDescription("Operations that ended after they were accepted in time, by action and outcome code."))
	s.restarts, errs[1] = m.Int64Counter("procfleet_agent_restarts",
		metric.WithDescription("Start commands run to keep processes alive."))
	s.appends, errs[2] = m.Int64Counter("procfleet_agent_journal_appends",
		metric.WithDescription("Records written to the journal."))
	s.bytes, errs[3] = m.Int64Counter("procfleet_agent_journal_bytes",
		metric.WithDescription("Bytes written to the journal."))
	s.syncs, errs[4] = m.Float64Histogram("procfleet_agent_journal_fsync_seconds",
		metric.WithDescription("Duration of journal fsyncs."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	_, errs[5] = m.Int64ObservableGauge("procfleet_agent_supervised_processes",
		metric.WithDescription("Supervised processes, by state."), metric.WithInt64Callback(a.observeProcesses))
	_, errs[6] = m.Int64ObservableGauge("procfleet_agent_results_waiting",
		metric.WithDescription("Results that no worker has acknowledged yet."), metric.WithInt64Callback(a.observeWaiting))
	_, errs[7] = m.Int64ObservableGauge("procfleet_agent_connected",
		metric.WithDescription("1 while connected to NATS, else 0."), metric.WithInt64Callback(a.observeConnection))
	s.events, errs[8] = m.Int64Counter("procfleet_agent_events",
		metric.WithDescription("Events of the agent, by kind, repetitions included."))
	s.lost, errs[9] = m.Int64Counter("procfleet_agent_events_lost",
		metric.WithDescription("Events dropped from a full queue."))
	_, errs[10] = m.Int64ObservableGauge("procfleet_agent_events_waiting",
		metric.WithDescription("Events that no worker has acknowledged yet."), metric.WithInt64Callback(a.observeEvents))
	_, errs[11] = m.Int64ObservableGauge("procfleet_agent_unsafe_host",
		metric.WithDescription("Findings about this host that endanger its processes, by check."), metric.WithInt64Callback(a.observeHost))
	s.unverified, errs[12] = m.Int64Counter("procfleet_agent_messages_refused",
		metric.WithDescription("Messages rejected because their signature was not verified, by type and reason."))
	return &s, errors.Join(errs[:]...)
}

var actions = []string{
	agentproto.ActionStart, agentproto.ActionStop, agentproto.ActionStatus, agentproto.ActionSupervise,
	agentproto.ActionRelease, agentproto.ActionRestart, agentproto.ActionReload, agentproto.ActionKill,
}

// rejected counts a message whose signature verification failed.
func (m *metrics) rejected(messageType string, err error) {
	if !slices.Contains(verifiedTypes, messageType) { // text of an unverified sender must not become an attribute
		messageType = "unknown"
	}
	m.unverified.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("type", agentproto.ShortType(messageType)), attribute.String("reason", fleetkey.Reason(err))))
}

// verifiedTypes are the types of messages that an agent receives.
var verifiedTypes = []string{
	agentproto.TypeCommand, agentproto.TypeResend, agentproto.TypeSettingsChanged,
	agentproto.TypePresenceReply, agentproto.TypeSettingsReply, agentproto.TypeResendReply, agentproto.TypeReceipt,
}

func (m *metrics) finished(action string, code int) {
	if !slices.Contains(actions, action) { // any text of a sender must not become an attribute
		action = "unknown"
	}
	m.operations.Add(context.Background(), 1, metric.WithAttributes(attribute.String("action", action), attribute.Int("code", code)))
}

// emitted counts an event; kind is one of the kinds of [agentproto.Event].
func (m *metrics) emitted(kind string) {
	m.events.Add(context.Background(), 1, metric.WithAttributes(attribute.String("kind", kind)))
}

func (m *metrics) dropped(events int) { m.lost.Add(context.Background(), int64(events)) }

func (m *metrics) restarted() { m.restarts.Add(context.Background(), 1) }

func (m *metrics) written(w journal.Write) {
	ctx := context.Background()
	m.appends.Add(ctx, int64(w.Records))
	m.bytes.Add(ctx, int64(w.Bytes))
	if w.Sync > 0 {
		m.syncs.Record(ctx, w.Sync.Seconds())
	}
}

func (a *Agent) observeProcesses(_ context.Context, o metric.Int64Observer) error {
	if s := a.session.Load(); s != nil {
		for state, n := range s.engine.Survey().Supervised {
			o.Observe(int64(n), metric.WithAttributes(attribute.String("state", state)))
		}
	}
	return nil
}

func (a *Agent) observeWaiting(_ context.Context, o metric.Int64Observer) error {
	if s := a.session.Load(); s != nil {
		o.Observe(int64(s.reporter.waiting()))
	}
	return nil
}

func (a *Agent) observeEvents(_ context.Context, o metric.Int64Observer) error {
	if s := a.session.Load(); s != nil {
		o.Observe(int64(s.events.pending()))
	}
	return nil
}

func (a *Agent) observeConnection(_ context.Context, o metric.Int64Observer) error {
	connected := int64(0)
	if a.cfg.Conn.IsConnected() {
		connected = 1
	}
	o.Observe(connected)
	return nil
}
