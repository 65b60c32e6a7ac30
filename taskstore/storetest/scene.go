package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Draft returns a draft with n items in chunks of [procfleet.ChunkItems]. The hosts are
// in cloud area 3, with consecutive addresses from 10.0.0.0 on.
func Draft(n int) taskstore.Draft {
	d := taskstore.Draft{
		Lane:        procfleet.LaneSmall,
		Timeout:     time.Hour,
		Retention:   24 * time.Hour,
		Actions:     []procfleet.Action{procfleet.ActionStart},
		Dialect:     "native",
		Application: "shop",
		Business:    "2",
		Callback:    "http://127.0.0.1/told",
		Origin:      procfleet.Origin{User: "admin", Address: "192.0.2.7", Request: "4bf92f3577b34da6a3ce929d0e0e4736"},
		Trace:       "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	for first := 0; first < n; first += procfleet.ChunkItems {
		d.Chunks = append(d.Chunks, chunk(first, min(procfleet.ChunkItems, n-first)))
	}
	return d
}

func chunk(first, n int) procfleet.Chunk {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName = "shop", "web", "web"
	spec.Labels = map[string]json.RawMessage{"tier": json.RawMessage(`"front"`)}
	other := spec
	other.Name = "cache"
	c := procfleet.Chunk{Cloud: 3, First: first, Specs: []procfleet.ProcessSpec{spec, other}}
	for i := range n {
		at := first + i
		c.Items = append(c.Items, procfleet.Item{
			Action: procfleet.ActionStart,
			Spec:   at % 2,
			Target: procfleet.Target{Host: host(3, at), AgentID: fmt.Sprintf("agent-%d", at)},
		})
	}
	return c
}

func host(cloud procfleet.CloudArea, n int) procfleet.Host {
	addr := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
	return procfleet.Host{Cloud: cloud, Addr: addr}
}

// agentResult returns a result of an item with the rank of agents.
func agentResult(item int, reason procfleet.Reason) procfleet.Result {
	code := procfleet.CodeFailed
	if reason == procfleet.ReasonSucceeded {
		code = procfleet.CodeSuccess
	}
	return procfleet.Result{Item: item, Code: code, Reason: reason, Rank: procfleet.RankAgent, Message: "agent: " + string(reason)}
}

// serverResult returns a result of an item with the rank of servers, which record it if
// no agent sent a result.
func serverResult(item int, reason procfleet.Reason) procfleet.Result {
	return procfleet.Result{Item: item, Code: procfleet.CodeAgentAbnormal, Reason: reason, Rank: procfleet.RankServer, Message: "server: " + string(reason)}
}

func succeeded(items ...int) []procfleet.Result {
	var rs []procfleet.Result
	for _, i := range items {
		rs = append(rs, agentResult(i, procfleet.ReasonSucceeded))
	}
	return rs
}

// upTo returns the integers from 0 to n-1.
func upTo(n int) []int {
	items := make([]int, n)
	for i := range items {
		items[i] = i
	}
	return items
}

func must(t T, err error, doing string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", doing, err)
	}
}

// equal reports whether got equals want, and fails the check if not. Nil and empty slices
// and maps are equal.
func equal(t T, what string, got, want any) bool {
	t.Helper()
	if reflect.DeepEqual(got, want) { // fast path: cmp.Diff is much slower
		return true
	}
	diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(procfleet.Host{}))
	if diff != "" {
		t.Errorf("%s is not as it should be (-want +got):\n%s", what, diff)
	}
	return diff == ""
}

func create(ctx context.Context, t T, s taskstore.Store, d taskstore.Draft) procfleet.Task {
	t.Helper()
	task, created, err := s.Create(ctx, d)
	must(t, err, "create")
	if !created {
		t.Fatalf("create found task %s, want a new one", task.ID)
	}
	sound(t, task)
	return task
}

// look reads a task and checks that its counters sum up to the number of items.
func look(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) procfleet.Task {
	t.Helper()
	task, err := s.Task(ctx, id)
	must(t, err, "read task")
	sound(t, task)
	return task
}

func sound(t T, task procfleet.Task) {
	t.Helper()
	if task.Counts.Total() != task.Items || len(task.Counts) != len(procfleet.States()) {
		t.Errorf("counters %v of %s do not add up to its %d items, one entry per state", task.Counts, task.ID, task.Items)
	}
	for state, n := range task.Counts {
		if n < 0 {
			t.Errorf("counter %s of %s is %d", state, task.ID, n)
		}
	}
}

func record(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, rs ...procfleet.Result) taskstore.Recorded {
	t.Helper()
	out, err := s.Record(ctx, []taskstore.Batch{{Task: id, Results: rs}})
	must(t, err, "record")
	if len(out) != 1 {
		t.Fatalf("record of one batch has %d answers", len(out))
	}
	return out[0]
}

func begin(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, chunk int) taskstore.Begun {
	t.Helper()
	b, err := s.Begin(ctx, id, chunk, 0)
	must(t, err, "begin")
	if b.Now.IsZero() {
		t.Errorf("begin does not say when it was")
	}
	if b.Gate != taskstore.GateOpen && b.Gate != taskstore.GateCanceled {
		equal(t, "what is behind a gate that is not open", b, taskstore.Begun{Gate: b.Gate, Now: b.Now})
	}
	return b
}

// items returns all items of a task, read chunk by chunk.
func items(ctx context.Context, t T, s taskstore.Store, task procfleet.Task) []procfleet.ItemResult {
	t.Helper()
	var all []procfleet.ItemResult
	for c := range task.Chunks {
		some, err := s.Chunk(ctx, task.ID, c)
		must(t, err, "read chunk")
		all = append(all, some...)
	}
	return all
}

// pages returns the items of all pages of a query.
func pages(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, q taskstore.ResultQuery) []procfleet.ItemResult {
	t.Helper()
	var all []procfleet.ItemResult
	for {
		page, next, err := s.Results(ctx, id, q)
		must(t, err, "read results")
		if len(page) > q.Limit {
			t.Fatalf("a page of at most %d has %d items", q.Limit, len(page))
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		if len(page) == 0 {
			t.Fatalf("an empty page says that another follows (%q)", next)
		}
		q.Cursor = next
	}
}

// equalItems is [equal] for many items; it reports only the first different item.
func equalItems(t T, what string, got, want []procfleet.ItemResult) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d items, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !equal(t, what, got[i], want[i]) {
			return
		}
	}
}

// audit checks that the counters, the chunks and the result pages of a task agree.
func audit(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) {
	t.Helper()
	task := look(ctx, t, s, id)
	counts := procfleet.Counts{}
	for _, state := range procfleet.States() {
		counts[state] = 0
	}
	byIndex := map[int]procfleet.ItemResult{}
	for i, it := range items(ctx, t, s, task) {
		if it.Index != i {
			t.Fatalf("item %d of %s stands where %d belongs", it.Index, id, i)
		}
		if it.State.Final() != (it.Result.Reason != "") || it.State != it.Result.State() && it.State.Final() {
			t.Errorf("item %d of %s is %s with a result of reason %q", i, id, it.State, it.Result.Reason)
		}
		counts[it.State]++
		byIndex[i] = it
	}
	equal(t, "sum of the items' states", counts, task.Counts)
	if task.State == procfleet.TaskFinished && task.Counts.Open() > 0 {
		t.Errorf("task %s is finished with %d open items", id, task.Counts.Open())
	}
	for _, it := range pages(ctx, t, s, id, taskstore.ResultQuery{Limit: 1000}) {
		equalItems(t, "page", []procfleet.ItemResult{it}, []procfleet.ItemResult{byIndex[it.Index]})
		delete(byIndex, it.Index)
	}
	if len(byIndex) > 0 {
		t.Errorf("%d items of %s are on no page", len(byIndex), id)
	}
}

// together runs fn n times concurrently and waits for all calls. fn must not end its
// goroutine: call Errorf and return instead of Fatalf.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			fn(i)
		})
	}
	close(start)
	wg.Wait()
}

// rounds returns how often a check repeats random or simultaneous calls.
func (s Subject) rounds(everyday, long int) int {
	if s.long {
		return long
	}
	return everyday
}

// pass advances the store's clock by d if the harness can move the clock, or else waits up
// to d, and then waits until cond is true.
func (s Subject) pass(ctx context.Context, t T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	wait := d + s.patience
	if s.Advance != nil {
		s.Advance(d)
		wait = s.patience
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("still not so %v later: %s", d, what)
		case <-tick.C:
		}
	}
}
