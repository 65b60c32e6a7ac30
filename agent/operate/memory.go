package operate

import (
	"cmp"
	"context"
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

// memory is what the journal stores of a process, as far as the state machine does
// not know it.
type memory struct {
	recorded

	named    names  // of the process, if no spec is kept
	saved    digest // of the record in the journal
	rebooted bool   // the record was made before the host booted
}

// recorded is the part of a record that the state machine does not know.
type recorded struct {
	Spec         agentproto.Spec      `json:"spec"`          // meaningful if the state machine keeps one
	Last         proc.Identity        `json:"last,omitzero"` // the process before the main one
	Aliases      []string             `json:"aliases,omitempty"`
	LastExit     *agentproto.LastExit `json:"last_exit,omitempty"`
	RegisteredAt time.Time            `json:"registered_at,omitzero"`
	StartedAt    time.Time            `json:"started_at,omitzero"`
	StoppedAt    time.Time            `json:"stopped_at,omitzero"` // zero unless wanted down
	Starting     journal.Exec         `json:"starting,omitzero"`   // command of the automatic start that runs; zero = none
	Instances    []proc.Identity      `json:"instances,omitempty"` // of a process that has several
	// Confirmed is the journal's damage after which a command confirmed that the
	// process is to run; "" = before any. See actor.unconfirmed.
	Confirmed string `json:"vouched,omitempty"`
}

// record is what the journal stores of a process: everything that the next agent
// process needs to take it over.
type record struct {
	recorded

	Desired  supervise.Desired `json:"desired"`
	Phase    supervise.Phase   `json:"phase"`
	Main     proc.Identity     `json:"main,omitzero"`
	Failures int               `json:"failures,omitempty"`
	Proven   bool              `json:"proven,omitempty"`
	Restarts int               `json:"restarts,omitempty"`
	// Since and History are valid for the boot that is named by Boot.
	Since   supervise.Moment  `json:"since,omitempty"`
	History supervise.History `json:"history,omitzero"`
	Boot    string            `json:"boot,omitempty"`
	Rhythm  rhythm            `json:"rhythm,omitzero"` // of a periodic process
	// Named says that Spec only names a process that was stopped, for reports.
	Named bool `json:"named,omitempty"`
}

// digest identifies the text of a record, which would take more memory. The zero
// digest is that of no record.
type digest [sha256.Size]byte

func digestOf(text json.RawMessage) digest {
	if text == nil {
		return digest{}
	}
	return sha256.Sum256(text)
}

// learn adds names under which the program was seen.
func (m *memory) learn(aliases []string) {
	if len(aliases) > 0 {
		m.Aliases = aliases
	}
}

// save writes the record if it changed. It continues without the record if that fails:
// supervision must not stop because a disk is full. The next change tries again.
func (a *actor) save() {
	text, err := a.encode()
	if digest := digestOf(text); err == nil && digest != a.memory.saved {
		if err = a.engine.cfg.Ledger.SaveProcess(a.key, text); err == nil {
			a.memory.saved = digest
		}
	}
	if err != nil {
		a.log.WithError(err).Error("process record not saved")
	}
}

// encode returns the record, nil for a process that needs none.
func (a *actor) encode() (json.RawMessage, error) {
	s := &a.state
	rec := record{
		recorded: a.memory.recorded, Desired: s.Desired, Phase: s.Phase, Main: proc.Identity(s.Main), Failures: s.Failures,
		Proven: s.Proven, Restarts: s.Restarts, Since: s.Since, History: s.History, Boot: a.engine.host.BootID, Rhythm: a.schedule.rhythm,
	}
	switch {
	case s.Kept && (s.Desired == supervise.Up || s.Main != supervise.Identity{}):
	case s.Desired == supervise.Down:
		n := a.names()
		rec.Spec = agentproto.Spec{Key: a.key, Namespace: n.namespace, Name: n.name, ProcName: n.procName}
		rec.Named, rec.Last, rec.Aliases = true, proc.Identity{}, nil
	default:
		return nil, nil
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("encode the record of process %s: %w", a.key, err)
	}
	return text, nil
}

// restore restores what encode made.
func (a *actor) restore(text json.RawMessage) error {
	var rec record
	if err := json.Unmarshal(text, &rec); err != nil {
		return fmt.Errorf("decode the record of process %s: %w", a.key, err)
	}
	rebooted := rec.otherBoot(a.engine.host.BootID)
	if rebooted {
		rec.forgetBoot()
	}
	a.memory = memory{recorded: rec.recorded, saved: digestOf(text), rebooted: rebooted}
	if rec.Named {
		a.memory.named, a.memory.Spec = namesOf(rec.Spec), agentproto.Spec{}
	}
	a.schedule.rhythm = rec.Rhythm
	a.state = supervise.State{
		Desired: rec.Desired, Phase: rec.Phase, Main: supervise.Identity(rec.Main), Since: cmp.Or(rec.Since, a.engine.clock.now()), Failures: rec.Failures,
		Proven: rec.Proven, Restarts: rec.Restarts, History: rec.History, Kept: !rec.Named, Policy: policyOf(&rec.Spec, a.engine.cfg.Timing),
		Held: a.unconfirmed(),
	}
	return nil
}

// otherBoot reports whether the record was made before the host booted last.
func (r *record) otherBoot(bootID string) bool {
	boot := cmp.Or(r.Boot, r.Main.BootID, r.Last.BootID)
	return boot != "" && boot != bootID
}

// forgetBoot removes from a record what ended with the boot.
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

// unconfirmed reports whether the record may be older than what callers wanted last,
// because the journal lost records since. Such a process is followed and adopted, but
// neither started nor terminated until a command confirms that it is to run.
func (a *actor) unconfirmed() bool { return a.memory.Confirmed != a.engine.damage }

// confirm accepts an operation that supervises the process as the confirmation. An
// operation that an earlier agent process had begun is none.
func (a effects) confirm(ctx context.Context, msg *completed) {
	o := a.ops[msg.id]
	reached := msg.report.Outcome.Class == supervise.Done || msg.report.Outcome.Class == supervise.Already
	if reached && o.interrupted == nil && procspec.StartsProcess(o.op.Action) && a.unconfirmed() {
		a.memory.Confirmed = a.engine.damage
		a.suspend(ctx)
	}
}

func policyOf(s *agentproto.Spec, t Timing) supervise.Policy {
	interval := procspec.Milliseconds(s.StartIntervalMS)
	return supervise.Policy{
		Resident: s.Type == procspec.Resident, Periodic: procspec.HasSchedule(s), Retries: s.StartRetries, Interval: interval,
		MaxDelay: t.MaxDelay, StableAfter: max(10*interval, t.StableAfter), LongRun: max(10*interval, t.LongRun), RecoverDelay: t.RecoverDelay,
		FlapStarts: 10, FlapWindow: t.FlapWindow, SetupTries: 2, LimitKills: 3, LimitWindow: t.LimitWindow,
		ProbeInterval: t.ProbeInterval, ProbeTries: 5, ProbeFor: t.ProbeFor, ConflictWait: t.ConflictWait,
	}
}
