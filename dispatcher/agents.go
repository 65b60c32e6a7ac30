package dispatcher

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

func (e *exchange) showAgents(ctx context.Context, q *dialect.AgentQuery, at *targetHosts) ([]dialect.TargetAgent, error) {
	presences, err := e.api.agentsAt(ctx, at)
	if err != nil {
		return nil, err
	}
	found := make([]dialect.TargetAgent, len(q.Targets))
	for i, t := range q.Targets {
		found[i].Target = t
		if n := at.of[i]; n >= 0 && live(&presences[n]) {
			agent := agentOf(&presences[n])
			found[i].Agent = &agent
		}
	}
	return found, nil
}

// agentsAt returns who announced itself on each host.
func (a *api) agentsAt(ctx context.Context, at *targetHosts) ([]taskstore.Presence, error) {
	presences, err := a.store.Presences(ctx, at.hosts)
	if err != nil {
		return nil, fmt.Errorf("look up the agents of %d hosts: %w", len(at.hosts), err)
	}
	return presences, nil
}

// live reports whether there is an agent at all; the zero Presence is none.
func live(p *taskstore.Presence) bool { return !p.Host.IsZero() }

// bindAgents makes agent ids lead to hosts. An id is believed if the host's
// agent has it, or has none of its own.
func (e *exchange) bindAgents(ctx context.Context, q *dialect.AgentBinding, at *targetHosts) ([]bool, error) {
	presences, err := e.api.agentsAt(ctx, at)
	if err != nil {
		return nil, err
	}
	bound := make([]bool, len(q.Targets))
	var bindings []taskstore.AgentBinding
	for i, t := range q.Targets {
		n := at.of[i]
		if n < 0 || !live(&presences[n]) || (presences[n].AgentID != "" && presences[n].AgentID != t.AgentID) {
			continue
		}
		bound[i] = true
		bindings = append(bindings, taskstore.AgentBinding{AgentID: t.AgentID, Host: t.Host})
	}
	if len(bindings) > 0 {
		ctx, cancel := e.undisturbed(ctx)
		defer cancel()
		if err := e.auditChange(ctx, changeOf("bind agents", q.Business, at.hosts)); err != nil {
			return nil, err
		}
		if err := e.api.store.Bind(ctx, bindings); err != nil {
			return nil, fmt.Errorf("bind %d agent ids to hosts: %w", len(bindings), err)
		}
	}
	e.log().WithFields(logrus.Fields{"application": e.who.Application, "user": e.who.User, "hosts": len(bindings)}).Info("agent ids bound")
	return bound, nil
}
