package redisstore

import (
	"context"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Orphan does what Create does before it writes the task.
func (s *Store) Orphan(ctx context.Context, d taskstore.Draft) (procfleet.TaskID, error) {
	m := &maker{store: s, draft: &d, nonce: "a dispatcher that died"}
	n, _, err := m.number(ctx)
	return n.TaskID(), err
}

// SetPatience changes [Options.Patience]; no call may be under way.
func (s *Store) SetPatience(d time.Duration) { s.opt.Patience = d }

// Passing reports whether an error of the server leads to
// [taskstore.ErrUnavailable] instead of being final.
func Passing(err error) bool { return classify(err) != faultForGood }
