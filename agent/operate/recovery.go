package operate

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// Recover resumes the state that an earlier agent process left. It searches for processes and
// adopts them without running anything. Operations that had begun are completed according to
// the present state of their process and never run again; operations that had not begun wait
// for [Engine.Resume]. Call Recover once, before Submit.
func (e *Engine) Recover(left journal.Recovered) {
	if err := e.host.Outputs.Recover(); err != nil {
		e.cfg.Log.WithError(err).Warn("old output files not recovered")
	}
	if left.Damage != nil {
		e.damage = left.Damage.ID
	}
	var adopted []*actor
	for key, text := range left.Processes {
		a, down := e.adopt(key, text)
		if a != nil {
			adopted = append(adopted, a)
		}
		e.countDown(key, down)
	}
	// Open the mailboxes only after all operations are submitted: the command of an
	// interrupted operation may still run, and an automatic start must not run meanwhile.
	defer func() {
		for _, a := range adopted {
			a.mailbox.open()
		}
	}()
	var waiting []journal.Op
	for _, open := range left.Open {
		if open.Executing {
			e.submit(order{op: open.Op, interrupted: &open.Exec})
		} else {
			waiting = append(waiting, open.Op)
		}
	}
	if len(waiting) > 0 {
		e.cfg.Log.WithField("operations", len(waiting)).Info("recovered operations waiting for server time")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recovered = waiting
}

// Resume carries out the recovered operations that had not begun, unless they are too old by
// Config.InTime. Call it when Config.InTime knows the server's time: after a boot this host's
// clock may be wrong by days, and an operation of yesterday would be executed today.
func (e *Engine) Resume() {
	e.mu.Lock()
	waiting := e.recovered
	e.recovered = nil
	e.mu.Unlock()
	for _, op := range waiting {
		switch {
		case e.cfg.InTime(op.ReceivedAt.Add(-clockError)):
			// How long the agent was down is unknown: the task may have ended.
			e.reject(e.life, op, procop.Refused("agent restarted, not executed: the servers' clock was set back"))
		case e.host.Late(&op) || e.cfg.InTime(op.ReceivedAt.Add(procspec.Budget(&op.Spec))):
			e.submit(order{op: op}) // submit rejects late operations
		default:
			e.reject(e.life, op, procop.Refused("agent restarted, not executed: too old"))
		}
	}
}

// clockError is the largest difference between two estimates of the servers' time.
const clockError = 5 * time.Second

// adopt returns an actor that does not handle messages yet, nil if the key needs none, and
// since when the process is stopped by request; zero if it is not.
func (e *Engine) adopt(key string, text json.RawMessage) (a *actor, down time.Time) {
	a = newActor(e, key)
	if err := a.restore(text); err != nil {
		e.cfg.Log.WithError(err).WithField("process", key).Error("process unmanaged: record unreadable")
		return nil, time.Time{}
	}
	m := &a.memory
	if a.state.Desired == supervise.Down && a.forgettable() {
		a.publish()
		left := a.rest()
		left.snapshot.changedAt = m.StoppedAt
		e.mu.Lock()
		defer e.mu.Unlock()
		e.resting[key] = left
		return nil, m.StoppedAt
	}
	if a.state.SpecStored {
		e.host.Claims.AddMark(e.host.Mark(&m.Spec), &m.Spec)
		e.host.Claims.ClaimPidFile(m.Spec.PidPath, key, "")
	}
	if proc.Alive(proc.Identity(a.state.Main)) {
		a.settle()
	}
	e.host.Claims.ClaimInstances(key, slices.DeleteFunc(slices.Clone(m.Instances), func(id proc.Identity) bool { return !proc.Alive(id) }))
	if a.state.Desired == supervise.Up && procspec.HasSchedule(&m.Spec) {
		scheduler{a}.replan()
	}
	a.publish()
	unsettled := *a.snapshot.Load() // published until the first search
	unsettled.settled = false
	a.snapshot.Store(&unsettled)
	a.mailbox.put(supervise.Recovered{NotBefore: automation{a}.notBefore()})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.actors[key] = a
	return a, m.StoppedAt
}

// notBefore returns the earliest moment of an automatic start: after a boot of the host, the
// programs that start processes at boot have precedence.
func (a automation) notBefore() supervise.Moment {
	t := a.engine.cfg.Timing
	earliest := supervise.Moment(t.BootUptime)
	if a.memory.rebooted {
		earliest = max(earliest, a.engine.clock.now()+supervise.Moment(t.BootGrace))
	}
	return earliest
}
