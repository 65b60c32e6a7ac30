package dispatcher

import (
	"cmp"
	"context"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

func (e *exchange) showAgents(ctx context.Context, q *dialect.AgentQuery, at *targetHosts) ([]dialect.TargetAgent, error) {
	presences, err := e.api.agentsAt(ctx, at.hosts)
	if err != nil {
		return nil, err
	}
	if err := addLabels(ctx, e.api.store, presences); err != nil {
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

func (a *api) agentsAt(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	presences, err := a.store.Presences(ctx, hosts)
	if err != nil {
		return nil, fmt.Errorf("look up the agents of %d hosts: %w", len(hosts), err)
	}
	return presences, nil
}

// live reports whether a presence is of a live agent; a host without one has the zero
// Presence.
func live(p *taskstore.Presence) bool { return !p.Host.IsZero() }

// bindAgents binds agent ids to hosts. It accepts an id only if the host has a live
// agent that announces the same id or none.
func (e *exchange) bindAgents(ctx context.Context, q *dialect.AgentBinding, at *targetHosts) ([]bool, error) {
	presences, err := e.api.agentsAt(ctx, at.hosts)
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
		ctx, cancel := e.detached(ctx)
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

func agentOf(p *taskstore.Presence) v1.Agent {
	return v1.Agent{
		Host: p.Host, AgentID: p.AgentID, Instance: p.Instance, Version: p.Version, OS: p.OS, Arch: p.Arch,
		StartedAt: p.StartedAt, AliveSince: p.Since, SeenAt: p.SeenAt, Supervised: p.Supervised,
		CPU: p.CPU, Memory: p.Memory, Conflict: p.Conflict, Labels: p.AllLabels(), Missing: p.SeenAt.IsZero(),
	}
}

func (e *exchange) setGroups(ctx context.Context, q *dialect.Grouping, at *targetHosts) ([]dialect.TargetOutcome, error) {
	if len(at.hosts) > 0 {
		all := make([]catalog.HostGroups, len(at.hosts))
		for n, host := range at.hosts {
			all[n] = q.Groups
			all[n].Host = host
		}
		ctx, cancel := e.detached(ctx)
		defer cancel()
		if err := e.auditChange(ctx, changeOf("set groups", q.Business, at.hosts, q.Groups.Namespace)); err != nil {
			return nil, err
		}
		if err := e.api.store.SetGroups(ctx, all); err != nil {
			return nil, fmt.Errorf("store groups of %s: %w", q.Groups.Namespace, err)
		}
		e.settingsChanged(at.hosts)
	}
	e.log().WithFields(logrus.Fields{
		"application": e.who.Application, "user": e.who.User, "namespace": q.Groups.Namespace, "groups": len(q.Groups.Groups), "hosts": len(at.hosts),
	}).Info("resource groups of processes changed")
	return outcomesOf(q.Targets, at, success), nil
}

func (e *exchange) showGroups(ctx context.Context, q *dialect.GroupQuery, at *targetHosts) ([]dialect.TargetGroups, error) {
	groups, err := e.api.store.Groups(ctx, q.Namespace, at.hosts)
	if err != nil {
		return nil, fmt.Errorf("read groups of %s: %w", q.Namespace, err)
	}
	found := make([]dialect.TargetGroups, len(q.Targets))
	for i, t := range q.Targets {
		found[i] = dialect.TargetGroups{Target: t, Groups: catalog.HostGroups{Namespace: q.Namespace}}
		if n := at.of[i]; n >= 0 {
			found[i].Groups = groups[n]
		}
	}
	return found, nil
}

func (e *exchange) showProcesses(ctx context.Context, q *dialect.ProcessQuery, at *targetHosts) ([]dialect.ProcessEntry, error) {
	entries, err := e.api.store.Entries(ctx, at.processes(q.Namespace, q.Name))
	if err != nil {
		return nil, fmt.Errorf("read entries of %s:%s: %w", q.Namespace, q.Name, err)
	}
	known, err := e.api.withAgents(ctx, entries)
	if err != nil {
		return nil, err
	}
	found := make([]dialect.ProcessEntry, len(q.Targets))
	for i, t := range q.Targets {
		found[i].Process = catalog.Process{Namespace: q.Namespace, Name: q.Name}
		if n := at.of[i]; n >= 0 {
			found[i] = known[n]
		}
		found[i].Target = t
	}
	return found, nil
}

func (e *exchange) listProcesses(ctx context.Context, p *dialect.ProcessPage, _ string) (dialect.ProcessEntries, error) {
	entries, total, err := e.api.store.EntryPage(ctx, p.Namespace, p.Start, p.Limit)
	if err != nil {
		return dialect.ProcessEntries{}, fmt.Errorf("list entries of %s: %w", p.Namespace, err)
	}
	found, err := e.api.withAgents(ctx, entries)
	return dialect.ProcessEntries{Entries: found, Total: total}, err
}

// withAgents adds the presence of the host's agent to each entry, including entries
// that were never reported.
func (a *api) withAgents(ctx context.Context, entries []catalog.Entry) ([]dialect.ProcessEntry, error) {
	targets := make([]procfleet.Target, len(entries))
	for i := range entries {
		targets[i].Host = entries[i].Host
	}
	at := hostsOf(targets) // a page has many processes of the same host
	presences, err := a.agentsAt(ctx, at.hosts)
	if err != nil {
		return nil, err
	}
	found := make([]dialect.ProcessEntry, len(entries))
	for i, entry := range entries {
		presence := &presences[at.of[i]]
		entry.AgentID = cmp.Or(entry.AgentID, presence.AgentID)
		found[i] = dialect.ProcessEntry{
			Target: procfleet.Target{Host: entry.Host, AgentID: entry.AgentID}, Entry: entry, Alive: live(presence),
		}
	}
	return found, nil
}
