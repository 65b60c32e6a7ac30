package operate

import (
	"context"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// schedule is when a periodic process is run. It belongs to the process's
// goroutine.
type schedule struct {
	table supervise.Timetable
	rhythm
	nextAt time.Time // by the host's clock; zero = not known
	timer  *time.Timer
}

// rhythm is what is kept on disk of a schedule. Its times are the engine's
// own of a cycle, and by the host's clock of a crontab.
type rhythm struct {
	Anchor time.Time `json:"anchor,omitzero"` // begin of the cycle
	Served time.Time `json:"served,omitzero"` // latest tick that led to a run, or to the decision to leave it out
}

// ticking says that it may be time for a run.
type ticking struct{}

// plan takes over when a process is run from the spec that is kept now. was is
// the spec before: a schedule that stays goes on in its rhythm.
func (a *actor) plan(was *agentproto.Spec) {
	if !procspec.HasSchedule(&a.spec) {
		a.schedule.drop()
		return
	}
	if a.schedule.Anchor.IsZero() || was.CycleTimeMS != a.spec.CycleTimeMS || was.Crontab != a.spec.Crontab {
		now := a.engine.clock(a.spec.Crontab != "")
		a.schedule.rhythm = rhythm{Anchor: now, Served: now}
	}
	a.replan()
}

// replan makes the timetable of the kept spec and waits for its next tick. One
// that was missed is noticed by the regular sweep.
func (a *actor) replan() {
	s := &a.schedule
	s.nextAt = time.Time{}
	if now := a.engine.clock(a.spec.Crontab != ""); s.Anchor.After(now) {
		// Kept by an agent whose clock was ahead: the cycle would not begin
		// before this one is there as well.
		s.rhythm = rhythm{Anchor: now, Served: now}
	}
	if a.spec.Crontab == "" {
		s.table = supervise.Cycle(procspec.Milliseconds(a.spec.CycleTimeMS), s.Anchor, a.key)
	} else {
		var err error
		if s.table, err = supervise.Crontab(a.spec.Crontab); err != nil {
			a.log.WithError(err).Error("periodic process unscheduled: crontab unreadable")
		}
	}
	s.await(a.engine.clock(s.table.ByWallClock()), a.mailbox)
}

// drop ends a schedule.
func (s *schedule) drop() {
	if s.timer != nil {
		s.timer.Stop()
	}
	*s = schedule{}
}

// clock is the time that ticks are counted in: that of the host, or one that
// goes on evenly from when the engine began, whatever is done to the host's.
func (e *Engine) clock(byWall bool) time.Time {
	if byWall {
		return time.Now()
	}
	return e.began.Add(time.Duration(e.now() - e.beganAt))
}

// tick begins the run that is due, if one is, and waits for the next.
func (a *actor) tick(ctx context.Context) {
	s := &a.schedule
	if s.table.IsZero() {
		return
	}
	now := a.engine.clock(s.table.ByWallClock())
	if due := s.table.Due(s.Served, now); !due.IsZero() && a.state.Ticks(a.engine.now()) {
		s.Served = due
		// On disk before it begins, so that no crash makes it run twice.
		a.trySave()
		a.step(ctx, supervise.Ticked{}, nil)
	}
	s.await(now, a.mailbox)
	a.publish()
}

// await waits for the tick after now, a time of the schedule's own clock. That
// the host's is set meanwhile is noticed by the regular sweep.
func (s *schedule) await(now time.Time, notify *mailbox) {
	next := s.table.Next(now)
	if next.IsZero() {
		return
	}
	nextAt := time.Now().Add(next.Sub(now))
	if s.nextAt.After(time.Now()) && nextAt.Sub(s.nextAt).Abs() < time.Second {
		return // it waits already
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.nextAt = nextAt
	s.timer = time.AfterFunc(time.Until(nextAt), func() { notify.remind(ticking{}) })
}
