package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// Registry is what accepting needs of what is registered.
type Registry interface {
	Register(ctx context.Context, ds []catalog.Definition, replace bool) (existed [][]bool, err error)
	Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error)
	RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error)
}

// registeredPage is how many registered hosts are read at once.
const registeredPage = 1000

// everywhere returns all hosts on which a process is registered.
func (s *submitter) everywhere(ctx context.Context, p *procfleet.ProcessSpec, label func(procfleet.Host) string) ([]procfleet.Target, error) {
	var targets []procfleet.Target
	var after procfleet.Host
	for {
		page, err := s.store.RegisteredHosts(ctx, p.Namespace, p.Name, after, registeredPage)
		if err != nil {
			return nil, fmt.Errorf("list the hosts of %s: %w", p.Key(), err)
		}
		for _, host := range page {
			t := procfleet.Target{Host: host}
			if label != nil {
				t.Label = label(host)
			}
			targets = append(targets, t)
		}
		if err := s.cfg.Limits.items(len(targets)); err != nil {
			return nil, err
		}
		if len(page) < registeredPage {
			break
		}
		after = page[len(page)-1]
	}
	return targets, nil
}

// nowhereRegistered refuses to look for such a process.
func nowhereRegistered(p *procfleet.ProcessSpec) error {
	return &dialect.Error{Kind: dialect.InvalidField, Field: "hosts", Problem: fmt.Sprintf(
		"is empty, and the process with namespace %q and name %q is registered on no host: register it first, or name hosts", p.Namespace, p.Name)}
}

// bySpec divides an operation by what is registered for its targets; nil is
// nothing. Those for which nothing is get an operation too, without a spec.
func bySpec(o procfleet.Operation, registered []*catalog.Registration) ([]procfleet.Operation, error) {
	var parts []procfleet.Operation
	at := make(map[string]int) // from the spec's text to its part; "" without one
	for i, t := range o.Targets {
		spec, text := procfleet.ProcessSpec{Namespace: o.Process.Namespace, Name: o.Process.Name, Unregistered: true}, ""
		if r := registered[i]; r != nil {
			encoded, err := json.Marshal(&r.Spec)
			if err != nil {
				return nil, fmt.Errorf("encode the spec of %s that is registered on %s: %w", r.Spec.Key(), t.Host, err)
			}
			spec, text = r.Spec, string(encoded)
		}
		n, known := at[text]
		if !known {
			n = len(parts)
			at[text] = n
			parts = append(parts, procfleet.Operation{Action: o.Action, Process: spec, Registered: o.Registered})
		}
		parts[n].Targets = append(parts[n].Targets, t)
	}
	return parts, nil
}

// registered returns what is registered for a process on each target; nil
// where nothing is, or where the target has no host.
func (s *submitter) registered(ctx context.Context, p *procfleet.ProcessSpec, targets []procfleet.Target) ([]*catalog.Registration, error) {
	at := hostsOf(targets)
	found, err := s.store.Registrations(ctx, at.processes(p.Namespace, p.Name))
	if err != nil {
		return nil, fmt.Errorf("look up what is registered for %s: %w", p.Key(), err)
	}
	all := make([]*catalog.Registration, len(targets))
	for i, n := range at.of {
		if n >= 0 {
			all[i] = found[n]
		}
	}
	return all, nil
}
