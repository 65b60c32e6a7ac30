package agent

import (
	"time"

	"github.com/procfleet/procfleet/agent/operate"
)

// Engine is the part of an [operate.Engine] that an agent drives.
type Engine = engine

// Machine replaces the host that an agent works on, for simulations of whole
// fleets in one process. Without one the agent works on the host it runs on.
type Machine struct {
	// Engine returns what carries out operations.
	Engine func(operate.Config) (Engine, error)
	// Wall is the wall clock of the host, and Elapsed the time since it booted,
	// which counts also while the host is suspended.
	Wall    func() time.Time
	Elapsed func() time.Duration
}

func (m *Machine) newClock() *clock {
	return &clock{known: make(chan struct{}), read: func() reading {
		return reading{wall: m.Wall().Round(0), monotonic: m.Elapsed()}
	}}
}
