package operate

import (
	"context"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// schedule is the schedule of a periodic process. Only the actor uses it.
type schedule struct {
	table supervise.Timetable
	rhythm
	nextAt time.Time // next tick by the host's clock; zero = not known
	timer  *time.Timer
}

// rhythm is the persisted part of a schedule. Its times are times of [clock.schedule].
type rhythm struct {
	Anchor time.Time `json:"anchor,omitzero"` // beginning of the cycle
	Served time.Time `json:"served,omitzero"` // latest tick whose run began or was skipped
}

// scheduleDue reports that a run may be due.
type scheduleDue struct{}

// scheduler runs a periodic process.
type scheduler struct{ *actor }

// plan schedules the runs of the stored spec. was is the previous spec: an unchanged schedule
// continues.
func (a scheduler) plan(was *agentproto.Spec) {
	spec := &a.memory.Spec
	if !procspec.HasSchedule(spec) {
		a.schedule.drop()
		return
	}
	if a.schedule.Anchor.IsZero() || was.CycleTimeMS != spec.CycleTimeMS || was.Crontab != spec.Crontab {
		now := a.engine.clock.schedule(spec.Crontab != "")
		a.schedule.rhythm = rhythm{Anchor: now, Served: now}
	}
	a.replan()
}

// replan creates the timetable of the stored spec and arms the timer of its next tick. A sweep
// detects a missed tick.
func (a scheduler) replan() {
	s, spec, clock := &a.schedule, &a.memory.Spec, &a.engine.clock
	s.nextAt = time.Time{}
	if now := clock.schedule(spec.Crontab != ""); s.Anchor.After(now) {
		// The anchor was stored while the clock was ahead: the cycle would not begin before
		// the clock has reached that time again.
		s.rhythm = rhythm{Anchor: now, Served: now}
	}
	if spec.Crontab == "" {
		s.table = supervise.Cycle(procspec.Milliseconds(spec.CycleTimeMS), s.Anchor, a.key)
	} else {
		var err error
		if s.table, err = supervise.Crontab(spec.Crontab); err != nil {
			a.log.WithError(err).Error("periodic process unscheduled: crontab unreadable")
		}
	}
	s.await(clock.schedule(s.table.ByWallClock()), a.mailbox)
}

func (s *schedule) drop() {
	if s.timer != nil {
		s.timer.Stop()
	}
	*s = schedule{}
}

// tick begins the run that is due, if any, and arms the timer of the next tick.
func (a scheduler) tick(ctx context.Context) {
	s, clock := &a.schedule, &a.engine.clock
	if s.table.IsZero() {
		return
	}
	now := clock.schedule(s.table.ByWallClock())
	if due := s.table.Due(s.Served, now); !due.IsZero() && a.state.Ticks(clock.now()) {
		s.Served = due
		// Persist the tick before the run begins, so that a crash does not cause a second run.
		a.save()
		a.step(ctx, supervise.Ticked{}, nil)
	}
	s.await(now, a.mailbox)
	a.publish()
}

// await arms the timer for the first tick after now, a time that [clock.schedule] returned.
// If the host's clock is set before the tick, the sweep arms the timer again.
func (s *schedule) await(now time.Time, notify *mailbox) {
	next := s.table.Next(now)
	if next.IsZero() {
		return
	}
	nextAt := time.Now().Add(next.Sub(now))
	if s.nextAt.After(time.Now()) && nextAt.Sub(s.nextAt).Abs() < time.Second {
		return // the timer is set already
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.nextAt = nextAt
	s.timer = time.AfterFunc(time.Until(nextAt), func() { notify.remind(scheduleDue{}) })
}
