package dispatcher

import (
	"cmp"
	"context"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

func (e *exchange) showProcesses(ctx context.Context, use dialect.ShowProcesses, in *dialect.Request) error {
	q, err := use.Decode(in)
	if err != nil {
		return err
	}
	at, err := e.find(ctx, q.Business, q.Targets)
	if err != nil {
		return err
	}
	entries, err := e.api.store.Entries(ctx, at.processes(q.Namespace, q.Name))
	if err != nil {
		return fmt.Errorf("read entries of %s:%s: %w", q.Namespace, q.Name, err)
	}
	known, err := e.api.withAgents(ctx, entries)
	if err != nil {
		return err
	}
	found := make([]dialect.ProcessEntry, len(q.Targets))
	for i, t := range q.Targets {
		found[i].Process = catalog.Process{Namespace: q.Namespace, Name: q.Name}
		if n := at.of[i]; n >= 0 {
			found[i] = known[n]
		}
		found[i].Target = t
	}
	e.reply(use.Encode(&q, found, e.id))
	return nil
}

func (e *exchange) listProcesses(ctx context.Context, use dialect.ListProcesses, in *dialect.Request) error {
	p, err := use.Decode(in)
	if err != nil {
		return err
	}
	if _, err := e.find(ctx, p.Business, nil); err != nil {
		return err
	}
	entries, total, err := e.api.store.EntryPage(ctx, p.Namespace, p.Start, p.Limit)
	if err != nil {
		return fmt.Errorf("list entries of %s: %w", p.Namespace, err)
	}
	found, err := e.api.withAgents(ctx, entries)
	if err != nil {
		return err
	}
	e.reply(use.Encode(&p, found, total, e.id))
	return nil
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
