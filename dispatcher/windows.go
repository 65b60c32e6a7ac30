package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// overrideHeader is the header with the reason to operate outside of maintenance windows.
const overrideHeader = "Procfleet-Override-Windows"

// maxOverride is the maximum length of that reason in bytes.
const maxOverride = 256

func checkOverride(reason string) error {
	if len(reason) <= maxOverride && utf8.ValidString(reason) {
		return nil
	}
	return &dialect.Error{Kind: dialect.InvalidField, Field: overrideHeader, Problem: fmt.Sprintf("is not a text of up to %d bytes", maxOverride)}
}

// heedWindows returns an error if maintenance windows deny the operations of a submission on some of
// their hosts. For a rollout it returns which windows stop it later.
func (s *submitter) heedWindows(ctx context.Context, sub *procfleet.Submission, operations []procfleet.Operation) (map[string][]string, error) {
	if sub.Override != "" || !slices.ContainsFunc(operations, changes) {
		return nil, nil
	}
	namespaces := policyNamespaces(sub, operations)
	found, err := s.policies.Policies(ctx, namespaces)
	if err != nil {
		return nil, fmt.Errorf("read the maintenance windows: %w", err)
	}
	stops := make(map[string][]string, len(namespaces))
	var now time.Time
	for i, namespace := range namespaces {
		stops[namespace] = nil
		if len(found[i].Windows) == 0 {
			continue
		}
		if now.IsZero() {
			if now, err = s.store.Now(ctx); err != nil {
				return nil, fmt.Errorf("read the store's clock: %w", err)
			}
		}
		w := windowed{policies: &found[i], namespace: namespace, hosts: changedHosts(sub, operations, namespace)}
		if err := w.group(ctx, s); err != nil {
			return nil, err
		}
		if err := w.check(now); err != nil {
			return nil, err
		}
		stops[namespace] = w.grouped()
	}
	if sub.Rollout == nil {
		stops = nil
	}
	return stops, nil
}

func changes(o procfleet.Operation) bool { return o.Action.Mutating() }

// changedHosts returns the hosts whose operations are subject to the windows of a namespace.
func changedHosts(sub *procfleet.Submission, operations []procfleet.Operation, namespace string) []procfleet.Host {
	var subject []procfleet.Operation
	for _, o := range operations {
		if changes(o) && (sub.Business == namespace || o.Process.Namespace == namespace) {
			subject = append(subject, o)
		}
	}
	return operatedHosts(subject)
}

// windowed are the hosts of a submission and the windows of one namespace.
type windowed struct {
	policies  *catalog.RolloutPolicies
	namespace string
	hosts     []procfleet.Host
	groups    map[procfleet.HostGrouping]groups
}

// group reads the groups of the hosts that the windows need.
func (w *windowed) group(ctx context.Context, s *submitter) error {
	w.groups = map[procfleet.HostGrouping]groups{}
	operations := []procfleet.Operation{{Targets: make([]procfleet.Target, len(w.hosts))}}
	for i, host := range w.hosts {
		operations[0].Targets[i].Host = host
	}
	for i := range w.policies.Windows {
		by := w.policies.Windows[i].HostGrouping
		if _, known := w.groups[by]; known {
			continue
		}
		of, err := s.groups(ctx, &procfleet.Submission{Business: w.namespace}, operations, "windows.by", by)
		if err != nil {
			return err
		}
		w.groups[by] = of
	}
	return nil
}

// applies reports whether a window is for a host.
func (w *windowed) applies(window *procfleet.MaintenanceWindow, host procfleet.Host) bool {
	return window.ForAll() || window.For(w.groups[window.HostGrouping](host))
}

// check returns an error that names the first host outside of the windows.
func (w *windowed) check(now time.Time) error {
	var first catalog.Closure
	var example procfleet.Host
	outside := 0
	for _, host := range w.hosts {
		closure, closed := w.policies.Closed(now, func(m *procfleet.MaintenanceWindow) bool { return w.applies(m, host) })
		if !closed {
			continue
		}
		if outside++; outside == 1 {
			first, example = closure, host
		}
	}
	if outside == 0 {
		return nil
	}
	return &dialect.Error{Kind: dialect.OutsideWindow, Problem: fmt.Sprintf(
		"%d of %d hosts are outside of the maintenance windows of %s, %s for example: %s; with the header %s, whose value is a reason, they are operated in any case",
		outside, len(w.hosts), w.namespace, example, first, overrideHeader)}
}

// grouped returns the names of the windows for groups of the hosts.
func (w *windowed) grouped() []string {
	var names []string
	for i := range w.policies.Windows {
		window := &w.policies.Windows[i]
		if !window.ForAll() && slices.ContainsFunc(w.hosts, func(h procfleet.Host) bool { return w.applies(window, h) }) {
			names = append(names, window.Name)
		}
	}
	return names
}
