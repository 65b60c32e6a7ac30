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

// Recover takes over what an earlier agent process left. Processes are looked
// for and adopted without running anything; operations that had begun are
// judged by what is there now and never run again; those that had not begun
// wait for [Engine.Resume]. Call it once, before Submit.
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
	// Nothing begins before every operation is with its process: what was begun
	// may still be under way, and an automatic start must not run beside it.
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

// Resume carries out what Recover found and had not begun, unless its time has
// passed by Config.InTime. Call it when that knows the server's time: this
// host's clock may be wrong by days after a boot, and an operation of
// yesterday would be executed today.
func (e *Engine) Resume() {
	e.mu.Lock()
	waiting := e.recovered
	e.recovered = nil
	e.mu.Unlock()
	for _, op := range waiting {
		switch received := receivedAt(&op); {
		case e.cfg.InTime(received.Add(-clockError)):
			// How long the agent was down is not known: the task may have ended.
			e.turnAway(e.life, op, procop.Refused("agent restarted, not executed: the servers' clock was set back"))
		case e.host.Late(&op) || e.cfg.InTime(received.Add(procspec.Budget(&op.Spec))):
			e.submit(order{op: op}) // which refuses what is late
		default:
			e.turnAway(e.life, op, procop.Refused("agent restarted, not executed: too old"))
		}
	}
}

// clockError is by how much two estimates of the servers' time may differ.
const clockError = 5 * time.Second

// receivedAt is when an operation was accepted, by the server's clock. Records
// of older agents have the host's time only.
func receivedAt(op *journal.Op) time.Time {
	if op.ReceivedAt.IsZero() {
		return op.AcceptedAt
	}
	return op.ReceivedAt
}

// adopt returns an actor that has not begun, nil if the key needs none, and
// since when the process is wanted down; zero if it is not.
func (e *Engine) adopt(key string, text json.RawMessage) (a *actor, down time.Time) {
	a = newActor(e, key)
	if err := a.restore(text); err != nil {
		e.cfg.Log.WithError(err).WithField("process", key).Error("process unmanaged: record unreadable")
		return nil, time.Time{}
	}
	if a.state.Desired == supervise.Down && a.forgettable() {
		e.lay(a)
		return nil, a.stoppedAt
	}
	if a.state.Kept {
		e.host.Claims.AddMark(e.host.Mark(&a.spec), &a.spec)
	}
	if proc.Alive(proc.Identity(a.state.Main)) {
		a.settle()
	}
	e.host.Claims.ClaimInstances(key, slices.DeleteFunc(slices.Clone(a.instances), func(id proc.Identity) bool { return !proc.Alive(id) }))
	if a.state.Desired == supervise.Up && procspec.HasSchedule(&a.spec) {
		a.replan()
	}
	a.publish()
	a.awaitLook()
	a.mailbox.put(supervise.Recovered{NotBefore: a.notBefore()})
	if a.state.Desired == supervise.Up {
		e.countSupervised(true)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.actors[key] = a
	return a, a.stoppedAt
}

// notBefore is the first moment of an automatic start: on a host that has just
// booted, what starts processes at the boot goes first.
func (a *actor) notBefore() supervise.Moment {
	t := a.engine.cfg.Timing
	earliest := supervise.Moment(t.BootUptime)
	if a.booted {
		earliest = max(earliest, a.engine.now()+supervise.Moment(t.BootGrace))
	}
	return earliest
}
