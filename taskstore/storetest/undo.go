package storetest

import (
	"context"
	"errors"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func previousSpec(name string) *procfleet.ProcessSpec {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.Control.Start = "shop", name, name, "./start "+name
	return &spec
}

func previous(ctx context.Context, t T, s Subject, id procfleet.TaskID, chunk int) []taskstore.PreviousSpecs {
	t.Helper()
	found, err := s.PreviousSpecs(ctx, id, chunk)
	must(t, err, "previous specs")
	return found
}

func previousKept(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(3, 0, 3))
	first := taskstore.PreviousSpecs{Chunk: 1, From: 2, Specs: []*procfleet.ProcessSpec{previousSpec("a"), nil, previousSpec("b"), previousSpec("a")}}
	second := taskstore.PreviousSpecs{Chunk: 1, From: 0, Specs: []*procfleet.ProcessSpec{nil, nil}}
	other := taskstore.PreviousSpecs{Chunk: 10, From: 300, Specs: []*procfleet.ProcessSpec{previousSpec("c")}}
	must(t, s.KeepPrevious(ctx, task.ID, []taskstore.PreviousSpecs{first, other}), "keep previous specs")
	changed := taskstore.PreviousSpecs{Chunk: 1, From: 2, Specs: []*procfleet.ProcessSpec{previousSpec("new"), nil, nil, nil}}
	must(t, s.KeepPrevious(ctx, task.ID, []taskstore.PreviousSpecs{changed, second}), "keep previous specs again")
	equal(t, "previous specs of a chunk", previous(ctx, t, s, task.ID, 1), []taskstore.PreviousSpecs{second, first})
	equal(t, "previous specs of another chunk", previous(ctx, t, s, task.ID, 10), []taskstore.PreviousSpecs{other})
	equal(t, "previous specs of no grant", len(previous(ctx, t, s, task.ID, 0)), 0)
	must(t, s.KeepPrevious(ctx, task.ID, nil), "keep nothing")
	if err := s.KeepPrevious(ctx, "GSETASK:20200101000000:1", []taskstore.PreviousSpecs{first}); !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("previous specs of an unknown task: %v", err)
	}
}

func undoLinked(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	record(ctx, t, s, task.ID, succeeded(0, 1)...)
	d := Draft(1)
	d.UndoOf, d.IdempotencyKey = task.ID, taskstore.UndoKey+string(task.ID)
	undo := create(ctx, t, s, d)
	equal(t, "undo of", look(ctx, t, s, undo.ID).UndoOf, task.ID)
	for _, other := range []procfleet.TaskID{undo.ID, undo.ID, "GSETASK:20200101000000:2"} { // only the first changes something
		linked, err := s.LinkUndo(ctx, task.ID, other)
		must(t, err, "link an undo")
		equal(t, "undone by", linked.UndoneBy, undo.ID)
		equal(t, "seq", linked.Seq, 1)
		equal(t, "task", look(ctx, t, s, task.ID), linked)
	}
	if _, err := s.LinkUndo(ctx, "GSETASK:20200101000000:1", undo.ID); !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("undo of an unknown task: %v", err)
	}
}
