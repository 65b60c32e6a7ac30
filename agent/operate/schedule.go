package operate

import (
	"context"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// schedule is when a periodic process is run. It belongs to the actor.
type schedule struct {
	table supervise.Timetable
	rhythm
	nextAt time.Time // by the host's clock; zero = not known
	timer  *time.Timer
}

// rhythm is the part of a schedule that the journal stores. Its times are those of
// [clock.schedule].
type rhythm struct {
	Anchor time.Time `json:"anchor,omitzero"` // beginning of the cycle
	Served time.Time `json:"served,omitzero"` // latest tick that was followed by a run or by the decision to skip it
}

// scheduleDue says that a run may be due.
type scheduleDue struct{}

// scheduler runs a periodic process.
type scheduler struct{ *actor }

// plan schedules the runs by the spec that is kept now. was is the spec before: a
// schedule that did not change continues.
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

// replan makes the timetable of the kept spec and waits for its next tick. The sweep
// notices a tick that was missed.
func (a scheduler) replan() {
	s, spec, clock := &a.schedule, &a.memory.Spec, &a.engine.clock
	s.nextAt = time.Time{}
	if now := clock.schedule(spec.Crontab != ""); s.Anchor.After(now) {
		// It was stored by an agent whose clock was ahead: the cycle would not begin
		// before this clock has reached that time.
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

// drop ends a schedule.
func (s *schedule) drop() {
	if s.timer != nil {
		s.timer.Stop()
	}
	*s = schedule{}
}

// tick begins the run that is due, if one is, and waits for the next.
func (a scheduler) tick(ctx context.Context) {
	s, clock := &a.schedule, &a.engine.clock
	if s.table.IsZero() {
		return
	}
	now := clock.schedule(s.table.ByWallClock())
	if due := s.table.Due(s.Served, now); !due.IsZero() && a.state.Ticks(clock.now()) {
		s.Served = due
		// Save it before the run begins, so that no crash makes it run twice.
		a.save()
		a.step(ctx, supervise.Ticked{}, nil)
	}
	s.await(now, a.mailbox)
	a.publish()
}

// await waits for the tick after now, a time of the schedule's own clock. The sweep
// notices if the host's clock is set meanwhile.
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
