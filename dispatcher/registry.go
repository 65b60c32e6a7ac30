package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

func (s *submitter) registeredTargets(ctx context.Context, p *procfleet.ProcessSpec, label func(procfleet.Host) string) ([]procfleet.Target, error) {
	var targets []procfleet.Target
	var after procfleet.Host
	for {
		page, err := s.store.RegisteredHosts(ctx, p.Namespace, p.Name, after, hostsAtOnce)
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
		if len(page) < hostsAtOnce {
			break
		}
		after = page[len(page)-1]
	}
	return targets, nil
}

// notRegisteredAnywhere returns the error for an operation on all hosts of a process that
// is registered on no host.
func notRegisteredAnywhere(p *procfleet.ProcessSpec) error {
	return &dialect.Error{Kind: dialect.InvalidField, Field: "hosts", Problem: fmt.Sprintf(
		"is empty, and the process with namespace %q and name %q is registered on no host: register it first, or name hosts", p.Namespace, p.Name)}
}

// bySpec divides an operation by the distinct registrations of its targets; nil means
// not registered. complete returns the operation for one registration, or for nil.
func bySpec(o procfleet.Operation, registered []*catalog.Registration, complete func(o *procfleet.Operation, r *catalog.Registration) procfleet.Operation) ([]procfleet.Operation, error) {
	var parts []procfleet.Operation
	at := make(map[string]int) // JSON of the spec → index in parts; "" without a registration
	for i, t := range o.Targets {
		r, text := registered[i], ""
		if r != nil {
			encoded, err := json.Marshal(&r.Spec)
			if err != nil {
				return nil, fmt.Errorf("encode the spec of %s that is registered on %s: %w", r.Spec.Key(), t.Host, err)
			}
			text = string(encoded)
		}
		n, known := at[text]
		if !known {
			n = len(parts)
			at[text] = n
			parts = append(parts, complete(&o, r))
		}
		parts[n].Targets = append(parts[n].Targets, t)
	}
	return parts, nil
}

func asRegistered(o *procfleet.Operation, r *catalog.Registration) procfleet.Operation {
	spec := procfleet.ProcessSpec{Namespace: o.Process.Namespace, Name: o.Process.Name, Unregistered: true}
	if r != nil {
		spec = r.Spec
	}
	return procfleet.Operation{Action: o.Action, Process: spec, Registered: o.Registered}
}

// overRegistered returns the operation with omitted members filled in from a
// registration. If the merged spec equals the registered one, the operation registers
// nothing, because another caller may have replaced the registration since it was read.
func overRegistered(o *procfleet.Operation, r *catalog.Registration) procfleet.Operation {
	switch {
	case r != nil:
		merged := o.Over.Given.Over(&r.Spec, &o.Process)
		return procfleet.Operation{Action: o.Action, Process: merged, Registered: reflect.DeepEqual(merged, r.Spec)}
	case o.Over.Missing != "":
		without := asRegistered(o, nil)
		without.Registered = true // an incomplete spec must not be registered
		return without
	}
	return procfleet.Operation{Action: o.Action, Process: o.Process}
}

// registrations maps the processes of operations that omit members to their
// registrations; nil means not registered.
type registrations map[catalog.Process]*catalog.Registration

// completing reads the registrations for all operations that omit members, in one call.
func (s *submitter) completing(ctx context.Context, operations []procfleet.Operation) (registrations, error) {
	var ps []catalog.Process
	known := make(registrations)
	for i := range operations {
		o := &operations[i]
		if o.Over == nil {
			continue
		}
		for _, t := range o.Targets {
			p := catalog.Process{Host: t.Host, Namespace: o.Process.Namespace, Name: o.Process.Name}
			if _, asked := known[p]; !asked && !t.Host.IsZero() {
				known[p] = nil
				ps = append(ps, p)
			}
		}
	}
	if len(ps) == 0 {
		return known, nil
	}
	found, err := s.store.Registrations(ctx, ps)
	if err != nil {
		return nil, fmt.Errorf("look up what is registered for %d processes: %w", len(ps), err)
	}
	for i, p := range ps {
		known[p] = found[i]
	}
	return known, nil
}

func (known registrations) of(o *procfleet.Operation) []*catalog.Registration {
	all := make([]*catalog.Registration, len(o.Targets))
	for i, t := range o.Targets {
		all[i] = known[catalog.Process{Host: t.Host, Namespace: o.Process.Namespace, Name: o.Process.Name}]
	}
	return all
}

// refusal returns an error that names the first missing member if none of the
// operations that omit members has a registration. If at least one has, the items
// without a registration fail separately on their hosts.
func (known registrations) refusal(operations []procfleet.Operation) error {
	missing := ""
	for i := range operations {
		o := &operations[i]
		if o.Over == nil || o.Over.Missing == "" {
			continue
		}
		if slices.ContainsFunc(known.of(o), func(r *catalog.Registration) bool { return r != nil }) {
			return nil
		}
		missing = cmp.Or(missing, o.Over.Missing)
	}
	if missing == "" {
		return nil
	}
	return &dialect.Error{
		Kind: dialect.InvalidField, Field: missing,
		Problem: "This field is required: it was not given, and the process is not registered on any of the hosts.",
	}
}

// registered returns the registration of a process for each target; nil if the process
// is not registered there or the target has no host.
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

// registers reports whether acceptance registers the spec of an operation. A spec that
// was read from a registration is not registered again, because another caller may have
// replaced the registration since.
func registers(o procfleet.Operation) bool {
	return o.Action.Registers() && o.Process.Namespace != "" && o.Process.Name != "" && !o.Registered
}

// definitions returns the distinct specs to register, each with all its hosts. If one
// request has several specs for a process on a host, the last one counts.
func definitions(specs *specTable, works []hostWork) []catalog.Definition {
	var found []catalog.Definition
	at := make(map[int]int) // spec index → index in found
	for i := range works {
		w := &works[i]
		if w.place.host.IsZero() {
			continue
		}
		for _, spec := range registeredBy(w.items) {
			n, known := at[spec]
			if !known {
				n = len(found)
				at[spec] = n
				found = append(found, catalog.Definition{Spec: *specs.specs[spec]})
			}
			found[n].Hosts = append(found[n].Hosts, w.place.host)
		}
	}
	return found
}

// registeredBy returns the specs that the items of one host register.
func registeredBy(items []plannedItem) []int {
	var specs []int
	var last map[string]int // process key → index in specs
	for i := range items {
		it := &items[i]
		if !it.registers {
			continue
		}
		if len(items) == 1 { // common case, without allocating the map
			return []int{it.Spec}
		}
		if n, again := last[it.key]; again {
			specs[n] = it.Spec
			continue
		}
		if last == nil {
			last = make(map[string]int)
		}
		last[it.key] = len(specs)
		specs = append(specs, it.Spec)
	}
	return specs
}
