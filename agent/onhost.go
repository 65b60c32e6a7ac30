package agent

import (
	"context"
	"os"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/internal/natsconn"
)

// answerHost answers those on this host who ask what the agent does, until ctx
// ends.
func (s *session) answerHost(ctx context.Context) {
	server := local.Server{Dir: s.folder.dir, Agent: s.introduction, Processes: s.engine.Overview, Log: s.cfg.Log}
	server.Run(ctx)
}

func (s *session) introduction() local.Agent {
	a := local.Agent{
		Host: s.self.host, AgentID: s.cfg.AgentID, Instance: s.self.instance, Version: s.cfg.Version,
		PID: os.Getpid(), StartedAt: s.announcer.startedAt,
	}
	if err := natsconn.Away(s.cfg.Conn); err != nil {
		a.Away = err.Error()
	}
	return a
}
