package operate

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// record is what is kept on disk of a process: everything that the next agent
// process needs to take it over.
type record struct {
	Spec         agentproto.Spec   `json:"spec"`
	Desired      supervise.Desired `json:"desired"`
	Phase        supervise.Phase   `json:"phase"`
	Main         proc.Identity     `json:"main,omitzero"`
	Last         proc.Identity     `json:"last,omitzero"`
	Aliases      []string          `json:"aliases,omitempty"`
	Failures     int               `json:"failures,omitempty"`
	Proven       bool              `json:"proven,omitempty"`
	RegisteredAt time.Time         `json:"registered_at,omitzero"`
	StartedAt    time.Time         `json:"started_at,omitzero"`
	Starting     journal.Exec      `json:"starting,omitzero"` // of an automatic start under way
}

// encode is nil for a process of which nothing needs to be kept.
func (a *actor) encode() (json.RawMessage, error) {
	if !a.state.Kept || a.state.Desired != supervise.Up && a.state.Main == (supervise.Identity{}) {
		return nil, nil
	}
	text, err := json.Marshal(record{
		Spec: a.spec, Desired: a.state.Desired, Phase: a.state.Phase, Main: proc.Identity(a.state.Main), Last: a.last,
		Aliases: a.aliases, Failures: a.state.Failures, Proven: a.state.Proven,
		RegisteredAt: a.registeredAt, StartedAt: a.startedAt, Starting: a.starting,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the record of process %s: %w", a.key, err)
	}
	return text, nil
}

// restore takes over what encode made.
func (a *actor) restore(text json.RawMessage) error {
	var rec record
	if err := json.Unmarshal(text, &rec); err != nil {
		return fmt.Errorf("decode the record of process %s: %w", a.key, err)
	}
	a.saved = text
	a.spec, a.last, a.aliases = rec.Spec, rec.Last, rec.Aliases
	a.registeredAt, a.startedAt, a.starting = rec.RegisteredAt, rec.StartedAt, rec.Starting
	a.state = supervise.State{
		Desired: rec.Desired, Phase: rec.Phase, Main: supervise.Identity(rec.Main), Failures: rec.Failures,
		Proven: rec.Proven, Kept: true, Policy: policyOf(&rec.Spec, a.engine.cfg.Timing),
	}
	return nil
}
