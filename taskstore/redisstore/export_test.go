package redisstore

import (
	"context"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Orphan does what Create does before it writes the task.
func (s *Store) Orphan(ctx context.Context, d taskstore.Draft) (procfleet.TaskID, error) {
	m := &maker{store: s, draft: &d, nonce: "a dispatcher that died"}
	n, _, err := m.number(ctx)
	return n.TaskID(), err
}
