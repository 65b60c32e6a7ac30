package storetest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Each of these stores violates one rule, and is otherwise correct.

type forgetfulTask struct{ taskstore.Store }

func (s forgetfulTask) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	t, err := s.Store.Task(ctx, id)
	t.Business = ""
	return t, err
}

type sharing struct {
	taskstore.Store
	seen *sync.Map
}

func (s sharing) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	t, err := s.Store.Task(ctx, id)
	if old, again := s.seen.LoadOrStore(id, t); err == nil && again {
		return old.(procfleet.Task), nil
	}
	return t, err
}

type coarseNumbers struct{ taskstore.Store }

func (s coarseNumbers) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	t, created, err := s.Store.Create(ctx, d)
	t.Number -= t.Number % 1_000_000
	return t, created, err
}

type wallClockNumbers struct{ taskstore.Store }

func (s wallClockNumbers) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	t, created, err := s.Store.Create(ctx, d)
	t.Number = procfleet.Number(t.CreatedAt.UnixMicro())
	return t, created, err
}

type notIdempotent struct{ taskstore.Store }

func (s notIdempotent) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	d.IdempotencyKey = ""
	return s.Store.Create(ctx, d)
}

type timeless struct{ taskstore.Store }

func (s timeless) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	d.NotAfter = time.Time{}
	return s.Store.Create(ctx, d)
}

type bodyBlind struct{ taskstore.Store }

func (s bodyBlind) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	d.BodyHash = ""
	return s.Store.Create(ctx, d)
}

type keysOfAll struct{ taskstore.Store }

func (s keysOfAll) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	d.IdempotencyKey, d.Application = d.Application+d.IdempotencyKey, ""
	return s.Store.Create(ctx, d)
}

type keyHoarding struct {
	taskstore.Store
	first *sync.Map
}

func (s keyHoarding) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	if t, ok := s.first.Load(d.IdempotencyKey); ok {
		return t.(procfleet.Task), false, nil
	}
	t, created, err := s.Store.Create(ctx, d)
	s.first.Store(d.IdempotencyKey, t)
	return t, created, err
}

type fewChunks struct{ taskstore.Store }

func (s fewChunks) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	if len(d.Chunks) > 8000 {
		return procfleet.Task{}, false, errors.New("too many results to unpack")
	}
	return s.Store.Create(ctx, d)
}

type neverDispatched struct{ taskstore.Store }

func (s neverDispatched) Dispatched(context.Context, procfleet.TaskID, []uint64) error { return nil }

type oldestFirst struct{ taskstore.Store }

func (s oldestFirst) Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error) {
	ts, err := s.Store.Tasks(ctx, q)
	slices.Reverse(ts)
	return ts, err
}

type neverExpiring struct{ taskstore.Store }

func (s neverExpiring) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	d.Retention += time.Hour
	return s.Store.Create(ctx, d)
}

type neverOverdue struct{ taskstore.Store }

func (s neverOverdue) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	d.Timeout += time.Hour
	return s.Store.Create(ctx, d)
}

type inventing struct{ taskstore.Store }

func (s inventing) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	t, err := s.Store.Task(ctx, id)
	if errors.Is(err, taskstore.ErrNotFound) {
		return procfleet.Task{ID: id}, nil
	}
	return t, err
}

type rejectingBegun struct{ taskstore.Store }

func (s rejectingBegun) Reject(ctx context.Context, id procfleet.TaskID, reason string) (bool, error) {
	_, err := s.Store.Reject(ctx, id, reason)
	return err == nil, err
}

type reasonless struct{ taskstore.Store }

func (s reasonless) Reject(ctx context.Context, id procfleet.TaskID, _ string) (bool, error) {
	return s.Store.Reject(ctx, id, "")
}

// gateBlind opens one kind of gate.
type gateBlind struct {
	taskstore.Store
	gate taskstore.Gate
}

func (s gateBlind) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	b, err := s.Store.Begin(ctx, id, chunk, upto)
	if b.Gate == s.gate {
		b.Gate = taskstore.GateOpen
	}
	return b, err
}

type allOpen struct{ taskstore.Store }

func (s allOpen) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	b, err := s.Store.Begin(ctx, id, chunk, upto)
	b.Open = nil
	for i := range b.Chunk.Items {
		b.Open = append(b.Open, i)
	}
	return b, err
}

type alwaysFirst struct{ taskstore.Store }

func (s alwaysFirst) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	b, err := s.Store.Begin(ctx, id, chunk, upto)
	b.FirstBegun = b.Now
	return b, err
}

func (s alwaysFirst) Undone(ctx context.Context, id procfleet.TaskID) ([]taskstore.UndoneChunk, error) {
	ds, err := s.Store.Undone(ctx, id)
	for i := range ds {
		ds[i].Begun = time.Time{}
	}
	return ds, err
}

type undelivering struct{ taskstore.Store }

func (s undelivering) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, _ []int, done bool) error {
	return s.Store.Delivered(ctx, id, chunk, nil, done)
}

type neverDone struct{ taskstore.Store }

func (s neverDone) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, _ bool) error {
	return s.Store.Delivered(ctx, id, chunk, items, false)
}

// lastWins replaces every result by a later one, regardless of the rank, and does not truncate it.
type lastWins struct {
	taskstore.Store
	last *sync.Map
}

type itemOf struct {
	task procfleet.TaskID
	item int
}

func (s lastWins) Record(ctx context.Context, bs []taskstore.Batch) ([]taskstore.Recorded, error) {
	for _, b := range bs {
		for _, r := range b.Results {
			s.last.Store(itemOf{b.Task, r.Item}, r)
		}
	}
	return s.Store.Record(ctx, bs)
}

func (s lastWins) Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	items, err := s.Store.Chunk(ctx, id, chunk)
	for i := range items {
		if r, ok := s.last.Load(itemOf{id, items[i].Index}); ok {
			items[i].Result = r.(procfleet.Result)
		}
	}
	return items, err
}

type countingRepeats struct{ taskstore.Store }

func (s countingRepeats) Record(ctx context.Context, bs []taskstore.Batch) ([]taskstore.Recorded, error) {
	out, err := s.Store.Record(ctx, bs)
	for i := range out {
		out[i].Applied = len(bs[i].Results)
	}
	return out, err
}

type doubleCompleting struct{ taskstore.Store }

func (s doubleCompleting) Record(ctx context.Context, bs []taskstore.Batch) ([]taskstore.Recorded, error) {
	out, err := s.Store.Record(ctx, bs)
	for i := range out {
		t, err := s.Task(ctx, bs[i].Task)
		out[i].Completed = err == nil && t.State == procfleet.TaskFinished
	}
	return out, err
}

// driftingCounts does not subtract a late result from the counter of the item's former state.
type driftingCounts struct{ taskstore.Store }

func (s driftingCounts) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	t, err := s.Store.Task(ctx, id)
	if t.State == procfleet.TaskFinished {
		t.Counts[procfleet.StateTimedOut]++
	}
	return t, err
}

// staleCounts changes counters in a later step than the state.
type staleCounts struct {
	taskstore.Store
	before *sync.Map
}

func (s staleCounts) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	t, err := s.Store.Task(ctx, id)
	if old, ok := s.before.Swap(id, t.Counts); ok && err == nil {
		t.Counts = old.(procfleet.Counts)
	}
	return t, err
}

type shuffledAnswers struct{ taskstore.Store }

func (s shuffledAnswers) Record(ctx context.Context, bs []taskstore.Batch) ([]taskstore.Recorded, error) {
	out, err := s.Store.Record(ctx, bs)
	slices.Reverse(out)
	return out, err
}

type statusless struct{ taskstore.Store }

func (s statusless) Record(ctx context.Context, bs []taskstore.Batch) ([]taskstore.Recorded, error) {
	for _, b := range bs {
		for i := range b.Results {
			b.Results[i].Status = nil
		}
	}
	return s.Store.Record(ctx, bs)
}

type small struct{ taskstore.Store }

func (s small) Record(ctx context.Context, bs []taskstore.Batch) ([]taskstore.Recorded, error) {
	for i := range bs {
		bs[i].Results = slices.DeleteFunc(bs[i].Results, func(r procfleet.Result) bool { return r.Item > 2000 })
	}
	return s.Store.Record(ctx, bs)
}

type goodNewsFirst struct{ taskstore.Store }

func (s goodNewsFirst) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	page, next, err := s.Store.Results(ctx, id, q)
	slices.Reverse(page)
	return page, next, err
}

type filterBlind struct{ taskstore.Store }

func (s filterBlind) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	q.State = ""
	return s.Store.Results(ctx, id, q)
}

type cursorForgiving struct{ taskstore.Store }

func (s cursorForgiving) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	page, next, err := s.Store.Results(ctx, id, q)
	if errors.Is(err, taskstore.ErrCursor) {
		q.Cursor = ""
		return s.Store.Results(ctx, id, q)
	}
	return page, next, err
}

type wrongOwners struct{ taskstore.Store }

func (s wrongOwners) Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error) {
	hosts, err := s.Store.Owners(ctx, id, items)
	if len(hosts) > 1 {
		hosts[0] = hosts[1]
	}
	return hosts, err
}

type oneSpec struct{ taskstore.Store }

func (s oneSpec) Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	items, err := s.Store.Chunk(ctx, id, chunk)
	for i := range items {
		items[i].Spec = items[0].Spec
	}
	return items, err
}
