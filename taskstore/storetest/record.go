package storetest

import (
	"context"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func recordChecks() []Check {
	return []Check{
		{Name: "a higher rank replaces a lower one once", Fn: rankReplaces},
		{Name: "a repeat changes nothing", Fn: repeatChangesNothing},
		{Name: "simultaneous repeats count once", Fn: simultaneousResults, Heavy: true},
		{Name: "one caller completes", Fn: oneCompletes, Heavy: true},
		{Name: "a late result does not complete again", Fn: lateDoesNotComplete},
		{Name: "counters add up at every moment", Fn: countersAlwaysAddUp, Heavy: true},
		{Name: "batches are answered one by one", Fn: batchesAnswered},
		{Name: "results of items that the task does not have are ignored", Fn: strangersIgnored},
		{Name: "a result is kept whole", Fn: resultKeptWhole},
		{Name: "huge content is cut", Fn: hugeContentCut, Heavy: true},
	}
}

// one returns item 0 of a task, read from its chunk.
func one(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) procfleet.ItemResult {
	t.Helper()
	all, err := s.Chunk(ctx, id, 0)
	must(t, err, "read chunk")
	if len(all) == 0 {
		t.Fatalf("chunk 0 of %s is empty", id)
	}
	return all[0]
}

func rankReplaces(ctx context.Context, t T, s Subject) {
	ok, broken := agentResult(0, procfleet.ReasonSucceeded), agentResult(0, procfleet.ReasonCommandFailed)
	unreachable, timedOut := serverResult(0, procfleet.ReasonUnreachable), serverResult(0, procfleet.ReasonTimedOut)
	serversFailed := serverResult(0, procfleet.ReasonRefused)
	cancelled := serverResult(0, procfleet.ReasonCancelled)
	none := agentResult(0, procfleet.ReasonSucceeded)
	none.Rank = procfleet.RankNone
	for name, steps := range map[string][]struct {
		result        procfleet.Result
		applied, late bool
	}{
		"agent keeps against all":             {{ok, true, false}, {broken, false, false}, {unreachable, false, false}, {ok, false, false}},
		"server keeps against server":         {{unreachable, true, false}, {timedOut, false, false}, {unreachable, false, false}},
		"agent replaces server once":          {{timedOut, true, false}, {ok, true, true}, {broken, false, true}, {unreachable, false, true}},
		"agent replaces the server's failed":  {{serversFailed, true, false}, {broken, true, true}, {ok, false, true}},
		"nothing replaces cancelled":          {{cancelled, true, false}, {ok, false, false}, {unreachable, false, false}},
		"what has no rank or reason is none":  {{none, false, false}, {procfleet.Result{Rank: procfleet.RankAgent}, false, false}, {broken, true, false}},
		"agent's failed is not the server's ": {{broken, true, false}, {ok, false, false}, {serversFailed, false, false}},
	} {
		task := create(ctx, t, s, Draft(1))
		must(t, s.Delivered(ctx, task.ID, 0, []int{0}, false), "delivered")
		var want procfleet.Result
		for i, step := range steps {
			if step.applied {
				want = step.result
				want.Late = step.late
			}
			if got := record(ctx, t, s, task.ID, step.result).Applied; (got == 1) != step.applied {
				t.Errorf("%s: step %d: applied %d, want %v", name, i, got, step.applied)
			}
			it := one(ctx, t, s, task.ID)
			equal(t, name+": result", it.Result, want)
			if want.Reason != "" {
				equal(t, name+": state", it.State, want.State())
			}
			audit(ctx, t, s, task.ID)
		}
	}
}

func repeatChangesNothing(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(4))
	rs := []procfleet.Result{
		agentResult(0, procfleet.ReasonSucceeded), agentResult(1, procfleet.ReasonNotRunning),
		serverResult(2, procfleet.ReasonTimedOut), agentResult(3, procfleet.ReasonCheckFailed),
	}
	equal(t, "first record", record(ctx, t, s, task.ID, rs...), taskstore.Recorded{Known: true, Applied: 4, Completed: true})
	wantTask, wantItems := look(ctx, t, s, task.ID), items(ctx, t, s, task)
	for range 3 {
		equal(t, "repeated record", record(ctx, t, s, task.ID, rs...), taskstore.Recorded{Known: true})
	}
	equal(t, "task", look(ctx, t, s, task.ID), wantTask)
	equalItems(t, "items", items(ctx, t, s, task), wantItems)
	other := create(ctx, t, s, Draft(2))
	equal(t, "a batch that repeats itself", record(ctx, t, s, other.ID, append(succeeded(0), rs[0], rs[0])...), taskstore.Recorded{Known: true, Applied: 1})
	audit(ctx, t, s, other.ID)
}

func simultaneousResults(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(10))
	var applied, completed atomic.Int32
	together(50, func(i int) {
		out, err := s.Record(ctx, []taskstore.Batch{{Task: task.ID, Results: succeeded(upTo(10)...)}})
		if err != nil || len(out) != 1 {
			t.Errorf("record: %v, %v", out, err)
			return
		}
		applied.Add(int32(out[0].Applied))
		if out[0].Completed {
			completed.Add(1)
		}
	})
	if applied.Load() != 10 || completed.Load() != 1 {
		t.Errorf("10 results were applied %d times, and %d callers completed", applied.Load(), completed.Load())
	}
	audit(ctx, t, s, task.ID)
}

func oneCompletes(ctx context.Context, t T, s Subject) {
	const callers = 50
	task := create(ctx, t, s, Draft(callers))
	var completed atomic.Int32
	together(callers, func(i int) {
		out, err := s.Record(ctx, []taskstore.Batch{{Task: task.ID, Results: succeeded(i, (i+1)%callers)}})
		if err != nil || len(out) != 1 {
			t.Errorf("record: %v, %v", out, err)
			return
		}
		if out[0].Completed {
			completed.Add(1)
		}
	})
	if n := completed.Load(); n != 1 {
		t.Errorf("%d callers completed the task", n)
	}
	got := look(ctx, t, s, task.ID)
	if got.State != procfleet.TaskFinished || !got.NotifyPending || got.FinishedAt.Before(got.CreatedAt) {
		t.Errorf("the complete task is %+v", got)
	}
	audit(ctx, t, s, task.ID)
}

func lateDoesNotComplete(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	begin(ctx, t, s, task.ID, 0)
	if record(ctx, t, s, task.ID, serverResult(0, procfleet.ReasonTimedOut)).Completed {
		t.Errorf("half of the results complete the task")
	}
	running := look(ctx, t, s, task.ID)
	if running.NotifyPending || !running.FinishedAt.IsZero() || running.State != procfleet.TaskRunning {
		t.Errorf("the half task is %+v", running)
	}
	equal(t, "last result", record(ctx, t, s, task.ID, succeeded(1)...), taskstore.Recorded{Known: true, Applied: 1, Completed: true})
	finished := look(ctx, t, s, task.ID)
	for range 2 {
		must(t, s.Notified(ctx, task.ID), "notified")
	}
	equal(t, "late result", record(ctx, t, s, task.ID, succeeded(0)...), taskstore.Recorded{Known: true, Applied: 1})
	got := look(ctx, t, s, task.ID)
	if got.NotifyPending || !got.FinishedAt.Equal(finished.FinishedAt) || got.State != procfleet.TaskFinished {
		t.Errorf("after a late result the task is %+v", got)
	}
	equal(t, "counters", got.Counts, counts(2, procfleet.StateSucceeded))
	audit(ctx, t, s, task.ID)
}

// countersAlwaysAddUp runs several writers on the same items while a reader polls: look
// and list check on every read that the counters sum up to the number of items.
func countersAlwaysAddUp(ctx context.Context, t T, s Subject) {
	n := s.rounds(300, 600) // two chunks, or three
	task := create(ctx, t, s, Draft(n))
	writers, cancel := context.WithCancel(ctx)
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		for writers.Err() == nil {
			got, err := s.Task(ctx, task.ID)
			if err != nil {
				t.Errorf("poll: %v", err)
				return
			}
			sound(t, got)
			if (got.State == procfleet.TaskFinished) != (got.Counts.Open() == 0) {
				t.Errorf("task is %s with %d open items", got.State, got.Counts.Open())
			}
		}
	}()
	together(6, func(w int) {
		for at := 0; at < n; at += 10 {
			if err := moveSome(ctx, s, task.ID, w, at); err != nil {
				t.Errorf("write: %v", err)
			}
		}
	})
	record(ctx, t, s, task.ID, succeeded(upTo(n)...)...)
	cancel()
	<-polled
	equal(t, "counters", look(ctx, t, s, task.ID).Counts, counts(n, procfleet.StateSucceeded))
	audit(ctx, t, s, task.ID)
}

// moveSome changes some of the ten items from index at on; the kind of change depends on
// the writer number w.
func moveSome(ctx context.Context, s taskstore.Store, id procfleet.TaskID, w, at int) error {
	some := upTo(at + 10)[at:]
	b := taskstore.Batch{Task: id}
	switch w % 3 {
	case 0:
		return s.Delivered(ctx, id, at/procfleet.ChunkItems, some, false)
	case 1:
		b.Results = succeeded(some[w:]...)
	default:
		b.Results = []procfleet.Result{serverResult(some[0], procfleet.ReasonTimedOut), serverResult(some[7], procfleet.ReasonUnreachable)}
	}
	_, err := s.Record(ctx, []taskstore.Batch{b})
	return err
}

func batchesAnswered(ctx context.Context, t T, s Subject) {
	a, b, c := create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(300)), create(ctx, t, s, Draft(2))
	reject(ctx, t, s, c.ID, "full")
	out, err := s.Record(ctx, []taskstore.Batch{
		{Task: b.ID, Results: succeeded(0, 299)},
		{Task: "GSETASK:20240229120000:5", Results: succeeded(0)},
		{Task: a.ID, Results: succeeded(0)},
		{Task: b.ID, Results: succeeded(299, 298)},
		{Task: c.ID, Results: succeeded(0)},
		{Task: b.ID},
	})
	must(t, err, "record")
	for i := range out {
		if i == 4 { // for a rejected task Known may be true or false
			out[i].Known = true
		}
	}
	equal(t, "answers", out, []taskstore.Recorded{
		{Known: true, Applied: 2}, {}, {Known: true, Applied: 1, Completed: true}, {Known: true, Applied: 1}, {Known: true}, {Known: true},
	})
	for _, task := range []procfleet.Task{a, b, c} {
		audit(ctx, t, s, task.ID)
	}
	out, err = s.Record(ctx, nil)
	if err != nil || len(out) != 0 {
		t.Errorf("record of nothing: %v, %v", out, err)
	}
}

func strangersIgnored(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(3))
	equal(t, "record", record(ctx, t, s, task.ID, succeeded(-1, 3, 4, 1<<30)...), taskstore.Recorded{Known: true})
	equal(t, "counters", look(ctx, t, s, task.ID).Counts, counts(3, procfleet.StatePending))
	equal(t, "record", record(ctx, t, s, task.ID, succeeded(3, 2)...), taskstore.Recorded{Known: true, Applied: 1})
	audit(ctx, t, s, task.ID)
}

func resultKeptWhole(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	at := time.Date(2026, 7, 1, 12, 30, 15, 123456000, time.UTC)
	want := agentResult(0, procfleet.ReasonCheckFailed)
	want.Code, want.Warnings = procfleet.CodeCheckFailed, []string{"limits are not enforced", "größer"}
	want.AcceptedAt, want.StartedAt, want.FinishedAt = at, at.Add(time.Second), at.Add(time.Minute)
	want.Status = &procfleet.ProcessStatus{
		At: at, UTCOffset: 28800, Running: true, Supervised: true, Phase: "running", AgentID: "a-1", PID: 4711,
		Command: "/usr/bin/web --port 80", Stat: "S", Threads: 12, StartedAt: at.Add(-time.Hour), ElapsedMS: 3600_000,
		UserMS: 17, SystemMS: 4, CPU: 0.25, CPUAverage: 0.125, MemoryBytes: 1 << 33, MemoryPercent: 50.5, HostFreeKB: 1 << 21,
		Version: "1.2.3", Health: "ok", RegisteredAt: at, LastStartedAt: at, Failures: 2, NextRetryAt: at.Add(time.Hour), Evidence: "pid file",
		PIDs: []int{4711, 4712}, Instances: 2, TreeCPU: 1.75, TreeMemoryBytes: 1 << 34, NextRunAt: at.Add(2 * time.Hour),
		FrozenUntil: at.Add(3 * time.Hour), Restarts: 7, LastExit: &procfleet.LastExit{At: at, Known: true, Code: 9, Signal: "SIGKILL", Why: "limit"},
	}
	record(ctx, t, s, task.ID, want)
	equal(t, "result in the chunk", one(ctx, t, s, task.ID).Result, want)
	page := pages(ctx, t, s, task.ID, taskstore.ResultQuery{Limit: 10})
	if len(page) == 1 {
		equal(t, "result on the page", page[0].Result, want)
	}
	audit(ctx, t, s, task.ID)
}

func hugeContentCut(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	huge := agentResult(0, procfleet.ReasonCommandFailed)
	huge.Message = "x" + strings.Repeat("é", 1<<20) + "\xff"
	huge.Warnings = []string{strings.Repeat("w", 1<<20), "bad \xff byte"}
	huge.Status = &procfleet.ProcessStatus{Command: strings.Repeat("c\xff", 1<<20), PID: 4711}
	small := agentResult(1, procfleet.ReasonCommandFailed)
	small.Message = "not \xff valid"
	equal(t, "applied", record(ctx, t, s, task.ID, huge, small).Applied, 2)

	all := items(ctx, t, s, task)
	got := all[0].Result
	total := len(got.Message) + len(strings.Join(got.Warnings, "")) + len(got.Status.Command)
	if len(got.Message) > procfleet.MaxMessage || total > procfleet.MaxResult || len(got.Message) < procfleet.MaxMessage-utf8.UTFMax {
		t.Fatalf("message of %d bytes, content of %d", len(got.Message), total)
	}
	for _, text := range []string{got.Message, got.Status.Command, strings.Join(got.Warnings, ""), all[1].Result.Message} {
		if !utf8.ValidString(text) {
			t.Errorf("stored text is not valid UTF-8")
		}
	}
	equal(t, "pid beside the cut text", got.Status.PID, 4711)
	if !strings.HasPrefix(all[1].Result.Message, "not ") {
		t.Errorf("cleaned message is %q", all[1].Result.Message)
	}
	audit(ctx, t, s, task.ID)
}
