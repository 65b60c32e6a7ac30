package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// bindingsChanged creates tasks that notify the agents on the hosts of modules to which
// processes were bound, or from which they were unbound. It returns the id of the first
// task, or "" if all agents are up to date. The edits include existing bindings, so
// that a repeated call notifies the agents again.
//
// It compares the catalog with the registrations and does not rely on the change
// itself. Therefore a repeated call completes what a failed call left undone and does
// nothing twice, and if several callers change the same binding concurrently, the last
// comparison establishes the catalog's state. It repeats the comparison until nothing
// differs, so it also covers more hosts than one task may have.
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
		task, err := e.submitBindings(ctx, b, todo)
		if err != nil {
			return first, err
		}
		first = cmp.Or(first, task)
	}
	return first, nil
}

// pendingBindings holds differences between catalog and registrations, for at most as
// many hosts as one task may have.
type pendingBindings struct {
	operations []procfleet.Operation
	registered []catalog.Definition // to register when the task is accepted
	unregister []catalog.Process    // to unregister when the task is accepted
	left       int                  // number of hosts that may be added
}

func (u *pendingBindings) empty() bool { return len(u.operations) == 0 }

// unregistered returns the differences on the hosts of the named modules: processes
// that are bound and not registered, or registered and not bound.
func (a *api) unregistered(ctx context.Context, b catalog.Business, ids []int64, named map[int64][]string) (*pendingBindings, error) {
	todo := &pendingBindings{left: a.cfg.Limits.Items}
	topology, err := placed(ctx, a.store, b)
	if err != nil {
		return nil, err
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
		if t == nil { // deleted in the meantime
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

// hostsIn returns the distinct hosts of all modules with these names.
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

// bindingAction returns the action by which an agent learns of a process. It is
// supervise, after which the agent restarts the process only if its spec requires it.
// For a process that cannot be started or identified it is release, after which the
// agent only probes it.
func bindingAction(t *catalog.Template, b catalog.Business) procfleet.Action {
	if len(t.SpecProblems(b, procfleet.ActionStart)) > 0 {
		return procfleet.ActionRelease
	}
	return procfleet.ActionSupervise
}

func (u *pendingBindings) add(
	spec procfleet.ProcessSpec, action procfleet.Action, ps []catalog.Process, registered []*catalog.Registration, bound map[procfleet.Host]bool,
) error {
	bind := procfleet.Operation{Action: action, Process: spec}
	release := procfleet.Operation{Action: procfleet.ActionRelease, Process: procfleet.ProcessSpec{Namespace: spec.Namespace, Name: spec.Name}}
	definition := catalog.Definition{Spec: spec}
	var existing []*catalog.Registration
	for i, p := range ps {
		if u.left == 0 {
			break
		}
		target := procfleet.Target{Host: p.Host}
		switch {
		case bound[p.Host] && registered[i] == nil:
			bind.Targets, definition.Hosts = append(bind.Targets, target), append(definition.Hosts, p.Host)
		case !bound[p.Host] && registered[i] != nil:
			release.Targets, existing = append(release.Targets, target), append(existing, registered[i])
			u.unregister = append(u.unregister, p)
		default:
			continue
		}
		u.left--
	}
	if len(bind.Targets) > 0 {
		u.operations, u.registered = append(u.operations, bind), append(u.registered, definition)
	}
	parts, err := bySpec(release, existing, asRegistered)
	u.operations = append(u.operations, parts...)
	return err
}

// submitBindings creates the task, then registers and unregisters its processes. After
// a crash in between, the next comparison finds the remaining differences.
func (e *exchange) submitBindings(ctx context.Context, b catalog.Business, todo *pendingBindings) (procfleet.TaskID, error) {
	task, err := e.submit(ctx, &procfleet.Submission{Operations: todo.operations, Business: b.Namespace()}, terms{unregistered: true, internal: true})
	if err != nil {
		return "", fmt.Errorf("notify agents of bindings: %w", err)
	}
	if len(todo.registered) > 0 {
		if _, err := e.api.store.Register(ctx, todo.registered, false); err != nil {
			return "", fmt.Errorf("register bound processes: %w", err)
		}
	}
	if len(todo.unregister) > 0 {
		e.api.cfg.Reached(PointReleased)
		if _, err := e.api.store.Unregister(ctx, todo.unregister); err != nil {
			return "", fmt.Errorf("unregister unbound processes: %w", err)
		}
	}
	return task.ID, nil
}
