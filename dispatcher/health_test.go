package dispatcher

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// fakeBroker has a queue of 7 chunks, or fails.
type fakeBroker struct{ err error }

func (b fakeBroker) Backlog(context.Context) (int, error) { return 7, b.err }

func (fakeBroker) FollowWorkers(func(*bus.Worker)) (func(), error) { return func() {}, nil }

// behind is a store with one visit that is overdue for late.
type behind struct {
	Store
	late time.Duration
	err  error
}

func (s behind) Now(ctx context.Context) (time.Time, error) {
	if s.err != nil {
		return time.Time{}, s.err
	}
	return s.Store.Now(ctx)
}

func (s behind) Due(ctx context.Context, shard, _ int) ([]taskstore.Visit, error) {
	if shard != 5 || s.late == 0 {
		return nil, nil
	}
	now, err := s.Store.Now(ctx)
	return []taskstore.Visit{{At: now.Add(-s.late)}}, err
}

func TestHealthNamesThePartWithTheProblem(t *testing.T) {
	t.Parallel()
	down := errors.New("connection refused")
	for name, c := range map[string]struct {
		broker   fakeBroker
		late     time.Duration
		store    error
		worker   bool
		problems [4]string // of NATS, the store, workers and the sweep
	}{
		"none":                {worker: true},
		"a visit is due":      {worker: true, late: time.Second},
		"no worker":           {problems: [4]string{2: "start a worker"}},
		"the sweep is behind": {worker: true, late: time.Minute, problems: [4]string{3: "the sweep is 1m0s behind"}},
		"no NATS":             {broker: fakeBroker{down}, problems: [4]string{0: "connection refused", 2: "unknown"}},
		"no store":            {store: down, worker: true, problems: [4]string{1: "connection refused", 3: "unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &api{cfg: Config{Broker: c.broker}, store: behind{openStore(t), c.late, c.store}}
			if c.worker {
				a.workers.announced(&bus.Worker{ID: "w", Host: "ops-1"}, time.Now())
			}
			h := a.health.read(t.Context(), a)
			for i, part := range []dialect.HealthPart{h.NATS, h.Store, h.Workers, h.Sweep} {
				if want := c.problems[i]; !strings.Contains(part.Problem, want) || (want == "") != (part.Problem == "") {
					t.Errorf("part %d: problem %q, want %q", i, part.Problem, want)
				}
			}
			if c.store == nil && (h.Lag-c.late).Abs() > 20*time.Second {
				t.Errorf("lag %v, want %v", h.Lag, c.late)
			}
			if len(h.Running) > 0 != c.worker || h.Queued != 7 {
				t.Errorf("workers %+v, queued %d", h.Running, h.Queued)
			}
		})
	}
}

func TestWorkersThatEndedAreForgotten(t *testing.T) {
	t.Parallel()
	var w workers
	now := time.Now()
	ids := func(at time.Time) (ids string) {
		for _, worker := range w.running(at) {
			ids += worker.ID
		}
		return ids
	}
	for _, worker := range []bus.Worker{{ID: "c", Host: "b"}, {ID: "b", Host: "a", Started: now}, {ID: "a", Host: "a", Started: now.Add(-time.Hour)}} {
		w.announced(&worker, now)
	}
	if got := ids(now); got != "abc" {
		t.Errorf("workers %q, want abc", got)
	}
	w.announced(&bus.Worker{ID: "c", Stopped: true}, now)
	w.announced(&bus.Worker{ID: "b", Host: "a", Started: now}, now.Add(workerSilence))
	if got := ids(now.Add(workerSilence + time.Millisecond)); got != "b" {
		t.Errorf("workers %q, want b", got)
	}
}

func TestHealthWithoutABrokerIsUnavailable(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	if got := d.call(http.MethodGet, "/v1/health", ""); got.status != http.StatusServiceUnavailable {
		t.Errorf("%d %s, want 503", got.status, got.text)
	}
}
