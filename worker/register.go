package worker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// register keeps what a task says of its processes, since its dispatcher died,
// perhaps before it did. What was asked for since then is newer, and stays.
func (sh *shard) register(ctx context.Context, task *procfleet.Task) error {
	if !slices.ContainsFunc(task.Actions, procfleet.Action.Registers) {
		return nil
	}
	for chunk := range task.Chunks {
		items, err := sh.store.Chunk(ctx, task.ID, chunk)
		if err != nil {
			return fmt.Errorf("read chunk %d: %w", chunk, err)
		}
		ds := definitions(items, task.CreatedAt)
		if len(ds) == 0 {
			continue
		}
		if _, err := sh.store.Register(ctx, ds, true); err != nil {
			return fmt.Errorf("register the processes of chunk %d: %w", chunk, err)
		}
	}
	return nil
}

// definitions are the specs that items register, which were asked for then. The
// last of several for one process comes first, and so is the one that is kept.
func definitions(items []procfleet.ItemResult, asked time.Time) []catalog.Definition {
	var ds []catalog.Definition
	var last *procfleet.ProcessSpec // of ds
	for _, it := range slices.Backward(items) {
		spec, host := it.Spec, it.Item.Target.Host
		if !it.Item.Action.Registers() || spec.Unregistered || spec.Namespace == "" || spec.Name == "" || host.IsZero() {
			continue
		}
		if spec != last {
			ds = append(ds, catalog.Definition{Spec: *spec, Asked: asked})
			last = spec
		}
		d := &ds[len(ds)-1]
		d.Hosts = append(d.Hosts, host)
	}
	return ds
}
