package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// Broker reports the state of NATS and of the workers.
type Broker interface {
	// Backlog returns the number of chunks in the queue, including chunks in delivery.
	Backlog(ctx context.Context) (int, error)
	// FollowWorkers calls announced for every announcement of a worker, one at a time,
	// until stop is called.
	FollowWorkers(announced func(*bus.Worker)) (stop func(), err error)
}

const (
	healthEvery   = time.Second
	healthTimeout = 2 * time.Second  // of all requests to the parts
	workerSilence = 10 * time.Second // a worker without an announcement for longer does not run
	sweepBehind   = 30 * time.Second // a visit that is later than this is a problem
)

// showHealth returns the state of the parts.
func (e *exchange) showHealth(ctx context.Context, _ *dialect.HealthQuery, _ string) (*dialect.Health, error) {
	if e.api.cfg.Broker == nil {
		return nil, &dialect.Error{Kind: dialect.Unavailable, Problem: "this server does not read the health of its parts", RetryAfter: retryUnavailable}
	}
	return e.api.health.read(ctx, e.api), nil
}

// health has the last reading of the state of the parts. Many consoles request it each second, so
// it is read at most once in healthEvery.
type health struct {
	mu   sync.Mutex
	at   time.Time
	last *dialect.Health
}

func (h *health) read(ctx context.Context, a *api) *dialect.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil || time.Since(h.at) >= healthEvery {
		h.last, h.at = a.readHealth(context.WithoutCancel(ctx)), time.Now()
	}
	return h.last
}

// readHealth requests all parts at the same time.
func (a *api) readHealth(ctx context.Context) *dialect.Health {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	h := new(dialect.Health)
	var reading sync.WaitGroup
	reading.Go(func() {
		h.NATS = healthOf("NATS is unavailable", func() (err error) {
			h.Queued, err = a.cfg.Broker.Backlog(ctx)
			return err
		})
	})
	reading.Go(func() {
		h.Store = healthOf("the task store is unavailable", func() error {
			_, err := a.store.Now(ctx)
			return err
		})
	})
	reading.Go(func() {
		var err error
		h.Lag, err = sweepLag(ctx, a.store)
		switch {
		case err != nil:
			h.Sweep.Problem = "unknown: the index of open tasks cannot be read: " + err.Error()
		case h.Lag > sweepBehind:
			h.Sweep.Problem = fmt.Sprintf("the sweep is %s behind: lost messages are repaired late and overdue tasks end late; start more workers", h.Lag.Round(time.Second))
		}
	})
	reading.Wait()
	h.Running = a.workers.running(time.Now())
	switch {
	case len(h.Running) > 0:
	case h.NATS.Problem != "":
		h.Workers.Problem = "unknown: NATS is unavailable"
	default:
		h.Workers.Problem = fmt.Sprintf("no worker has announced itself in the last %s: operations wait in the queue; start a worker", workerSilence)
	}
	return h
}

// healthOf measures a request to a part.
func healthOf(problem string, request func() error) dialect.HealthPart {
	begin := time.Now()
	if err := request(); err != nil {
		return dialect.HealthPart{Problem: problem + ": " + err.Error()}
	}
	return dialect.HealthPart{RoundTrip: time.Since(begin)}
}

// sweepLag returns the delay of the oldest due visit in all shards of the sweep index.
func sweepLag(ctx context.Context, store Store) (time.Duration, error) {
	now, err := store.Now(ctx)
	if err != nil {
		return 0, err
	}
	var lag time.Duration
	for shard := range taskstore.SweepShards {
		due, err := store.Due(ctx, shard, 1)
		if err != nil {
			return 0, err
		}
		for _, visit := range due {
			lag = max(lag, now.Sub(visit.At))
		}
	}
	return lag, nil
}

// workers has the last announcement of each worker.
type workers struct {
	mu   sync.Mutex
	seen map[string]*sighting // by id
}

type sighting struct {
	bus.Worker
	at time.Time
}

// follow reads announcements until ctx ends.
func (w *workers) follow(ctx context.Context, broker Broker) error {
	stop, err := broker.FollowWorkers(func(announced *bus.Worker) { w.announced(announced, time.Now()) })
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done()
	return nil
}

func (w *workers) announced(worker *bus.Worker, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if worker.Stopped {
		delete(w.seen, worker.ID)
		return
	}
	if w.seen == nil {
		w.seen = map[string]*sighting{}
	}
	w.seen[worker.ID] = &sighting{*worker, now}
}

// running returns the workers that have announced themselves lately, by host and start, and forgets the others.
func (w *workers) running(now time.Time) []dialect.Worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []dialect.Worker
	for id, s := range w.seen {
		if now.Sub(s.at) > workerSilence {
			delete(w.seen, id)
			continue
		}
		all = append(all, dialect.Worker{ID: id, Host: s.Host, Version: s.Version, Started: s.Started})
	}
	slices.SortFunc(all, func(a, b dialect.Worker) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID))
	})
	return all
}
