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
	var errs []error
	counter := func(name, description string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	// gauge registers a gauge that observe reads while a session runs.
	gauge := func(name, description string, observe func(*session, metric.Int64Observer)) {
		_, err := m.Int64ObservableGauge(name, metric.WithDescription(description),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				if s := a.session.Load(); s != nil {
					observe(s, o)
				}
				return nil
			}))
		errs = append(errs, err)
	}
	gauge("procfleet_agent_supervised_processes", "Supervised processes, by state.", func(s *session, o metric.Int64Observer) {
		for state, n := range s.engine.Survey().Supervised {
			o.Observe(int64(n), metric.WithAttributes(attribute.String("state", state)))
		}
	})
	gauge("procfleet_agent_results_waiting", "Results that no worker has acknowledged yet.", func(s *session, o metric.Int64Observer) {
		o.Observe(int64(s.reporter.waiting()))
	})
	gauge("procfleet_agent_events_waiting", "Events that no worker has acknowledged yet.", func(s *session, o metric.Int64Observer) {
		o.Observe(int64(s.events.pending()))
	})
	gauge("procfleet_agent_unsafe_host", "Findings about this host that endanger its processes, by check.", func(s *session, o metric.Int64Observer) {
		if found := s.findings.Load(); found != nil {
			counts := map[string]int64{}
			for _, f := range *found {
				counts[f.Check]++
			}
			for check, n := range counts {
				o.Observe(n, metric.WithAttributes(attribute.String("check", check)))
			}
		}
	})
	_, err := m.Int64ObservableGauge("procfleet_agent_connected", metric.WithDescription("1 while connected to NATS, else 0."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			connected := int64(0)
			if a.cfg.Conn.IsConnected() {
				connected = 1
			}
			o.Observe(connected)
			return nil
		}))
	errs = append(errs, err)
	syncs, err := m.Float64Histogram("procfleet_agent_journal_fsync_seconds",
		metric.WithDescription("Duration of journal fsyncs."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	errs = append(errs, err)
	return &metrics{
		operations: counter("procfleet_agent_operations", "Operations that ended after they were accepted in time, by action and outcome code."),
		restarts:   counter("procfleet_agent_restarts", "Start commands run to keep processes alive."),
		events:     counter("procfleet_agent_events", "Events of the agent, by kind, repetitions included."),
		lost:       counter("procfleet_agent_events_lost", "Events dropped from a full queue."),
		appends:    counter("procfleet_agent_journal_appends", "Records written to the journal."),
		bytes:      counter("procfleet_agent_journal_bytes", "Bytes written to the journal."),
		syncs:      syncs,
		unverified: counter("procfleet_agent_messages_refused", "Messages rejected because their signature was not verified, by type and reason."),
	}, errors.Join(errs...)
}

var actions = []string{
	agentproto.ActionStart, agentproto.ActionStop, agentproto.ActionStatus, agentproto.ActionSupervise,
	agentproto.ActionRelease, agentproto.ActionRestart, agentproto.ActionReload, agentproto.ActionKill,
}

func (m *metrics) rejected(messageType string, err error) {
	if !slices.Contains(verifiedTypes, messageType) { // text of an unverified sender must not become an attribute
		messageType = "unknown"
	}
	m.unverified.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("type", agentproto.ShortType(messageType)), attribute.String("reason", fleetkey.Reason(err))))
}

// verifiedTypes are the types of messages that an agent receives.
var verifiedTypes = []string{
	agentproto.TypeCommand, agentproto.TypeResend, agentproto.TypeCancel, agentproto.TypeOutput, agentproto.TypeSettingsChanged,
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
