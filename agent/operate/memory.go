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

// memory holds the persisted data of a process that the state machine does not contain.
type memory struct {
	recorded

	saved    digest        // digest of the record in the journal
	rebooted bool          // the host has booted since the record was stored
	exited   proc.Identity // process whose end LastExit describes
}

// recorded is the part of a record that the state machine does not contain.
type recorded struct {
	Spec         agentproto.Spec      `json:"spec"`          // only its names, unless supervise.State.SpecStored
	Last         proc.Identity        `json:"last,omitzero"` // process before the main one
	Aliases      []string             `json:"aliases,omitempty"`
	LastExit     *agentproto.LastExit `json:"last_exit,omitempty"`
	RegisteredAt time.Time            `json:"registered_at,omitzero"`
	StartedAt    time.Time            `json:"started_at,omitzero"`
	StoppedAt    time.Time            `json:"stopped_at,omitzero"` // zero unless stopped by request
	Starting     journal.Exec         `json:"starting,omitzero"`   // start command of the automatic start in progress; zero = none
	Instances    []proc.Identity      `json:"instances,omitempty"` // all running instances, if the spec has several
	// Confirmed is the ID of the journal damage after which an operation confirmed that the
	// process should run; "" = the record is older than any damage. See actor.unconfirmed.
	Confirmed string `json:"confirmed,omitempty"`
}

// record is the journal's record of a process: everything that the next agent process needs
// to manage the process.
type record struct {
	recorded
	supervise.Saved

	Boot   string `json:"boot,omitempty"`  // boot of the host during which the record was stored
	Rhythm rhythm `json:"rhythm,omitzero"` // ticks of a periodic process
	// Named reports that Spec contains only the names of a stopped process; see namesOnly.
	Named bool `json:"named,omitempty"`
}

// digest is the hash of a record's text, which would take more memory. The zero digest means
// that no record is stored.
type digest [sha256.Size]byte

func digestOf(text json.RawMessage) digest {
	if text == nil {
		return digest{}
	}
	return sha256.Sum256(text)
}

// namesOnly returns a spec with the fields that reports show of a process without a stored
// spec.
func namesOnly(s agentproto.Spec) agentproto.Spec {
	return agentproto.Spec{Key: s.Key, Namespace: s.Namespace, Name: s.Name, ProcName: s.ProcName}
}

// learn stores the executable names under which the program was found.
func (m *memory) learn(aliases []string) {
	if len(aliases) > 0 {
		m.Aliases = aliases
	}
}

// save stores the record if it has changed. It only logs an error: supervision must not stop
// because a disk is full. The next change retries.
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

// encode returns the record; nil if the process needs none.
func (a *actor) encode() (json.RawMessage, error) {
	s := &a.state
	rec := record{
		recorded: a.memory.recorded, Saved: s.Saved, Boot: a.engine.host.BootID, Rhythm: a.schedule.rhythm,
	}
	switch {
	case s.SpecStored && (s.Desired == supervise.Up || s.Main != supervise.Identity{}):
	case s.Desired == supervise.Down:
		rec.Spec = namesOnly(rec.Spec)
		rec.Spec.Key = a.key
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

// restore sets the state of the actor from a record of encode.
func (a *actor) restore(text json.RawMessage) error {
	var rec record
	if err := json.Unmarshal(text, &rec); err != nil {
		return fmt.Errorf("decode the record of process %s: %w", a.key, err)
	}
	rebooted := rec.otherBoot(a.engine.host.BootID)
	if rebooted {
		rec.forgetBoot()
	}
	a.memory = memory{recorded: rec.recorded, saved: digestOf(text), rebooted: rebooted, exited: rec.Last}
	a.schedule.rhythm = rec.Rhythm
	a.state = supervise.State{
		Saved: rec.Saved, SpecStored: !rec.Named, Policy: policyOf(&rec.Spec, a.engine.cfg.Timing), Paused: a.unconfirmed(),
	}
	a.state.Since = cmp.Or(rec.Since, a.engine.clock.now())
	return nil
}

// otherBoot reports whether the record was stored before the host's latest boot.
func (r *record) otherBoot(bootID string) bool {
	return r.Boot != "" && r.Boot != bootID
}

// forgetBoot removes data from the record that is invalid after a boot.
func (r *record) forgetBoot() {
	if r.Main != (supervise.Identity{}) {
		r.LastExit = &agentproto.LastExit{At: time.Now().UTC(), Why: "reboot"}
	}
	r.Main, r.Last, r.Instances, r.Starting = supervise.Identity{}, proc.Identity{}, nil, journal.Exec{}
	r.Failures, r.Proven, r.History = 0, false, supervise.History{}
	if r.Desired == supervise.Up {
		r.Phase = supervise.Unknown
	}
}

// unconfirmed reports whether the record may be older than the callers' latest operations,
// because the journal has lost records. Such a process is observed and adopted, but neither
// started nor terminated until an operation confirms that it should run.
func (a *actor) unconfirmed() bool { return a.memory.Confirmed != a.engine.damage }

// confirm accepts a successful start, restart or supervise operation as confirmation, unless
// an earlier agent process had begun it.
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
