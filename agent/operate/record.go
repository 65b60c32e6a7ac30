package operate

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// record is what is kept on disk of a process: everything that the next agent
// process needs to take it over.
type record struct {
	Spec     agentproto.Spec   `json:"spec"`
	Desired  supervise.Desired `json:"desired"`
	Phase    supervise.Phase   `json:"phase"`
	Main     proc.Identity     `json:"main,omitzero"`
	Last     proc.Identity     `json:"last,omitzero"`
	Aliases  []string          `json:"aliases,omitempty"`
	Failures int               `json:"failures,omitempty"`
	Proven   bool              `json:"proven,omitempty"`
	Restarts int               `json:"restarts,omitempty"`
	// Since and History are void after a reboot, which Boot tells.
	Since        supervise.Moment     `json:"since,omitempty"`
	History      supervise.History    `json:"history,omitzero"`
	Boot         string               `json:"boot,omitempty"`
	LastExit     *agentproto.LastExit `json:"last_exit,omitempty"`
	RegisteredAt time.Time            `json:"registered_at,omitzero"`
	StartedAt    time.Time            `json:"started_at,omitzero"`
	StoppedAt    time.Time            `json:"stopped_at,omitzero"`
	Starting     journal.Exec         `json:"starting,omitzero"`   // of an automatic start under way
	Vouched      string               `json:"vouched,omitempty"`   // see actor.vouched
	Instances    []proc.Identity      `json:"instances,omitempty"` // all of several
	Rhythm       rhythm               `json:"rhythm,omitzero"`     // of a periodic process
	// Named says that Spec only names the process: nothing more is kept of one
	// that was stopped, so that reports go on saying so.
	Named bool `json:"named,omitempty"`
}

// digest tells records from each other: that thousands of them stay in memory
// as they are is not worth it. The zero digest is that of no record.
type digest [sha256.Size]byte

func digestOf(text json.RawMessage) digest {
	if text == nil {
		return digest{}
	}
	return sha256.Sum256(text)
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
	rec.Failures, rec.Proven, rec.Since = a.state.Failures, a.state.Proven, a.state.Since
	rec.Restarts, rec.History, rec.Boot, rec.LastExit = a.state.Restarts, a.state.History, a.engine.host.BootID, a.lastExit
	rec.RegisteredAt, rec.StartedAt, rec.StoppedAt, rec.Starting = a.registeredAt, a.startedAt, a.stoppedAt, a.starting
	rec.Vouched = a.vouched
	rec.Rhythm, rec.Instances = a.schedule.rhythm, a.instances
	text, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("encode the record of process %s: %w", a.key, err)
	}
	return text, nil
}

// otherBoot reports whether the record was made before the host booted last.
func (r *record) otherBoot(bootID string) bool {
	boot := cmp.Or(r.Boot, r.Main.BootID, r.Last.BootID)
	return boot != "" && boot != bootID
}

// forgetBoot leaves of a record what a boot does not end: what is wanted.
func (r *record) forgetBoot() {
	if !r.Main.IsZero() {
		r.LastExit = &agentproto.LastExit{At: time.Now().UTC(), Why: "reboot"}
	}
	r.Main, r.Last, r.Instances, r.Starting = proc.Identity{}, proc.Identity{}, nil, journal.Exec{}
	r.Failures, r.Proven, r.History = 0, false, supervise.History{}
	if r.Desired == supervise.Up {
		r.Phase = supervise.Unknown
	}
}

// restore takes over what encode made.
func (a *actor) restore(text json.RawMessage) error {
	var rec record
	if err := json.Unmarshal(text, &rec); err != nil {
		return fmt.Errorf("decode the record of process %s: %w", a.key, err)
	}
	if a.booted = rec.otherBoot(a.engine.host.BootID); a.booted {
		rec.forgetBoot()
	}
	a.saved = digestOf(text)
	a.last, a.aliases = rec.Last, rec.Aliases
	if rec.Named {
		a.named = namesOf(rec.Spec)
	} else {
		a.spec = rec.Spec
	}
	a.lastExit = rec.LastExit
	a.registeredAt, a.startedAt, a.starting = rec.RegisteredAt, rec.StartedAt, rec.Starting
	a.stoppedAt, a.vouched = rec.StoppedAt, rec.Vouched
	a.schedule.rhythm, a.instances = rec.Rhythm, rec.Instances
	a.state = supervise.State{
		Desired: rec.Desired, Phase: rec.Phase, Main: supervise.Identity(rec.Main), Since: cmp.Or(rec.Since, a.engine.now()), Failures: rec.Failures,
		Proven: rec.Proven, Restarts: rec.Restarts, History: rec.History, Kept: !rec.Named, Policy: policyOf(&rec.Spec, a.engine.cfg.Timing),
		Held: a.doubtful(),
	}
	return nil
}

func policyOf(s *agentproto.Spec, t Timing) supervise.Policy {
	interval := procspec.Milliseconds(s.StartIntervalMS)
	return supervise.Policy{
		Resident: s.Type == procspec.Resident, Periodic: procspec.HasSchedule(s), Retries: s.StartRetries, Interval: interval,
		MaxDelay: t.MaxDelay, StableAfter: max(10*interval, t.StableAfter), LongRun: max(10*interval, t.LongRun), RecoverDelay: t.RecoverDelay,
		FlapStarts: 10, FlapWindow: t.FlapWindow, SetupTries: 2, LimitKills: 3, LimitWindow: t.LimitWindow,
		ProbeInterval: t.ProbeInterval, ProbeTries: 5, ProbeFor: t.ProbeFor, RivalWait: t.RivalWait,
	}
}
