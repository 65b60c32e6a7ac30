package agent

import (
	"context"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

const (
	// ownTimeTick is how often the agent looks whether it runs.
	ownTimeTick = 5 * time.Second

	// starvedAfter is how much later than it should a look may come before the
	// agent says that it did not run: stopped by a signal, without CPU, or in
	// swap. Processes that died meanwhile are seen to late.
	starvedAfter = 15 * time.Second
)

// watchOwnTime tells when the agent did not run for a while, until ctx ends.
func (s *session) watchOwnTime(ctx context.Context) {
	tick := time.NewTicker(ownTimeTick)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if idle, starved := starved(now.Sub(last)); starved {
			s.cfg.Log.WithField("for", idle).Warn("agent was not scheduled for a while")
			s.events.tell(agentproto.Event{
				Kind:    agentproto.EventStarved,
				Message: "the agent did not run for a while; what ended meanwhile is seen to only now",
				Details: map[string]any{"seconds": idle.Seconds()},
			})
		}
		last = now
	}
}

// starved says how long the agent did not run between two looks that should be
// a tick apart. Go's monotonic clock decides: the wall clock may have been set,
// and while a machine is suspended its processes do not run either.
func starved(passed time.Duration) (idle time.Duration, starved bool) {
	idle = passed - ownTimeTick
	return idle.Round(time.Second), idle > starvedAfter
}
