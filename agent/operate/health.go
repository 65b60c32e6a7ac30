package operate

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// maxUnhealthy is the number of consecutive failures of the health command that make a
// process unhealthy.
const maxUnhealthy = 3

// health is the state of the health checks of a supervised process.
type health struct {
	main     proc.Identity // process that the checks apply to
	due      time.Time     // time of the next check
	checking bool
	failures int // consecutive failures
	reported bool
}

// healthChecked reports the end of a health check.
type healthChecked struct {
	main   proc.Identity
	answer answer
}

// checkHealth runs the health command of a supervised process when it is due.
func (a observer) checkHealth(ctx context.Context, now time.Time) {
	if a.state.Desired != supervise.Up || a.state.Work != supervise.Idle || a.memory.Spec.HealthCmd == "" {
		return
	}
	every, main := a.engine.cfg.Timing.Health, proc.Identity(a.state.Main)
	if a.health.main != main {
		a.health = health{main: main, due: now.Add(supervise.Jitter(every, rand.Float64()))}
	}
	if a.health.checking || now.Before(a.health.due) {
		return
	}
	a.health.checking, a.health.due = true, now.Add(every)
	spec := a.memory.Spec
	a.engine.spawn(a.key, "health check", func() {
		a.mailbox.put(healthChecked{main: main, answer: a.engine.inquiries.query(ctx, healthInquiry, main, &spec, 0)})
	})
}

func (a observer) healthChecked(ctx context.Context, msg healthChecked) {
	h := &a.health
	if msg.main != h.main {
		return
	}
	h.checking = false
	if h.count(msg.answer) {
		reporter(a).unhealthy(msg.main.PID, h.failures, msg.answer.text)
	}
	// Repeat the request after each failure: it is dropped while the process is frozen.
	if a.memory.Spec.HealthRestart && h.failures >= maxUnhealthy && !msg.answer.ok {
		automation(a).terminateRequested(ctx, terminateRequest{
			event: supervise.TerminateRequested{Main: supervise.Identity(msg.main), Why: supervise.Unhealthy},
			ended: func(procop.TerminationEnd) {}, // the result is logged
		})
	}
}

// count records an answer. It returns true when the process becomes unhealthy, once until the
// process is healthy again. A command that could not be run, for example because the host is
// out of processes, does not count.
func (h *health) count(a answer) (unhealthy bool) {
	switch {
	case a.ok:
		h.failures, h.reported = 0, false
	case a.ran:
		h.failures++
	}
	unhealthy = h.failures >= maxUnhealthy && !h.reported
	h.reported = h.reported || unhealthy
	return unhealthy
}
