package operate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// maxUnhealthy is how many failures of the health command in a row count.
const maxUnhealthy = 3

// health is how the health command of a supervised process went.
type health struct {
	main     proc.Identity // that it is about
	due      time.Time     // when to ask next
	asking   bool
	failures int // in a row
	told     bool
}

// examined is the end of an inquiry for the health of a supervised process.
type examined struct {
	main   proc.Identity
	answer answer
}

// examine asks for the health of a supervised process that runs, when it is
// time to.
func (a *actor) examine(ctx context.Context, now time.Time) {
	if a.state.Desired != supervise.Up || a.state.Work != supervise.Idle || a.spec.HealthCmd == "" {
		return
	}
	every, main := a.engine.cfg.Timing.Health, proc.Identity(a.state.Main)
	if a.health.main != main {
		a.health = health{main: main, due: now.Add(supervise.Jitter(every, rand.Float64()))}
	}
	if a.health.asking || now.Before(a.health.due) {
		return
	}
	a.health.asking, a.health.due = true, now.Add(every)
	spec := a.spec
	a.engine.beside(a.key, "question for its health", func() {
		a.mailbox.put(examined{main: main, answer: a.engine.ask(ctx, howHealthy, main, &spec, 0)})
	})
}

// examined counts an answer about the process.
func (a *actor) examined(ctx context.Context, msg examined) {
	if msg.main != a.health.main {
		return
	}
	a.health.asking = false
	a.health.count(msg.answer)
	if a.health.tell() {
		a.tellUnhealthy(msg)
	}
	// It is asked for again after each failure: it may be frozen just now.
	if a.spec.HealthRestart && a.health.failures >= maxUnhealthy && !msg.answer.ok {
		a.condemn(ctx, condemned{
			event: supervise.Condemned{Main: supervise.Identity(msg.main), Why: supervise.Unhealthy},
			ended: func(procop.TerminationEnd) {}, // the log has it
		})
	}
}

// count takes in one answer. A command that could not be run, because the host
// has no room for it for instance, says nothing of the process.
func (h *health) count(a answer) {
	switch {
	case a.ok:
		h.failures, h.told = 0, false
	case a.ran:
		h.failures++
	}
}

// tell reports whether it is time to tell that the process is not healthy:
// once until it is healthy again.
func (h *health) tell() bool {
	now := h.failures >= maxUnhealthy && !h.told
	h.told = h.told || now
	return now
}

func (a *actor) tellUnhealthy(msg examined) {
	text := fmt.Sprintf("health command failed %d times in a row: %s", a.health.failures, msg.answer.text)
	a.log.WithField("pid", msg.main.PID).WithField("reason", text).Warn("health command failed repeatedly")
	a.announce(agentproto.Event{
		Kind: agentproto.EventHealthFailed, PID: msg.main.PID, Message: text,
		Details: map[string]any{"failures": a.health.failures, "answer": msg.answer.text},
	})
}
