package release

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/procfleet/procfleet"
)

// closed returns why maintenance windows permit no releases of a rollout now; "" if they do.
func (r *Releaser) closed(ctx context.Context, id procfleet.TaskID) (string, error) {
	stops, err := r.stopsOf(ctx, id)
	if err != nil || len(stops) == 0 {
		return "", err
	}
	namespaces := slices.Sorted(maps.Keys(stops))
	found, err := r.policies.Policies(ctx, namespaces)
	if err != nil {
		return "", fmt.Errorf("read the maintenance windows: %w", err)
	}
	now := r.cfg.Clock.Now()
	for i, namespace := range namespaces {
		closure, closed := found[i].Closed(now, func(w *procfleet.MaintenanceWindow) bool {
			return w.ForAll() || slices.Contains(stops[namespace], w.Name)
		})
		if closed {
			return closure.String(), nil
		}
	}
	return "", nil
}

// stopsOf returns the windows that stop a rollout. They do not change, so the store is read once.
func (r *Releaser) stopsOf(ctx context.Context, id procfleet.TaskID) (map[string][]string, error) {
	r.mu.Lock()
	stops, known := r.stops[id]
	r.mu.Unlock()
	if known {
		return stops, nil
	}
	task, err := r.cfg.Store.Task(ctx, id)
	if err != nil {
		return nil, err
	}
	if task.Rollout != nil {
		stops = task.Rollout.Plan.Windows
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.stops) >= maxStops {
		clear(r.stops)
	}
	r.stops[id] = stops
	return stops, nil
}
