package dispatcher

import (
	"cmp"
	"context"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

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

// withAgents adds what is known of the agents of entries. Where a process was
// never reported, its host's agent is named all the same.
func (a *api) withAgents(ctx context.Context, entries []catalog.Entry) ([]dialect.ProcessEntry, error) {
	targets := make([]procfleet.Target, len(entries))
	for i := range entries {
		targets[i].Host = entries[i].Host
	}
	at := hostsOf(targets) // a page has many processes of one host
	presences, err := a.agentsAt(ctx, at)
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
