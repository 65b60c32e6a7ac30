package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// bindingsChanged lets the agents of modules' hosts know of processes that
// were bound to the modules, or unbound, and returns the task that does so;
// "" if there is nothing to tell. It is given every edit, so that a binding
// that was there already is told again.
//
// It compares what the modules that were named should have with what is
// registered, and not what was changed: so a repeat after a failure does what
// is missing and nothing twice, and of several that change one binding at the
// same time the last one to look leaves what the catalogue says. Therefore it
// looks until there is nothing to do, which is also how more hosts than one
// task may have are told.
func (e *exchange) bindingsChanged(ctx context.Context, b catalog.Business, edits []catalog.Edit, done []catalog.Edited) (procfleet.TaskID, error) {
	named, ids := make(map[int64][]string), []int64(nil)
	for i := range edits {
		if modules := slices.Concat(edits[i].Bind, edits[i].Unbind); len(modules) > 0 {
			named[done[i].ID] = modules
			ids = append(ids, done[i].ID)
		}
	}
	var first procfleet.TaskID
	for len(ids) > 0 {
		todo, err := e.api.unregistered(ctx, b, ids, named)
		if err != nil || todo.empty() {
			return first, err
		}
		task, err := e.tell(ctx, b, todo)
		if err != nil {
			return first, err
		}
		first = cmp.Or(first, task)
	}
	return first, nil
}

// untoldBindings is what agents have yet to be told of bindings, for as many
// hosts as one task may have.
type untoldBindings struct {
	operations []procfleet.Operation
	registered []catalog.Definition // once the task is accepted
	gone       []catalog.Process    // no longer registered then
	room       int                  // for further hosts
}

func (u *untoldBindings) empty() bool { return len(u.operations) == 0 }

// unregistered finds on which hosts of the modules that were named processes
// are bound and not registered, or registered and not bound.
func (a *api) unregistered(ctx context.Context, b catalog.Business, ids []int64, named map[int64][]string) (*untoldBindings, error) {
	todo := &untoldBindings{room: a.cfg.Limits.Items}
	topology, err := a.store.Topology(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("read the topology of business %s: %w", b.Namespace(), err)
	}
	if !topology.AutoRegister {
		return todo, nil
	}
	templates, err := a.store.Templates(ctx, b, ids)
	if err != nil {
		return nil, fmt.Errorf("read %d processes of business %s: %w", len(ids), b.Namespace(), err)
	}
	modules := topology.ModulesByName()
	for i, t := range templates {
		if t == nil { // deleted since
			continue
		}
		touched, bound := hostsIn(modules, named[ids[i]]), make(map[procfleet.Host]bool)
		for _, host := range hostsIn(modules, t.Modules) {
			bound[host] = true
		}
		spec := t.Spec(b)
		ps := make([]catalog.Process, len(touched))
		for n, host := range touched {
			ps[n] = catalog.Process{Host: host, Namespace: spec.Namespace, Name: spec.Name}
		}
		registered, err := a.store.Registrations(ctx, ps)
		if err != nil {
			return nil, fmt.Errorf("look up what is registered for %s: %w", spec.Key(), err)
		}
		if err := todo.add(spec, bindingAction(t, b), ps, registered, bound); err != nil {
			return nil, err
		}
	}
	return todo, nil
}

// hostsIn are the hosts of all modules of some names, each once.
func hostsIn(modules map[string][]catalog.PlacedModule, names []string) []procfleet.Host {
	var found []catalog.PlacedModule
	for _, name := range names {
		found = append(found, modules[name]...)
	}
	placements := catalog.Placements(found)
	hosts := make([]procfleet.Host, len(placements))
	for i := range placements {
		hosts[i] = placements[i].Host
	}
	return hosts
}

// bindingAction is how an agent gets to know a process: by taking charge of
// it, which keeps it alive only if its spec says so. One that could not be
// started, or not be told from others, is only looked for.
func bindingAction(t *catalog.Template, b catalog.Business) procfleet.Action {
	if len(t.SpecProblems(b, procfleet.ActionStart)) > 0 {
		return procfleet.ActionRelease
	}
	return procfleet.ActionSupervise
}

// add finds what there is to tell of one process.
func (u *untoldBindings) add(
	spec procfleet.ProcessSpec, action procfleet.Action, ps []catalog.Process, registered []*catalog.Registration, bound map[procfleet.Host]bool,
) error {
	made := procfleet.Operation{Action: action, Process: spec}
	release := procfleet.Operation{Action: procfleet.ActionRelease, Process: procfleet.ProcessSpec{Namespace: spec.Namespace, Name: spec.Name}}
	definition := catalog.Definition{Spec: spec}
	var there []*catalog.Registration
	for i, p := range ps {
		if u.room == 0 {
			break
		}
		target := procfleet.Target{Host: p.Host}
		switch {
		case bound[p.Host] && registered[i] == nil:
			made.Targets, definition.Hosts = append(made.Targets, target), append(definition.Hosts, p.Host)
		case !bound[p.Host] && registered[i] != nil:
			release.Targets, there = append(release.Targets, target), append(there, registered[i])
			u.gone = append(u.gone, p)
		default:
			continue
		}
		u.room--
	}
	if len(made.Targets) > 0 {
		u.operations, u.registered = append(u.operations, made), append(u.registered, definition)
	}
	parts, err := bySpec(release, there, asRegistered)
	u.operations = append(u.operations, parts...)
	return err
}

// tell makes the task, and registers what it says or forgets it. In this
// order: whoever dies in between is found to have left something to do.
func (e *exchange) tell(ctx context.Context, b catalog.Business, todo *untoldBindings) (procfleet.TaskID, error) {
	task, err := e.api.submitter.submit(ctx, procfleet.Submission{
		Operations: todo.operations, Dialect: e.call.Name, Application: e.who.Application, Business: b.Namespace(),
	}, terms{unregistered: true, origin: e.origin()})
	if err != nil {
		return "", fmt.Errorf("tell agents what is bound: %w", err)
	}
	e.api.noteAccepted(ctx, &task, e.who, e.log(), e.start)
	if len(todo.registered) > 0 {
		if _, err := e.api.store.Register(ctx, todo.registered, false); err != nil {
			return "", fmt.Errorf("register what is bound: %w", err)
		}
	}
	if len(todo.gone) > 0 {
		e.api.cfg.Reached(PointReleased)
		if _, err := e.api.store.Unregister(ctx, todo.gone); err != nil {
			return "", fmt.Errorf("forget what is no longer bound: %w", err)
		}
	}
	return task.ID, nil
}
