package dispatcher

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// resolver returns the hosts of agents.
type resolver interface {
	Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error)
}

// claimantFinder returns the hosts whose agents announce agent ids.
type claimantFinder interface {
	Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error)
}

// conflictsOf returns the hosts of agent ids that resolve to no host because the
// agents of several hosts announce them.
func conflictsOf(ctx context.Context, store claimantFinder, targets []procfleet.Target) (map[string][]procfleet.Host, error) {
	var ids []string
	for i := range targets {
		if t := &targets[i]; t.Host.IsZero() && t.AgentID != "" {
			ids = append(ids, t.AgentID)
		}
	}
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // an empty map reads the same
	}
	claimants, err := store.Claimants(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look up the claimants of %d agent ids: %w", len(ids), err)
	}
	conflicts := make(map[string][]procfleet.Host)
	for i, hosts := range claimants {
		if len(hosts) > 1 {
			conflicts[ids[i]] = hosts
		}
	}
	return conflicts, nil
}

// resolve fills in the hosts of targets that name an agent. A target whose agent
// is unknown keeps no host.
func resolve(ctx context.Context, store resolver, lists ...[]procfleet.Target) error {
	var ids []string
	var at []*procfleet.Target
	for _, targets := range lists {
		for i := range targets {
			if t := &targets[i]; t.Host.IsZero() && t.AgentID != "" {
				ids = append(ids, t.AgentID)
				at = append(at, t)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	hosts, err := store.Resolve(ctx, ids)
	if err != nil {
		return fmt.Errorf("look up agents: %w", err)
	}
	for i, t := range at {
		t.Host = hosts[i]
	}
	return nil
}

// authorizeAndResolve checks that the caller may do the endpoint's action for
// the business, and that the targets are not too many. It returns their hosts.
func (e *exchange) authorizeAndResolve(ctx context.Context, business string, targets []procfleet.Target) (*targetHosts, error) {
	if err := e.who.May(business, e.call.action); err != nil {
		return nil, err
	}
	if err := e.api.cfg.Limits.items(len(targets)); err != nil {
		return nil, err
	}
	if err := resolve(ctx, e.api.store, targets); err != nil {
		return nil, err
	}
	at := hostsOf(targets)
	var err error
	at.conflicts, err = conflictsOf(ctx, e.api.store, targets)
	return at, err
}

// targetHosts are the hosts of targets, each once.
type targetHosts struct {
	hosts []procfleet.Host
	of    []int // target → host; -1 without one
	// conflicts are the hosts that claim an agent id, if several do.
	conflicts map[string][]procfleet.Host
}

func hostsOf(targets []procfleet.Target) *targetHosts {
	at := &targetHosts{hosts: make([]procfleet.Host, 0, len(targets)), of: make([]int, len(targets))}
	known := make(map[procfleet.Host]int, len(targets))
	for i := range targets {
		host := targets[i].Host
		if host.IsZero() {
			at.of[i] = -1
			continue
		}
		n, there := known[host]
		if !there {
			n = len(at.hosts)
			known[host] = n
			at.hosts = append(at.hosts, host)
		}
		at.of[i] = n
	}
	return at
}

// processes returns one process on all hosts.
func (at *targetHosts) processes(namespace, name string) []catalog.Process {
	ps := make([]catalog.Process, len(at.hosts))
	for i, host := range at.hosts {
		ps[i] = catalog.Process{Host: host, Namespace: namespace, Name: name}
	}
	return ps
}
