package agent

import (
	"context"
	"os"
	"slices"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/agent/hostcheck"
	"github.com/procfleet/procfleet/agentproto"
)

// checkHost looks once for what endangers the processes of this host, and
// tells it. It may wait for the host's own programs.
func (s *session) checkHost(ctx context.Context) {
	found := hostcheck.Check(ctx, hostcheck.Host{PID: os.Getpid(), DataDir: s.folder.dir})
	if ctx.Err() != nil {
		return
	}
	s.unsafe.Store(&found)
	for _, f := range found {
		s.cfg.Log.WithFields(logrus.Fields{"check": f.Check, "finding": f.What, "why": f.Why, "remedy": f.Do}).Warn("unsafe host configuration")
		s.events.tell(agentproto.Event{
			Kind: agentproto.EventUnsafeHost, Message: f.What + ": " + f.Why,
			Details: map[string]any{"check": f.Check, "do": f.Do},
		})
	}
}

// endsProcesses reports whether this host ends the agent's processes with the
// agent.
func endsProcesses(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, unitTimeout)
	defer cancel()
	return slices.ContainsFunc(hostcheck.Unit(ctx, os.Getpid()), func(f hostcheck.Finding) bool { return f.Check == hostcheck.KillMode })
}

func (a *Agent) observeHost(_ context.Context, o metric.Int64Observer) error {
	s := a.session.Load()
	if s == nil {
		return nil
	}
	if found := s.unsafe.Load(); found != nil {
		counts := map[string]int64{}
		for _, f := range *found {
			counts[f.Check]++
		}
		for check, n := range counts {
			o.Observe(n, metric.WithAttributes(attribute.String("check", check)))
		}
	}
	return nil
}
