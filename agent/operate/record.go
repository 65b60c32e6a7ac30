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
	StoppedAt    time.Time         `json:"stopped_at,omitzero"`
	Starting     journal.Exec      `json:"starting,omitzero"` // of an automatic start under way
	// Named says that Spec only names the process: nothing more is kept of one
	// that was stopped, so that reports go on saying so.
	Named bool `json:"named,omitempty"`
}

// encode is nil for a process of which nothing needs to be kept.
func (a *actor) encode() (json.RawMessage, error) {
	switch {
	case a.state.Kept && (a.state.Desired == supervise.Up || a.state.Main != supervise.Identity{}):
		return a.encodeRecord(record{Spec: a.spec, Last: a.last, Aliases: a.aliases})
	case a.state.Desired == supervise.Down:
		n := a.names()
		return a.encodeRecord(record{
			Spec: agentproto.Spec{Key: a.key, Namespace: n.namespace, Name: n.name, ProcName: n.procName}, Named: true,
		})
	}
	return nil, nil
}

// encodeRecord completes a record by what every one has.
func (a *actor) encodeRecord(rec record) (json.RawMessage, error) {
	rec.Desired, rec.Phase, rec.Main = a.state.Desired, a.state.Phase, proc.Identity(a.state.Main)
	rec.Failures, rec.Proven = a.state.Failures, a.state.Proven
	rec.RegisteredAt, rec.StartedAt, rec.StoppedAt, rec.Starting = a.registeredAt, a.startedAt, a.stoppedAt, a.starting
	text, err := json.Marshal(rec)
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
	a.last, a.aliases = rec.Last, rec.Aliases
	if rec.Named {
		a.named = namesOf(rec.Spec)
	} else {
		a.spec = rec.Spec
	}
	a.registeredAt, a.startedAt, a.starting = rec.RegisteredAt, rec.StartedAt, rec.Starting
	a.stoppedAt = rec.StoppedAt
	a.state = supervise.State{
		Desired: rec.Desired, Phase: rec.Phase, Main: supervise.Identity(rec.Main), Failures: rec.Failures,
		Proven: rec.Proven, Kept: !rec.Named, Policy: policyOf(&rec.Spec, a.engine.cfg.Timing),
	}
	return nil
}
