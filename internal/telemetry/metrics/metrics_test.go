package metrics_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/telemetry/metrics"
)

func TestMetricsAreServed(t *testing.T) {
	t.Parallel()
	registry, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	counter, err := registry.Meter("worker").Int64Counter("procfleet_worker_results")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3)
	rec := httptest.NewRecorder()
	registry.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"procfleet_worker_results_total 3", "go_goroutines"} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("no %q in\n%s", want, rec.Body.String())
		}
	}
}
