package telemetry_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/procfleet/procfleet/internal/telemetry"
)

func TestLinesAreJSONWithTheirFields(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(telemetry.LogConfig{Level: "info", Format: telemetry.FormatJSON, Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	log.WithField("component", "worker").Info("task finished")
	log.Debug("too detailed")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %q", err, out.String())
	}
	if line["msg"] != "task finished" || line["component"] != "worker" {
		t.Errorf("line %v", line)
	}
}

func TestUnknownLevelAndFormatSayWhatToUse(t *testing.T) {
	t.Parallel()
	for _, cfg := range []telemetry.LogConfig{{Level: "loud", Format: "json"}, {Level: "info", Format: "xml"}} {
		if _, err := telemetry.NewLogger(cfg); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%+v: error %v", cfg, err)
		}
	}
}

func TestMetricsAreServed(t *testing.T) {
	t.Parallel()
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	counter, err := metrics.Meter("worker").Int64Counter("procfleet_worker_results")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3)
	rec := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"procfleet_worker_results_total 3", "go_goroutines"} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("no %q in\n%s", want, rec.Body.String())
		}
	}
}

func TestSpansReachTheExporter(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	provider := telemetry.NewTracerProvider("procfleet", exporter)
	_, span := provider.Tracer("worker").Start(t.Context(), "deliver")
	span.End()
	if err := provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if spans := exporter.GetSpans(); len(spans) != 1 || spans[0].Name != "deliver" {
		t.Errorf("spans %v", spans)
	}
}
