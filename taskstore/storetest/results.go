package storetest

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func resultChecks() []Check {
	return []Check{
		{Name: "pages show every item once, failures first", Fn: pagesInOrder, Heavy: true},
		{Name: "pages of one state", Fn: pagesOfState, Heavy: true},
		{Name: "a foreign cursor is refused", Fn: foreignCursor},
		{Name: "a chunk shows its items", Fn: chunkShowsItems},
		{Name: "items have their hosts", Fn: itemsHaveHosts},
		{Name: "a large task", Fn: largeTask, Heavy: true},
	}
}

// mixed creates a finished task of n items that have results of all kinds.
func mixed(ctx context.Context, t T, s taskstore.Store, n int) procfleet.Task {
	t.Helper()
	task := create(ctx, t, s, Draft(n))
	kinds := []procfleet.Reason{
		procfleet.ReasonSucceeded, procfleet.ReasonUnreachable, procfleet.ReasonAlreadyRunning,
		procfleet.ReasonTimedOut, procfleet.ReasonCommandFailed, procfleet.ReasonSucceeded, procfleet.ReasonCancelled,
	}
	var rs []procfleet.Result
	for i := range n {
		switch r := kinds[i%len(kinds)]; r {
		case procfleet.ReasonUnreachable, procfleet.ReasonTimedOut, procfleet.ReasonCancelled:
			rs = append(rs, serverResult(i, r))
		default:
			rs = append(rs, agentResult(i, r))
		}
	}
	for part := range slices.Chunk(rs, 500) {
		record(ctx, t, s, task.ID, part...)
	}
	return look(ctx, t, s, task.ID)
}

func pagesInOrder(ctx context.Context, t T, s Subject) {
	task := mixed(ctx, t, s, 600)
	want := items(ctx, t, s, task)
	order := procfleet.States()
	slices.SortFunc(want, func(a, b procfleet.ItemResult) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State)), cmp.Compare(a.Index, b.Index))
	})
	for _, limit := range []int{7, 256, 600, 1000} {
		equalItems(t, "all pages", pages(ctx, t, s, task.ID, taskstore.ResultQuery{Limit: limit}), want)
	}
	open := create(ctx, t, s, Draft(3))
	must(t, s.Delivered(ctx, open.ID, 0, []int{2}, false), "delivered")
	var states []procfleet.State
	for _, it := range pages(ctx, t, s, open.ID, taskstore.ResultQuery{Limit: 1}) {
		states = append(states, it.State)
	}
	equal(t, "states of an open task", states, []procfleet.State{procfleet.StateDelivered, procfleet.StatePending, procfleet.StatePending})
}

func pagesOfState(ctx context.Context, t T, s Subject) {
	task := mixed(ctx, t, s, 300)
	for _, state := range procfleet.States() {
		for _, limit := range []int{5, 1000} {
			got := pages(ctx, t, s, task.ID, taskstore.ResultQuery{State: state, Limit: limit})
			equal(t, "items that are "+string(state), len(got), task.Counts[state])
			last := -1
			for _, it := range got {
				if it.State != state || it.Index <= last {
					t.Errorf("item %d, %s, came after %d in a page of %s", it.Index, it.State, last, state)
				}
				last = it.Index
			}
		}
	}
}

func foreignCursor(ctx context.Context, t T, s Subject) {
	task := mixed(ctx, t, s, 20)
	for _, cursor := range []string{"nonsense", " ", "-1", "\x00\xff", "failed", "failed:999999999999999999999", "99999999", "{}"} {
		if _, _, err := s.Results(ctx, task.ID, taskstore.ResultQuery{Limit: 5, Cursor: cursor}); !errors.Is(err, taskstore.ErrCursor) {
			t.Errorf("cursor %q: %v, want ErrCursor", cursor, err)
		}
	}
}

func chunkShowsItems(ctx context.Context, t T, s Subject) {
	d := Draft(300)
	task := create(ctx, t, s, d)
	record(ctx, t, s, task.ID, agentResult(257, procfleet.ReasonCheckFailed))
	all := items(ctx, t, s, task)
	equal(t, "number of items", len(all), 300)
	for i, it := range all {
		c := d.Chunks[i/procfleet.ChunkItems]
		at := i - c.First
		want := procfleet.ItemResult{Index: i, Item: c.Items[at], Spec: c.Spec(at), State: procfleet.StatePending}
		if i == 257 {
			want.State, want.Result = procfleet.StateFailed, agentResult(257, procfleet.ReasonCheckFailed)
		}
		if !equal(t, "item", it, want) {
			return
		}
	}
}

func itemsHaveHosts(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	asked := []int{299, 0, 256, 255, 300, -1, 1 << 40, 0}
	hosts, err := s.Owners(ctx, task.ID, asked)
	must(t, err, "owners")
	equal(t, "number of hosts", len(hosts), len(asked))
	all := items(ctx, t, s, task)
	for i, item := range asked {
		want := procfleet.Host{}
		if item >= 0 && item < len(all) {
			want = all[item].Item.Target.Host
		}
		equal(t, "host of an item", hosts[i], want)
	}
}

func largeTask(ctx context.Context, t T, s Subject) {
	n := s.rounds(3000, 10_000) // several chunks, and blocks of results
	d := Draft(n)
	d.Lane = procfleet.BigLane(0)
	task := create(ctx, t, s, d)
	var sequences []uint64
	for c := range d.Chunks {
		sequences = append(sequences, uint64(c+1))
	}
	must(t, s.Dispatched(ctx, task.ID, sequences), "dispatched")
	for c := range d.Chunks {
		b := begin(ctx, t, s, task.ID, c)
		equal(t, "open items of a chunk", len(b.Open), len(d.Chunks[c].Items))
		var delivered []int
		for _, i := range b.Open {
			delivered = append(delivered, b.Chunk.First+i)
		}
		must(t, s.Delivered(ctx, task.ID, c, delivered, true), "delivered")
	}
	equal(t, "counters", look(ctx, t, s, task.ID).Counts, counts(n, procfleet.StateDelivered))
	completed := 0
	for part := range slices.Chunk(upTo(n), 500) {
		if record(ctx, t, s, task.ID, succeeded(part...)...).Completed {
			completed++
		}
	}
	equal(t, "completing batches", completed, 1)
	equal(t, "counters", look(ctx, t, s, task.ID).Counts, counts(n, procfleet.StateSucceeded))
	audit(ctx, t, s, task.ID)
}
