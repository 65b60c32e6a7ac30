package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
)

// maxPidChanges is how often the pid may change inside the start window:
// launchers and double forks hand over to the daemon.
const maxPidChanges = 3

// slowWindow is the time from which a starting process is looked at half as
// often.
const slowWindow = 30 * time.Second

// sighting is what the looks within one start window saw.
type sighting struct {
	id      proc.Identity // latest process; zero = none now
	seen    bool          // there was one
	changes int
	lost    time.Time // when the latest process was missed; zero = it is there
}

func (s *sighting) note(id proc.Identity, now time.Time) {
	switch {
	case id == s.id:
		return
	case id.IsZero():
		s.lost = now
	case s.seen:
		s.changes++
	}
	s.id = id
	if !id.IsZero() {
		s.seen, s.lost = true, time.Time{}
	}
}

// window watches the process come up after its command ended well. was is the
// process that has to be replaced.
//
// Once way has ended, seeing the process is enough. Not seeing it is not: what
// comes next, a stop for instance, would miss a process that is just coming up.
func (r *run) window(ctx, way context.Context, was proc.Identity) verdict {
	begin, end := startWindow(&r.op.Spec)
	settle := r.engine.cfg.Timing.Settle
	opened := time.Now()
	var s sighting
	for {
		r.lookFresh(ctx)
		id := r.main()
		if id == was || !r.isComplete(was) {
			id = proc.Identity{}
		}
		now := time.Now()
		s.note(id, now)
		passed := now.Sub(opened)
		switch {
		case ctx.Err() != nil, way.Err() != nil && !id.IsZero():
			return interrupted()
		case passed >= end && !id.IsZero() && lasted(id, min(settle, end-begin)):
			if bad := r.claim(); bad != nil {
				return *bad
			}
			return succeeded()
		case s.changes > maxPidChanges:
			return checkFailed(fmt.Sprintf("post-check: pid changed more than %d times", maxPidChanges), r.tail())
		case passed >= begin && !s.lost.IsZero() && now.Sub(s.lost) >= settle, passed >= end+2*settle,
			passed >= end+settle && id.IsZero() && s.lost.IsZero():
			return r.absent(s, was)
		}
		if !pause(ctx, r.windowPoll(begin, passed)) {
			return interrupted()
		}
	}
}

// lookFresh looks without holding on to what was known where a pid file says
// which of several is the process: a launcher lives beside the daemon for a
// moment.
func (r *run) lookFresh(ctx context.Context) {
	if several(&r.op.Spec) {
		r.look(ctx)
		return
	}
	known := r.known.main
	if r.op.Spec.PidPath != "" {
		r.known.main = proc.Identity{}
	}
	r.look(ctx)
	r.known.main = known
	if r.main().IsZero() && proc.Alive(known) {
		r.look(ctx) // no pid file names another
	}
}

// windowPoll spaces the looks: until begin they only observe, and a look
// without a pid file searches the whole host.
func (r *run) windowPoll(begin, passed time.Duration) time.Duration {
	poll := r.engine.cfg.Timing.WindowPoll
	switch {
	case passed < begin:
		return max(poll/4, min(4*poll, begin-passed))
	case passed > slowWindow:
		return 2 * poll
	}
	return poll
}

// absent judges a window at whose end the process was not there. One that is
// meant to end by itself may have done so: it has if it was seen, or if its
// command went well, which is known of the commands of this agent process only.
func (r *run) absent(s sighting, was proc.Identity) verdict {
	_, end := startWindow(&r.op.Spec)
	main := r.main()
	switch {
	case r.seen.Verdict == proc.Uncertain:
		return refused("state uncertain: " + r.seen.Evidence)
	case !r.isComplete(was) && !main.IsZero():
		return checkFailed(fmt.Sprintf("post-check: %d of %d instances run, pid %s", len(r.instances()), r.op.Spec.Instances, pidList(r.instances())), r.tail())
	case !main.IsZero() && main == was:
		return checkFailed(fmt.Sprintf("process was not replaced, pid %d", main.PID), r.tail())
	case !main.IsZero():
		return checkFailed(fmt.Sprintf("post-check: pid %d is not stable", main.PID), r.tail())
	case !lives(&r.op.Spec) && (s.seen || r.command != nil && !r.seen.StalePidFile):
		return succeeded()
	case s.seen:
		return checkFailed("post-check: process ended within the start window", r.seen.Evidence, r.tail())
	}
	return checkFailed(fmt.Sprintf("post-check: no process within %s", end), r.seen.Evidence, r.tail())
}
