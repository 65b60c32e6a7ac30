package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func storeChecks() []Check {
	return []Check{
		{Name: "calls end with their context", Fn: cancelledContext},
		{Name: "the clock goes on", Fn: clockGoesOn},
		{Name: "what was confirmed survives", Fn: survivesReopen, Needs: Needs{Reopen: true}},
	}
}

// calls returns one call of every contract method that takes a context, by method name.
func calls(ctx context.Context, s taskstore.Store, id procfleet.TaskID) map[string]error {
	errs := map[string]error{}
	_, _, errs["Create"] = s.Create(ctx, Draft(1))
	errs["Dispatched"] = s.Dispatched(ctx, id, []uint64{1})
	_, errs["Reject"] = s.Reject(ctx, id, "x")
	_, errs["Begin"] = s.Begin(ctx, id, 0, 0)
	errs["Delivered"] = s.Delivered(ctx, id, 0, []int{0}, true)
	_, errs["Record"] = s.Record(ctx, []taskstore.Batch{{Task: id, Results: succeeded(0)}})
	_, errs["Task"] = s.Task(ctx, id)
	_, errs["Tasks"] = s.Tasks(ctx, taskstore.TaskQuery{Limit: 1})
	_, errs["Chunk"] = s.Chunk(ctx, id, 0)
	_, errs["Owners"] = s.Owners(ctx, id, []int{0})
	_, _, errs["Results"] = s.Results(ctx, id, taskstore.ResultQuery{Limit: 1})
	_, errs["Lease"] = s.Lease(ctx, "l", "h", time.Minute)
	errs["Release"] = s.Release(ctx, "l", "h")
	_, errs["Due"] = s.Due(ctx, 0, 1)
	_, errs["Undone"] = s.Undone(ctx, id)
	errs["Republished"] = s.Republished(ctx, id, 0, 1)
	errs["Revisit"] = s.Revisit(ctx, taskstore.NextVisit{Task: id})
	_, errs["TasksByID"] = s.TasksByID(ctx, []procfleet.TaskID{id})
	_, errs["DeliveredItems"] = s.DeliveredItems(ctx, []procfleet.Task{{ID: id, Chunks: 1, Items: 1}})
	errs["Settle"] = s.Settle(ctx, taskstore.Visit{Task: id})
	errs["Published"] = s.Published(ctx, id)
	errs["Notified"] = s.Notified(ctx, id)
	errs["Announce"] = s.Announce(ctx, []taskstore.Announcement{announcement(host(0, 1), "i")})
	errs["Bind"] = s.Bind(ctx, []taskstore.AgentBinding{binding("a", host(0, 1))})
	_, errs["Presences"] = s.Presences(ctx, []procfleet.Host{host(0, 1)})
	_, errs["Resolve"] = s.Resolve(ctx, []string{"a"})
	_, errs["HostPage"] = s.HostPage(ctx, procfleet.Host{}, 1)
	_, errs["Now"] = s.Now(ctx)
	return errs
}

func cancelledContext(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	over, cancel := context.WithCancel(ctx)
	cancel()
	for name, err := range calls(over, s, task.ID) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", name, err)
		}
	}
	equal(t, "task after calls that were cancelled before they began", look(ctx, t, s, task.ID), task)
	equal(t, "tasks", list(ctx, t, s, 10), []procfleet.TaskID{task.ID})
}

func clockGoesOn(ctx context.Context, t T, s Subject) {
	first, err := s.Now(ctx)
	must(t, err, "now")
	s.pass(ctx, t, time.Second, "the clock has moved", func() bool {
		now, err := s.Now(ctx)
		return err == nil && now.After(first)
	})
}

func survivesReopen(ctx context.Context, t T, s Subject) {
	kept := keyed("k", "body")
	open := create(ctx, t, s, kept)
	begun := begin(ctx, t, s, open.ID, 0)
	must(t, s.Dispatched(ctx, open.ID, []uint64{42}), "dispatched")
	must(t, s.Delivered(ctx, open.ID, 0, []int{1}, false), "delivered")
	record(ctx, t, s, open.ID, succeeded(0)...)
	revisit(ctx, t, s, open.ID, 0)
	finished := mixed(ctx, t, s, 300)
	rejected := create(ctx, t, s, Draft(1))
	reject(ctx, t, s, rejected.ID, "full")
	announce(ctx, t, s, announcement(host(0, 1), "i"))
	bind(ctx, t, s, binding("bound", host(5, 1)))

	ids := []procfleet.TaskID{rejected.ID, finished.ID, open.ID}
	want := map[procfleet.TaskID]procfleet.Task{}
	wantItems := map[procfleet.TaskID][]procfleet.ItemResult{}
	for _, id := range ids {
		want[id] = look(ctx, t, s, id)
		wantItems[id] = items(ctx, t, s, want[id])
	}
	s.Store = s.Reopen()

	equal(t, "tasks", list(ctx, t, s, 10), ids)
	for _, id := range ids {
		equal(t, "task", look(ctx, t, s, id), want[id])
		equalItems(t, "items", items(ctx, t, s, want[id]), wantItems[id])
		audit(ctx, t, s, id)
	}
	equal(t, "undone chunks", undone(ctx, t, s, open.ID), []taskstore.UndoneChunk{{Sequence: 42, Begun: begun.FirstBegun}})
	resolved(ctx, t, s, map[string]procfleet.Host{"bound": host(5, 1)})
	equal(t, "instance", presence(ctx, t, s, host(0, 1)).Instance, "i")
	s.pass(ctx, t, 0, "the task is due", func() bool { return len(due(ctx, t, s, taskstore.Shard(open.Number), 10)) == 1 })
	if again, created, err := s.Create(ctx, kept); err != nil || created || again.ID != open.ID {
		t.Errorf("repeat: %s, created %v, %v; want %s", again.ID, created, err, open.ID)
	}
	if next := create(ctx, t, s, Draft(1)); next.Number <= rejected.Number {
		t.Errorf("number %d came after %d", next.Number, rejected.Number)
	}
}
