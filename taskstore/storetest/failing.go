package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Failing returns a store whose n-th call (from 1) fails with
// [taskstore.ErrUnavailable] without reaching s; all others are those of s.
func Failing(s taskstore.Store, n int64) taskstore.Store {
	return &failing{Store: s, n: n}
}

type failing struct {
	taskstore.Store
	n    int64
	made atomic.Int64
}

func (f *failing) fail() error {
	if f.made.Add(1) != f.n {
		return nil
	}
	return fmt.Errorf("%w: call %d fails on purpose", taskstore.ErrUnavailable, f.n)
}

func (f *failing) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	if err := f.fail(); err != nil {
		return procfleet.Task{}, false, err
	}
	return f.Store.Create(ctx, d)
}

func (f *failing) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Dispatched(ctx, id, sequences)
}

func (f *failing) Reject(ctx context.Context, id procfleet.TaskID, reason string) (bool, error) {
	if err := f.fail(); err != nil {
		return false, err
	}
	return f.Store.Reject(ctx, id, reason)
}

func (f *failing) Begin(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.Begun, error) {
	if err := f.fail(); err != nil {
		return taskstore.Begun{}, err
	}
	return f.Store.Begin(ctx, id, chunk)
}

func (f *failing) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Delivered(ctx, id, chunk, items, done)
}

func (f *failing) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Record(ctx, batches)
}

func (f *failing) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	if err := f.fail(); err != nil {
		return procfleet.Task{}, err
	}
	return f.Store.Task(ctx, id)
}

func (f *failing) Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Tasks(ctx, q)
}

func (f *failing) Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Chunk(ctx, id, chunk)
}

func (f *failing) Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Owners(ctx, id, items)
}

func (f *failing) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	if err := f.fail(); err != nil {
		return nil, "", err
	}
	return f.Store.Results(ctx, id, q)
}

func (f *failing) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	if err := f.fail(); err != nil {
		return false, err
	}
	return f.Store.Lease(ctx, name, holder, ttl)
}

func (f *failing) Release(ctx context.Context, name, holder string) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Release(ctx, name, holder)
}

func (f *failing) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Due(ctx, shard, limit)
}

func (f *failing) TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.TasksByID(ctx, ids)
}

func (f *failing) DeliveredItems(ctx context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.DeliveredItems(ctx, tasks)
}

func (f *failing) Undone(ctx context.Context, id procfleet.TaskID) ([]taskstore.ChunkDuty, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Undone(ctx, id)
}

func (f *failing) Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Republished(ctx, id, chunk, sequence)
}

func (f *failing) Revisit(ctx context.Context, next ...taskstore.NextVisit) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Revisit(ctx, next...)
}

func (f *failing) Settle(ctx context.Context, visits ...taskstore.Visit) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Settle(ctx, visits...)
}

func (f *failing) Published(ctx context.Context, id procfleet.TaskID) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Published(ctx, id)
}

func (f *failing) Notified(ctx context.Context, ids ...procfleet.TaskID) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Notified(ctx, ids...)
}

func (f *failing) Announce(ctx context.Context, as []taskstore.Announcement) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Announce(ctx, as)
}

func (f *failing) Bind(ctx context.Context, bs []taskstore.AgentBinding) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Store.Bind(ctx, bs)
}

func (f *failing) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Presences(ctx, hosts)
}

func (f *failing) Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Resolve(ctx, agentIDs)
}

func (f *failing) Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Claimants(ctx, agentIDs)
}

func (f *failing) HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.HostPage(ctx, after, limit)
}

func (f *failing) Now(ctx context.Context) (time.Time, error) {
	if err := f.fail(); err != nil {
		return time.Time{}, err
	}
	return f.Store.Now(ctx)
}
