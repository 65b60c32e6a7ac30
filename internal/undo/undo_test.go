package undo_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/undo"
	"github.com/procfleet/procfleet/taskstore"
)

// fakeStore has tasks, the newest first, with their chunks and previous specs.
type fakeStore struct {
	tasks    []procfleet.Task
	chunks   map[procfleet.TaskID][][]procfleet.ItemResult
	previous map[int][]taskstore.PreviousSpecs
}

func (s *fakeStore) Tasks(_ context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error) {
	var page []procfleet.Task
	for _, t := range s.tasks {
		if (q.Before == 0 || t.Number < q.Before) && len(page) < q.Limit {
			page = append(page, t)
		}
	}
	return page, nil
}

func (s *fakeStore) Chunk(_ context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	if chunk >= len(s.chunks[id]) {
		return nil, taskstore.ErrNotFound
	}
	return s.chunks[id][chunk], nil
}

func (s *fakeStore) PreviousSpecs(_ context.Context, _ procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error) {
	return s.previous[chunk], nil
}

func spec(name, version string) *procfleet.ProcessSpec {
	p := procfleet.DefaultSpec()
	p.Namespace, p.Name, p.ProcName, p.Control.Start = "shop", name, name, version
	return &p
}

func row(t *testing.T, host, name string, action procfleet.Action, state procfleet.State) procfleet.ItemResult {
	t.Helper()
	h, err := procfleet.ParseHost(host)
	if err != nil {
		t.Fatal(err)
	}
	return procfleet.ItemResult{Item: procfleet.Item{Action: action, Target: procfleet.Target{Host: h}}, Spec: spec(name, "new"), State: state}
}

const rolloutID = "GSETASK:20261121053522:100"

func rollout() procfleet.Task {
	now := time.Date(2026, 11, 21, 5, 35, 22, 0, time.UTC)
	return procfleet.Task{
		ID: rolloutID, Number: 100, Chunks: 2, Application: "shop", Business: "2", Actions: []procfleet.Action{procfleet.ActionRestart},
		Deadline: now, ExpiresAt: now.Add(time.Hour), Rollout: &procfleet.Rollout{Window: 2},
	}
}

// steps are the items of a draft as "chunk host action name version".
func steps(d *taskstore.Draft) (all []string) {
	for k, c := range d.Chunks {
		for _, it := range c.Items {
			s := c.Specs[it.Spec]
			all = append(all, fmt.Sprintf("%d %s %s %s %s", k, it.Target.Host, it.Action, s.Name, s.Control.Start))
		}
	}
	return all
}

func TestAnUndoHasTheReleasedProcessesThatNothingHasOperatedSince(t *testing.T) {
	t.Parallel()
	const restart, stop = procfleet.ActionRestart, procfleet.ActionStop
	task := rollout()
	done, canceled := procfleet.StateSucceeded, procfleet.StateCancelled
	store := &fakeStore{
		chunks: map[procfleet.TaskID][][]procfleet.ItemResult{
			rolloutID: {
				{row(t, "0:10.0.0.1", "web", restart, done), row(t, "0:10.0.0.1", "db", restart, procfleet.StateFailed), row(t, "0:10.0.0.2", "web", restart, procfleet.StateTimedOut), row(t, "0:10.0.0.3", "web", stop, done)},
				{row(t, "3:10.0.0.4", "web", restart, done), row(t, "3:10.0.0.5", "web", restart, canceled), row(t, "3:10.0.0.6", "web", restart, done), row(t, "3:10.0.0.7", "web", restart, procfleet.StatePending)},
			},
			"later":    {{row(t, "3:10.0.0.4", "web", stop, done), row(t, "0:10.0.0.1", "web", procfleet.ActionStatus, done), row(t, "0:10.0.0.2", "web", stop, canceled)}},
			"own undo": {{row(t, "0:10.0.0.1", "web", restart, done)}},
		},
		previous: map[int][]taskstore.PreviousSpecs{
			0: {{From: 0, Specs: []*procfleet.ProcessSpec{spec("web", "old"), nil}}, {From: 2, Specs: []*procfleet.ProcessSpec{spec("web", "older"), spec("web", "old")}}},
			1: {{From: 0, Specs: []*procfleet.ProcessSpec{spec("web", "old"), spec("web", "kept"), spec("web", "old")}}}, // the last host was not released
		},
	}
	both := []procfleet.Action{restart, stop}
	store.tasks = []procfleet.Task{
		{ID: "own undo", Number: 120, Chunks: 1, UndoOf: rolloutID, Actions: both}, {ID: "later", Number: 110, Chunks: 1, Actions: both}, task,
	}
	u, err := undo.Make(t.Context(), store, &task, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"0 3:10.0.0.6 restart web old",
		"1 0:10.0.0.2 restart web older",
		"1 0:10.0.0.1 stop db new",
		"1 0:10.0.0.1 restart web old",
	}
	if diff := cmp.Diff(want, steps(&u.Draft)); diff != "" {
		t.Error(diff)
	}
	d := &u.Draft
	if d.UndoOf != rolloutID || d.Application != "shop" || d.Business != "2" || d.Retention != time.Hour || !slices.Equal(d.Actions, both) {
		t.Errorf("draft %+v", d)
	}
	if p := d.Rollout; p.Window != 2 || p.Units() != 3 || p.Stages[0].Chunks != 2 || p.UnitTimeout > d.Timeout {
		t.Errorf("plan %+v, timeout %s", p, d.Timeout)
	}
	if all, err := undo.Make(t.Context(), store, &task, true); err != nil || all.Draft.Rollout.Window != 3 || all.Draft.IdempotencyKey != d.IdempotencyKey {
		t.Errorf("all at once: %+v, %v", all.Draft.Rollout, err)
	}
}

func TestAnUndoOfNothingIsRefused(t *testing.T) {
	t.Parallel()
	task := rollout()
	task.Chunks = 1
	store := &fakeStore{chunks: map[procfleet.TaskID][][]procfleet.ItemResult{rolloutID: {{row(t, "0:10.0.0.1", "web", procfleet.ActionRestart, procfleet.StateSucceeded)}}}}
	if _, err := undo.Make(t.Context(), store, &task, false); !errors.Is(err, undo.ErrNothing) {
		t.Errorf("without previous specs: %v", err)
	}
	store.previous = map[int][]taskstore.PreviousSpecs{0: {{Specs: []*procfleet.ProcessSpec{spec("web", "old")}}}}
	for n := range 10_100 {
		store.tasks = append(store.tasks, procfleet.Task{ID: "x", Number: procfleet.Number(20_000 - n)})
	}
	if _, err := undo.Make(t.Context(), store, &task, false); !errors.Is(err, undo.ErrTooMany) {
		t.Errorf("after too many tasks: %v", err)
	}
}

func TestAnUndoOfBigSpecsHasSmallChunks(t *testing.T) {
	t.Parallel()
	task := rollout()
	task.Chunks = 1
	store := &fakeStore{previous: map[int][]taskstore.PreviousSpecs{}, tasks: []procfleet.Task{task}}
	var rows []procfleet.ItemResult
	var specs []*procfleet.ProcessSpec
	for i := range 40 {
		rows = append(rows, row(t, fmt.Sprintf("0:10.0.0.%d", i), "web", procfleet.ActionRestart, procfleet.StateSucceeded))
		specs = append(specs, spec("web", strings.Repeat("x", 30<<10)))
	}
	store.chunks = map[procfleet.TaskID][][]procfleet.ItemResult{rolloutID: {rows}}
	store.previous[0] = []taskstore.PreviousSpecs{{Specs: specs}}
	u, err := undo.Make(t.Context(), store, &task, false)
	if err != nil {
		t.Fatal(err)
	}
	items := 0
	for _, c := range u.Draft.Chunks {
		if c.First != items || len(c.Items) > 17 {
			t.Errorf("a chunk of %d big specs begins with item %d of %d", len(c.Items), c.First, items)
		}
		items += len(c.Items)
	}
	if items != 40 || len(u.Draft.Chunks) < 3 {
		t.Errorf("%d items in %d chunks", items, len(u.Draft.Chunks))
	}
}
