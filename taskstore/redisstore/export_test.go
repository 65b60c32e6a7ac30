package redisstore

import (
	"context"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
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

// Cut says after which step a reporter dies.
type Cut int

// The steps of a report that names other processes than the one before.
const (
	AfterTouch Cut = iota
	AfterWrite
)

// ReportAndDie does what Report does, up to a step.
func (s *Store) ReportAndDie(ctx context.Context, reports []catalog.Report, cut Cut) error {
	changed, _, err := s.write(ctx, newest(reports), "")
	if err != nil {
		return err
	}
	flux := byIndex(changed)
	if err := s.run(ctx, flux.calls(func(part *indexPart) *call { return part.touch(s, newToken()) })...); err != nil || cut == AfterTouch {
		return err
	}
	_, _, err = s.write(ctx, changed, "touched")
	return err
}

// NamespaceKey is the common beginning of the keys of a namespace.
func (s *Store) NamespaceKey(namespace string) string { return s.keys.namespace(namespace).base }

// Member is how the index has a process.
func Member(p catalog.Process) string { return member(p.Name, p.Host) }
