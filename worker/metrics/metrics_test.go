package metrics

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/telemetry/metrics"
	"github.com/procfleet/procfleet/taskstore"
)

// newMetrics returns the metrics of a worker and a function that renders them in
// Prometheus' text format.
func newMetrics(t *testing.T) (m *Metrics, page func() string) {
	t.Helper()
	registry, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	if m, err = New(registry.Meter("worker")); err != nil {
		t.Fatal(err)
	}
	return m, func() string {
		rec := httptest.NewRecorder()
		registry.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return rec.Body.String()
	}
}

var (
	series = regexp.MustCompile(`(?m)^procfleet_worker_(\w+)(?:\{(.*)\})? `)
	label  = regexp.MustCompile(`(\w+)="`)
)

func TestNamesAndLabels(t *testing.T) {
	t.Parallel()
	m, page := newMetrics(t)
	now := time.Now()
	results := []procfleet.Result{{Reason: procfleet.ReasonSucceeded, FinishedAt: now.Add(-time.Second)}}
	m.Results(t.Context(), results)
	m.Collected(t.Context(), []taskstore.Batch{{Results: results}}, now)
	m.Busy("results_s", BusyFull, 1)
	m.InboxDrops.Add(1, "presence")
	m.Queues.depths[0].known.Store(true)

	got := map[string]string{}
	for _, s := range series.FindAllStringSubmatch(page(), -1) {
		var labels []string
		for _, l := range label.FindAllStringSubmatch(s[2], -1) {
			labels = append(labels, l[1])
		}
		got[s[1]] = strings.Join(labels, " ")
	}
	want := map[string]string{
		"items_delivered_total":         "",
		"results_recorded_total":        "",
		"results_total":                 "reason state",
		"server_results_total":          "reason",
		"tasks_completed_total":         "",
		"host_troubles_total":           "trouble",
		"sweep_visits_total":            "",
		"rollout_holds_total":           "kind",
		"sweep_actions_total":           "action",
		"tasks_told_total":              "",
		"callbacks_total":               "outcome",
		"announcements_total":           "outcome",
		"process_reports_total":         "outcome",
		"settings_questions_total":      "outcome",
		"host_events_total":             "outcome",
		"messages_refused_total":        "reason type",
		"agent_ids_refused_total":       "",
		"dropped_result_messages_total": "reason",
		"busy_replies_total":            "cause inbox",
		"inbox_dropped_messages_total":  "inbox",
		"chunks_in_flight":              "",
		"chunks_parked":                 "",
		"sweep_leases":                  "",
		"sweep_due_tasks":               "",
		"sweep_overdue_seconds":         "",
		"sweep_lag_seconds":             "",
		"queue_waiting_messages":        "lane queue",
		"queue_held_messages":           "lane queue",
		"result_lag_seconds_bucket":     "le",
		"result_lag_seconds_sum":        "",
		"result_lag_seconds_count":      "",
		"collect_batch_results_bucket":  "le",
		"collect_batch_results_sum":     "",
		"collect_batch_results_count":   "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSeriesBeginWithZeroAndCountByLabel(t *testing.T) {
	t.Parallel()
	m, page := newMetrics(t)
	m.Troubles.Add(2, TroubleGrace)
	m.Rejected(agentproto.TypeReply, fleetkey.ErrUnsigned)
	text := page()
	for _, line := range []string{
		`procfleet_worker_host_troubles_total{trouble="silent"} 0`,
		`procfleet_worker_host_troubles_total{trouble="grace"} 2`,
		`procfleet_worker_server_results_total{reason="timed_out"} 0`,
		`procfleet_worker_messages_refused_total{reason="unsigned",type="reply"} 1`,
		`procfleet_worker_messages_refused_total{reason="forged",type="reply"} 0`,
		`procfleet_worker_tasks_told_total 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
}

func TestSweepGaugesCombineTheShards(t *testing.T) {
	t.Parallel()
	m, page := newMetrics(t)
	now := time.Now()
	m.Sweeps.Round(0, []taskstore.Visit{{At: now.Add(-time.Minute)}, {At: now}}, now)
	m.Sweeps.Round(1, []taskstore.Visit{{At: now.Add(-time.Second)}}, now)
	m.Sweeps.Round(2, []taskstore.Visit{{At: now.Add(-time.Hour)}}, now)
	m.Sweeps.Forget(2)
	m.Sweeps.Overdue(1, 3*time.Second)
	m.Sweeps.Overdue(1, 2*time.Second)
	text := page()
	for _, line := range []string{
		"procfleet_worker_sweep_leases 2",
		"procfleet_worker_sweep_due_tasks 3",
		"procfleet_worker_sweep_lag_seconds 60",
		"procfleet_worker_sweep_overdue_seconds 3",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
}
