package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/hostcheck"
	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agentproto"
	telemetry "github.com/procfleet/procfleet/internal/telemetry/metrics"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestGaugesDescribeTheSession(t *testing.T) {
	t.Parallel()
	registry, err := telemetry.New()
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{cfg: Config{Conn: &nats.Conn{}}}
	if a.metrics, err = newMetrics(registry.Meter("agent"), a); err != nil {
		t.Fatal(err)
	}
	s := &session{engine: &fakeEngine{}, events: newTestEvents(t, &eventLog{}), reporter: newReporter(nil, nil, nil)}
	s.events.emit(agentproto.Event{Kind: agentproto.EventUnsafeHost, Message: "unsafe"})
	s.findings.Store(&[]hostcheck.Finding{{Check: hostcheck.KillMode}, {Check: hostcheck.KillMode}})
	gauges := func() string {
		rec := httptest.NewRecorder()
		registry.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return rec.Body.String()
	}
	if text := gauges(); strings.Contains(text, "procfleet_agent_results_waiting") || !strings.Contains(text, "procfleet_agent_connected 0") {
		t.Errorf("without a session:\n%s", text)
	}
	a.session.Store(s)
	text := gauges()
	for _, want := range []string{
		`procfleet_agent_supervised_processes{state="running"} 2`, `procfleet_agent_unsafe_host{check="` + hostcheck.KillMode + `"} 2`,
		"procfleet_agent_results_waiting 0", "procfleet_agent_events_waiting 1",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in:\n%s", want, text)
		}
	}
}

func TestTheLocalSocketDescribesTheAgent(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.cfg.AgentID, h.cfg.Version = "a1", "v9"
	h.start(nil)
	var answer local.Reply
	testenv.Eventually(t, patience, func() bool {
		var err error
		answer, err = local.Query(t.Context(), h.cfg.DataDir)
		return err == nil
	}, "the local socket replies")
	if got := answer.Agent; got.Host != h.cfg.host() || got.AgentID != "a1" || got.Version != "v9" || got.Instance == "" || got.Disconnected != "" {
		t.Errorf("got %+v", got)
	}
}
