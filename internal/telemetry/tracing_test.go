package telemetry_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/telemetry"
	"github.com/procfleet/procfleet/internal/telemetry/metrics"
)

func TestWithoutADestinationNothingIsRecorded(t *testing.T) {
	t.Parallel()
	tracing, err := telemetry.NewTracing(t.Context(), telemetry.TraceConfig{Ratio: 1})
	if tracing != nil || err != nil {
		t.Fatalf("%v, %v", tracing, err)
	}
	if tracing.Tracer("worker") != nil || tracing.AgentTracer() != nil {
		t.Error("there is a tracer")
	}
	tracing.Close()
}

func TestWhatIsWrongWithTheFlagsIsSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  telemetry.TraceConfig
		want string
	}{
		{telemetry.TraceConfig{URL: "http://127.0.0.1:4318", Ratio: 1.5}, "from 0 to 1"},
		{telemetry.TraceConfig{URL: "127.0.0.1:4318", Ratio: 1}, "http://127.0.0.1:4318"},
		{telemetry.TraceConfig{URL: "grpc://collector:4317", Ratio: 1}, "base URL"},
	} {
		if _, err := telemetry.NewTracing(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want one with %q", c.cfg, err, c.want)
		}
	}
}

// TestACollectorThatHangsCostsSpansAndNoTime ends more spans than may wait
// while the collector answers nothing.
func TestACollectorThatHangsCostsSpansAndNoTime(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(hang)
	registry, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	log := logrus.New()
	log.SetOutput(&lines)
	tracing, err := telemetry.NewTracing(t.Context(), telemetry.TraceConfig{
		URL: server.URL, Ratio: 1, Service: "test", Log: log, Meter: registry.Meter("trace"),
	})
	if err != nil {
		t.Fatal(err)
	}
	const spans = 20_000
	began := time.Now()
	tracer := tracing.Tracer("test")
	for range spans {
		_, span := tracer.Start(t.Context(), "step")
		span.End()
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("%d spans took %v", spans, took)
	}
	tracing.Close()
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the end took %v", took)
	}
	rec := httptest.NewRecorder()
	registry.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{`procfleet_trace_dropped_spans_total\{reason="full"\} [1-9]`, `procfleet_trace_exported_spans_total 0`} {
		if !regexp.MustCompile(want).MatchString(rec.Body.String()) {
			t.Errorf("no %s in\n%s", want, rec.Body.String())
		}
	}
	if n := strings.Count(lines.String(), "trace export failed"); n != 1 {
		t.Errorf("%d lines about traces, want 1:\n%s", n, lines.String())
	}
	if asked.Load() == 0 {
		t.Error("the collector was not asked")
	}
}
