package storetest_test

import (
	"context"
	"errors"
	"sync"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

type countsRepeatedPauses struct {
	taskstore.Store
	pauses *sync.Map
}

func (s countsRepeatedPauses) Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error) {
	t, err := s.Store.Pause(ctx, id, reason, seq)
	if _, again := s.pauses.LoadOrStore(id, true); again {
		t.Seq++
	}
	return t, err
}

type forgetsTransitions struct{ taskstore.Store }

func (s forgetsTransitions) Transitions(ctx context.Context, id procfleet.TaskID, after, upto int) ([]procfleet.Transition, error) {
	list, err := s.Store.Transitions(ctx, id, after, upto)
	for i := range list {
		list[i].Hold, list[i].Mode = "", ""
	}
	return list, err
}

type countsSentDown struct {
	taskstore.Store
	sent *sync.Map
}

func (s countsSentDown) TransitionsSent(ctx context.Context, id procfleet.TaskID, upto int) error {
	s.sent.Store(id, upto)
	return s.Store.TransitionsSent(ctx, id, upto)
}

func (s countsSentDown) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	t, err := s.Store.Task(ctx, id)
	if n, ok := s.sent.Load(id); ok {
		t.TransitionsSent, _ = n.(int)
	}
	return t, err
}

type seqBlind struct{ taskstore.Store }

func (s seqBlind) Pause(ctx context.Context, id procfleet.TaskID, reason string, _ int) (procfleet.Task, error) {
	return s.Store.Pause(ctx, id, reason, taskstore.AnySeq)
}

type controlsEnded struct{ taskstore.Store }

func (s controlsEnded) Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error) {
	t, err := s.Store.Pause(ctx, id, reason, seq)
	if errors.Is(err, taskstore.ErrDone) {
		err = nil
	}
	return t, err
}

type recordsNothingHeld struct{ taskstore.Store }

func (s recordsNothingHeld) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	if t, err := s.Task(ctx, batches[0].Task); err == nil && t.Held() {
		return make([]taskstore.Recorded, len(batches)), nil
	}
	return s.Store.Record(ctx, batches)
}

type fixedDeadline struct {
	taskstore.Store
	deadlines *sync.Map
}

func (s fixedDeadline) Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error) {
	t, err := s.Store.Pause(ctx, id, reason, seq)
	s.deadlines.Store(id, t)
	return t, err
}

func (s fixedDeadline) Resume(ctx context.Context, id procfleet.TaskID, seq int) (procfleet.Task, error) {
	t, err := s.Store.Resume(ctx, id, seq)
	if before, ok := s.deadlines.Load(id); ok {
		t.Deadline = before.(procfleet.Task).Deadline
	}
	return t, err
}
