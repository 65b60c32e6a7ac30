package agent

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/hostcheck"
	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/natsconn"
)

// hostLoad measures the load of the host between two announcements.
type hostLoad struct {
	mu      sync.Mutex
	earlier proc.CPUTime // CPU time at the reading of last; zero before the first reading
	last    proc.Load
}

// read returns the load since the previous call, or since the host started. If the load
// cannot be read it returns zero.
func (h *hostLoad) read(log logrus.FieldLogger) proc.Load {
	h.mu.Lock()
	defer h.mu.Unlock()
	host, err := proc.ReadHost()
	var now proc.CPUTime
	if err == nil {
		now, err = proc.ReadCPUTime()
	}
	if err != nil {
		log.WithError(err).Debug("host load unreadable")
		return proc.Load{}
	}
	load, fresh := host.LoadSince(h.earlier, now)
	if fresh {
		h.earlier = now
	} else {
		load.CPU = h.last.CPU
	}
	h.last = load
	return load
}

const (
	// schedulingTick is the interval at which the agent checks that it is scheduled.
	schedulingTick = 5 * time.Second

	// starvedAfter is the delay of such a check above which the agent reports that it was
	// not scheduled: it was stopped by a signal, had no CPU or was swapped out. Processes
	// that ended meanwhile are restarted late.
	starvedAfter = 15 * time.Second
)

// watchScheduling reports periods in which the agent was not scheduled, until ctx ends.
func (s *session) watchScheduling(ctx context.Context) {
	for last := time.Now(); sleep(ctx, schedulingTick); {
		now := time.Now()
		if idle, starved := starved(now.Sub(last)); starved {
			s.log.WithField("for", idle).Warn("agent was not scheduled for a while")
			s.events.emit(agentproto.Event{
				Kind:    agentproto.EventStarved,
				Message: "the agent was not scheduled for a while; processes that ended meanwhile are restarted late",
				Details: map[string]any{"seconds": idle.Seconds()},
			})
		}
		last = now
	}
}

// starved returns the time that the agent was not scheduled between two checks. passed is
// the time between the checks by Go's monotonic clock: the wall clock may have been set,
// and a suspended machine schedules no process.
func starved(passed time.Duration) (idle time.Duration, starved bool) {
	idle = passed - schedulingTick
	return idle.Round(time.Second), idle > starvedAfter
}

// checkHost checks the configuration of this host once and reports each finding. It may
// block on programs of the host.
func (s *session) checkHost(ctx context.Context) {
	found := hostcheck.Check(ctx, hostcheck.Host{PID: os.Getpid(), DataDir: s.folder.dir})
	if ctx.Err() != nil {
		return
	}
	s.findings.Store(&found)
	for _, f := range found {
		s.log.WithFields(logrus.Fields{"check": f.Check, "finding": f.Problem, "why": f.Consequence, "remedy": f.Remedy}).Warn("unsafe host configuration")
		s.events.emit(agentproto.Event{
			Kind: agentproto.EventUnsafeHost, Message: f.Problem + ": " + f.Consequence,
			Details: map[string]any{"check": f.Check, "do": f.Remedy},
		})
	}
}

// endsProcesses reports whether stopping the agent's systemd unit kills the processes that
// the agent has started.
func endsProcesses(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, unitTimeout)
	defer cancel()
	return slices.ContainsFunc(hostcheck.Unit(ctx, os.Getpid()), func(f hostcheck.Finding) bool { return f.Check == hostcheck.KillMode })
}

// describeAgent describes the agent to clients of the local socket.
func (s *session) describeAgent() local.Agent {
	a := local.Agent{
		Host: s.host, AgentID: s.agentID, Instance: s.instance, Version: s.cfg.Version,
		PID: os.Getpid(), StartedAt: s.announcer.startedAt,
	}
	if err := natsconn.Unavailable(s.cfg.Conn); err != nil {
		a.Disconnected = err.Error()
	}
	return a
}
