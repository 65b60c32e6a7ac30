package dialect

import (
	"time"

	v1 "github.com/procfleet/procfleet/api/v1"
)

// ShowHealth is the endpoint that returns the state of the parts of the system.
type ShowHealth = Codec[HealthQuery, *Health]

// HealthQuery requests the state of all parts.
type HealthQuery struct{}

// Health is the state of the parts of the system, as one dispatcher sees them.
type Health struct {
	NATS    HealthPart
	Store   HealthPart
	Workers HealthPart
	Sweep   HealthPart

	Queued  int           // chunks in the queue, including chunks in delivery
	Running []Worker      // by host and start
	Lag     time.Duration // delay of the oldest due visit of the sweep
}

// HealthPart is the state of one part.
type HealthPart struct {
	Problem   string        // what is wrong, "" if nothing is
	RoundTrip time.Duration // of a request to the part; 0 if it failed or none was sent
}

// Worker is a worker that runs.
type Worker struct {
	ID, Host, Version string
	Started           time.Time
}

func decodeHealthQuery(*Request) (HealthQuery, error) { return HealthQuery{}, nil }

func nativeHealth(_ *HealthQuery, h *Health, _ string) Reply {
	shown := v1.Health{
		NATS:    v1.NATSHealth{Problem: h.NATS.Problem, RoundTripSeconds: h.NATS.RoundTrip.Seconds(), Queued: h.Queued},
		Store:   v1.StoreHealth{Problem: h.Store.Problem, RoundTripSeconds: h.Store.RoundTrip.Seconds()},
		Workers: v1.WorkersHealth{Problem: h.Workers.Problem, Running: make([]v1.Worker, 0, len(h.Running))},
		Sweep:   v1.SweepHealth{Problem: h.Sweep.Problem, LagSeconds: h.Lag.Seconds()},
	}
	for _, w := range h.Running {
		shown.Workers.Running = append(shown.Workers.Running, v1.Worker{ID: w.ID, Host: w.Host, Version: w.Version, Started: w.Started})
	}
	return ok(shown)
}
