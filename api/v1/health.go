package v1

import "time"

// Health is the state of the parts of the system, as one dispatcher sees them. The Problem of a
// part is what is wrong with it and what to do, or "".
type Health struct {
	NATS    NATSHealth    `json:"nats"`
	Store   StoreHealth   `json:"store"`
	Workers WorkersHealth `json:"workers"`
	Sweep   SweepHealth   `json:"sweep"`
}

// NATSHealth is the state of NATS and of the queue of operations.
type NATSHealth struct {
	Problem          string  `json:"problem"`
	RoundTripSeconds float64 `json:"round_trip_seconds"` // of a request to JetStream
	Queued           int     `json:"queued"`             // chunks in the queue, including chunks in delivery
}

// StoreHealth is the state of the task store.
type StoreHealth struct {
	Problem          string  `json:"problem"`
	RoundTripSeconds float64 `json:"round_trip_seconds"` // of a request to the store
}

// WorkersHealth lists the workers that announced themselves in the last 10 s.
type WorkersHealth struct {
	Problem string   `json:"problem"`
	Running []Worker `json:"running"` // by host and start
}

// Worker is a worker that runs.
type Worker struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"` // name of the machine
	Version string    `json:"version"`
	Started time.Time `json:"started"`
}

// SweepHealth is the state of the index of open tasks, which workers visit to repair lost messages
// and to end overdue tasks.
type SweepHealth struct {
	Problem    string  `json:"problem"`
	LagSeconds float64 `json:"lag_seconds"` // delay of the oldest due visit
}
