package dispatcher

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// hostsAtOnce is how many hosts are read from a store at once.
const hostsAtOnce = 1000

// byAgent returns the targets without a host that name an agent, and their agent ids.
func byAgent(lists ...[]procfleet.Target) (at []*procfleet.Target, ids []string) {
	for _, targets := range lists {
		for i := range targets {
			if t := &targets[i]; t.Host.IsZero() && t.AgentID != "" {
				at, ids = append(at, t), append(ids, t.AgentID)
			}
		}
	}
	return at, ids
}

// resolve sets the hosts of targets that name an agent. A target with an unknown agent
// remains without a host.
func resolve(ctx context.Context, store Store, lists ...[]procfleet.Target) error {
	at, ids := byAgent(lists...)
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

// conflictsOf returns the hosts that claim an agent id, for each id that resolves to no
// host because the agents of several hosts announce it.
func conflictsOf(ctx context.Context, store Store, targets []procfleet.Target) (map[string][]procfleet.Host, error) {
	_, ids := byAgent(targets)
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // reading a nil map is the same as reading an empty one
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

// authorizeAndResolve checks that the caller may do the endpoint's action for the
// business, and that the number of targets is within the limit. It returns their hosts.
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

// targetHosts holds the distinct hosts of targets.
type targetHosts struct {
	hosts []procfleet.Host
	of    []int // target index → host index; -1 without a host
	// conflicts maps an agent id to the hosts that claim it, if more than one does.
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

func (at *targetHosts) processes(namespace, name string) []catalog.Process {
	ps := make([]catalog.Process, len(at.hosts))
	for i, host := range at.hosts {
		ps[i] = catalog.Process{Host: host, Namespace: namespace, Name: name}
	}
	return ps
}
