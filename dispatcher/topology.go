package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// setTopology replaces a topology and returns its version, or returns the topology that
// a planned change would store.
func (e *exchange) setTopology(ctx context.Context, q *dialect.TopologyChange, _ string) (dialect.TopologyShown, error) {
	change := func(have *catalog.Topology) catalog.Topology {
		t := catalog.Topology{Version: have.Version + 1, AutoRegister: have.AutoRegister, Sets: q.Sets}
		if q.AutoRegister != nil {
			t.AutoRegister = *q.AutoRegister
		}
		return t
	}
	if q.Planned {
		have, err := e.topologyOf(ctx, q.Business, q.Version)
		if err != nil {
			return dialect.TopologyShown{}, err
		}
		t := change(have)
		return dialect.TopologyShown{Topology: &t}, nil
	}
	if err := e.auditChange(ctx, changeOf("set topology", q.Business.Namespace(), hostsOfSets(q.Sets))); err != nil {
		return dialect.TopologyShown{}, err
	}
	version, err := e.changeTopology(ctx, q.Business, q.Version, change)
	return dialect.TopologyShown{Topology: &catalog.Topology{Version: version}}, err
}

// topologyOf returns the stored topology. If want is a version, a different stored version
// is a [*catalog.VersionError].
func (e *exchange) topologyOf(ctx context.Context, b catalog.Business, want int64) (*catalog.Topology, error) {
	have, err := e.api.store.Topology(ctx, b)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the topology of business %s: %w", b.Namespace(), err)
	case want >= 0 && have.Version != want:
		return nil, &catalog.VersionError{Have: have.Version, Want: want}
	}
	return have, nil
}

// editTopology replaces the hosts of a module, or sets AutoRegister.
func (e *exchange) editTopology(ctx context.Context, q *dialect.TopologyEdit, _ string) (int64, error) {
	if err := e.auditChange(ctx, topologyEditOf(q)); err != nil {
		return 0, err
	}
	if q.AutoRegister == nil {
		return e.setModuleHosts(ctx, q)
	}
	return e.changeTopology(ctx, q.Business, -1, func(have *catalog.Topology) catalog.Topology {
		t := *have
		t.AutoRegister = *q.AutoRegister
		return t
	})
}

func (e *exchange) setModuleHosts(ctx context.Context, q *dialect.TopologyEdit) (int64, error) {
	ctx, cancel := e.detached(ctx)
	defer cancel()
	version, err := e.api.store.SetModuleHosts(ctx, q.Business, q.Set, q.Module, q.Hosts)
	if err != nil {
		return 0, fmt.Errorf("store the hosts of a module of business %s: %w", q.Business.Namespace(), err)
	}
	e.topologyChanged(q.Business, version)
	return version, nil
}

// topologyAttempts is the maximum number of attempts while other callers change the
// same topology.
const topologyAttempts = 10

// changeTopology replaces the topology by the result of change, and does not overwrite
// concurrent changes. If want is a version, a different stored version is a
// [*catalog.VersionError]. If want is -1, changeTopology reads the topology and calls
// change again.
func (e *exchange) changeTopology(ctx context.Context, b catalog.Business, want int64, change func(have *catalog.Topology) catalog.Topology) (int64, error) {
	ctx, cancel := e.detached(ctx)
	defer cancel()
	for attempt := 1; ; attempt++ {
		have, err := e.api.store.Topology(ctx, b)
		if err != nil {
			return 0, fmt.Errorf("read the topology of business %s: %w", b.Namespace(), err)
		}
		t := change(have)
		if t.Version = have.Version; want >= 0 {
			t.Version = want
		}
		version, err := e.api.store.SetTopology(ctx, b, t)
		switch _, changed := errors.AsType[*catalog.VersionError](err); {
		case err == nil:
			e.topologyChanged(b, version)
			return version, nil
		case !changed || want >= 0 || attempt == topologyAttempts:
			return 0, fmt.Errorf("store the topology of business %s: %w", b.Namespace(), err)
		}
	}
}

func (e *exchange) topologyChanged(b catalog.Business, version int64) {
	e.catalogLog(b).WithField("version", version).Info("topology changed")
}

func (e *exchange) showTopology(ctx context.Context, q *dialect.TopologyQuery, business string) (dialect.TopologyShown, error) {
	t, err := e.api.store.Topology(ctx, q.Business)
	if err != nil {
		return dialect.TopologyShown{}, fmt.Errorf("read the topology of business %s: %w", business, err)
	}
	shown := dialect.TopologyShown{Topology: t}
	if q.WithoutAgents {
		return shown, nil
	}
	labeled, err := labeledHosts(ctx, e.api.store, t)
	if err != nil {
		return shown, err
	}
	shown.Labeled = showLabeled(t, labeled)
	hosts := hostsOfSets(t.Sets)
	for _, m := range shown.Labeled {
		hosts = append(hosts, m.Hosts...)
	}
	hosts = distinct(hosts)
	shown.WithoutAgent, err = e.api.withoutAgent(ctx, hosts)
	// Hosts outside the business are shown only to callers that may list every host.
	if err == nil && e.who.May("", apps.Reading) == nil {
		shown.WithoutModule, err = e.api.withoutModule(ctx, hosts)
	}
	return shown, err
}

// hostsOfSets returns the hosts of all modules. A host of several modules is repeated.
func hostsOfSets(sets []catalog.Set) []procfleet.Host {
	var hosts []procfleet.Host
	for _, s := range sets {
		for _, m := range s.Modules {
			hosts = append(hosts, m.Hosts...)
		}
	}
	return hosts
}

// withoutAgent returns the hosts without a live agent.
func (a *api) withoutAgent(ctx context.Context, hosts []procfleet.Host) ([]procfleet.Host, error) {
	missing := []procfleet.Host{}
	for some := range slices.Chunk(hosts, hostsAtOnce) {
		presences, err := a.agentsAt(ctx, some)
		if err != nil {
			return nil, err
		}
		for i := range presences {
			if !live(&presences[i]) {
				missing = append(missing, some[i])
			}
		}
	}
	return missing, nil
}

// withoutModule returns hosts that have a live agent and are not placed in a module, at
// most [dialect.MaxUnplaced].
func (a *api) withoutModule(ctx context.Context, placed []procfleet.Host) ([]procfleet.Host, error) {
	known := make(map[procfleet.Host]bool, len(placed))
	for _, host := range placed {
		known[host] = true
	}
	found := []procfleet.Host{}
	var after procfleet.Host
	for {
		page, err := a.store.HostPage(ctx, after, hostsAtOnce)
		if err != nil {
			return nil, fmt.Errorf("list hosts: %w", err)
		}
		for i := range page {
			if known[page[i].Host] {
				continue
			}
			if found = append(found, page[i].Host); len(found) == dialect.MaxUnplaced {
				return found, nil
			}
		}
		if len(page) < hostsAtOnce {
			return found, nil
		}
		after = page[len(page)-1].Host
	}
}

// refusedTopology converts an error of the catalog about a topology; nil for other errors.
func refusedTopology(err error) *dialect.Error {
	if errors.Is(err, catalog.ErrNoModule) {
		return &dialect.Error{Kind: dialect.NotFound, Field: "module", Problem: catalog.ErrNoModule.Error()}
	}
	if version, ok := errors.AsType[*catalog.VersionError](err); ok {
		return &dialect.Error{Kind: dialect.Conflict, Field: "version", Problem: version.Error()}
	}
	if field, ok := errors.AsType[*procfleet.FieldError](err); ok { // an error that only the store can detect
		return &dialect.Error{Kind: dialect.InvalidField, Field: field.Field, Problem: field.Problem}
	}
	return nil
}
