package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"pgregory.net/rapid"

	"github.com/procfleet/procfleet/agentproto"
)

func quiet() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

func mustOpen(tb testing.TB, dir string) (*Journal, Recovered) {
	tb.Helper()
	j, r, err := Open(dir, quiet())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { mustClose(tb, j) })
	return j, r
}

func mustClose(tb rapid.TB, j *Journal) {
	tb.Helper()
	if err := j.Close(); err != nil {
		tb.Error(err)
	}
}

// startOp returns a start of a process of its own.
func startOp(task string, item int) Op {
	return Op{
		ID: ID{Task: task, Item: item}, Lane: "s", Fence: 1, Action: agentproto.ActionStart,
		Spec:       agentproto.Spec{Key: fmt.Sprintf("%s/%d", task, item), ProcName: "sleep", StartCmd: "sleep 1 &"},
		AcceptedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Trace: "00-ab-cd-01",
	}
}

func success(item int) agentproto.Result {
	return agentproto.Result{Item: item, Reason: agentproto.ReasonSucceeded, Message: "success"}
}

func receive(tb rapid.TB, j *Journal, ops ...Op) []Admission {
	tb.Helper()
	v, err := j.Receive(ops)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func finish(tb rapid.TB, j *Journal, id ID) {
	tb.Helper()
	if err := j.Finish(id, success(id.Item)); err != nil {
		tb.Fatal(err)
	}
}

func TestOperationIsRememberedThroughAllItsSteps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, r := mustOpen(t, dir)
	if len(r.Open)+len(r.Unacknowledged)+len(r.Processes) != 0 {
		t.Fatalf("a new journal holds %+v", r)
	}
	ops := []Op{startOp("t", 0), startOp("t", 1), startOp("t", 2), startOp("t", 3)}
	receive(t, j, ops...)
	exec := Exec{BootID: "b", At: ops[0].AcceptedAt, PID: 42, Start: 99, Before: json.RawMessage(`{"pid":7}`)}
	for _, id := range []ID{ops[1].ID, ops[2].ID} {
		if err := j.Execute(id, exec); err != nil {
			t.Fatal(err)
		}
	}
	finish(t, j, ops[2].ID)
	finish(t, j, ops[3].ID)
	if err := j.Acknowledge([]ID{ops[3].ID}); err != nil {
		t.Fatal(err)
	}
	for key, state := range map[string]string{"kept": `{"up":true}`, "gone": `{"up":false}`} {
		if err := j.SaveProcess(key, json.RawMessage(state)); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.SaveProcess("gone", nil); err != nil {
		t.Fatal(err)
	}

	want := Recovered{
		Open:           []OpenOp{{Op: ops[0]}, {Op: ops[1], Executing: true, Exec: exec}},
		Unacknowledged: []FinishedOp{{ID: ops[2].ID, Lane: "s", Trace: ops[2].Trace}},
		Processes:      map[string]json.RawMessage{"kept": json.RawMessage(`{"up":true}`)},
	}
	for _, rotated := range []bool{false, true} {
		if rotated {
			j.mu.Lock()
			if err := j.rotate(); err != nil {
				t.Fatal(err)
			}
			j.mu.Unlock()
		}
		mustClose(t, j)
		var got Recovered
		j, got = mustOpen(t, dir)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("recovered, rotated %v (-want +got):\n%s", rotated, diff)
		}
		if r, open, known := j.Result(ops[3].ID); !known || open || r.Message != "success" {
			t.Fatalf("acknowledged result is lost: %+v open %v known %v", r, open, known)
		}
		results := j.Results([]ID{ops[0].ID, ops[2].ID, ops[3].ID, {"t", 99}})
		if len(results) != 2 || results[ops[2].ID].Message != "success" || results[ops[3].ID].Message != "success" {
			t.Fatalf("results of the finished operations are %+v", results)
		}
	}
}

func TestRepeatIsAnsweredWithWhatIsKnown(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	op := startOp("t", 0)
	if v := receive(t, j, op); v[0] != (Admission{}) {
		t.Fatalf("first: %+v", v[0])
	}
	if v := receive(t, j, op); !v[0].Known || v[0].Result != nil {
		t.Fatalf("while open: %+v", v[0])
	}
	finish(t, j, op.ID)
	if err := j.Acknowledge([]ID{op.ID}); err != nil {
		t.Fatal(err)
	}
	if v := receive(t, j, op); v[0].Result == nil || v[0].Result.Message != "success" {
		t.Fatalf("when over: %+v", v[0])
	}
	other := op
	other.Spec.Crontab = "0 3 * * *"
	if v := receive(t, j, other); v[0].Result == nil || v[0].Result.Message != "success" {
		t.Fatalf("with another spec: %+v", v[0])
	}
	// The first outcome remains.
	second := agentproto.Result{Code: agentproto.CodeFailed, Reason: agentproto.ReasonCommandFailed, Message: "start: no"}
	if err := j.Finish(op.ID, second); err != nil {
		t.Fatal(err)
	}
	if r, _, _ := j.Result(op.ID); r.Code != agentproto.CodeSuccess {
		t.Fatalf("second result replaced the first: %+v", r)
	}
}

func TestAnotherOperationUnderAKnownIdentityIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	op := startOp("t", 0)
	receive(t, j, op)
	stop, later := op, op
	stop.Action = agentproto.ActionStop
	later.Fence++
	for _, when := range []string{"while open", "when over", "after a restart"} {
		if v := receive(t, j, stop, later); v[0].Refused == nil || v[1].Refused == nil || !strings.Contains(v[0].Refused.Message, "id reused") {
			t.Fatalf("%s: %+v", when, v)
		}
		finish(t, j, op.ID)
		if when == "when over" {
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			j, _ = mustOpen(t, dir)
		}
	}
}

func TestConcurrentRepeatsAreAcceptedOnce(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	var wg sync.WaitGroup
	fresh := make(chan struct{}, 100)
	for range 100 {
		wg.Go(func() {
			v, err := j.Receive([]Op{startOp("t", 0)})
			if err != nil {
				t.Error(err)
				return
			}
			if v[0] == (Admission{}) {
				fresh <- struct{}{}
			}
		})
	}
	wg.Wait()
	if n := len(fresh); n != 1 {
		t.Fatalf("%d of 100 were told to run it", n)
	}
}

func TestFenceOrdersCommandsOfOneProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	command := func(task string, fence int64, item int, action string) Op {
		op := startOp(task, item)
		op.Fence, op.Action, op.Spec.Key = fence, action, "one"
		return op
	}
	receive(t, j, command("new", 20, 1, agentproto.ActionStart))
	for _, reopened := range []bool{false, true} {
		if reopened {
			mustClose(t, j)
			j, _ = mustOpen(t, dir)
		}
		v := receive(t, j,
			command("old", 10, 0, agentproto.ActionStop),
			command("new", 20, 0, agentproto.ActionStop),
			command(fmt.Sprint("look", reopened), 10, 0, agentproto.ActionStatus))
		for i, refused := range []bool{true, true, false} {
			if got := v[i].Refused != nil; got != refused {
				t.Errorf("reopened %v, operation %d: refused %v, want %v", reopened, i, got, refused)
			}
		}
		if m := v[0].Refused.Message; m != "stop: superseded by a later command for this process" {
			t.Errorf("message %q", m)
		}
		if got := v[0].Refused.Refusal; got != agentproto.RefusalSuperseded {
			t.Errorf("refusal %q", got)
		}
	}
	if v := receive(t, j, command("next", 20, 2, agentproto.ActionStop)); v[0].Refused != nil {
		t.Errorf("a later item of the same task is refused: %+v", v[0].Refused)
	}
	if v := receive(t, j, startOp("other", 0)); v[0].Refused != nil {
		t.Errorf("fences of different processes mix: %+v", v[0].Refused)
	}
}

func TestStepsOfUnknownOperationsAreErrors(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	if err := j.Execute(ID{"nobody", 0}, Exec{}); err == nil {
		t.Error("Execute")
	}
	if err := j.Finish(ID{"nobody", 0}, success(0)); err == nil {
		t.Error("Finish")
	}
	if _, _, known := j.Result(ID{"nobody", 0}); known {
		t.Error("Result")
	}
	op := startOp("t", 0)
	receive(t, j, op)
	finish(t, j, op.ID)
	if err := j.Execute(op.ID, Exec{}); !errors.Is(err, ErrFinished) {
		t.Errorf("Execute after Finish: %v", err)
	}
}

func testUnavailableJournalStillAnswersStatus(t *testing.T) {
	t.Parallel()
	j := Unavailable(ErrDamaged, quiet())
	look := startOp("t", 1)
	look.Action = agentproto.ActionStatus
	v := receive(t, j, startOp("t", 0), look)
	if v[0].Refused == nil || v[0].Refused.Code != agentproto.CodeAgentAbnormal {
		t.Errorf("start: %+v", v[0])
	}
	if v[1] != (Admission{}) {
		t.Fatalf("status: %+v", v[1])
	}
	finish(t, j, look.ID)
	if v := receive(t, j, look); v[0].Result == nil {
		t.Errorf("repeated status: %+v", v[0])
	}
	if err := j.SaveProcess("k", json.RawMessage(`1`)); err == nil {
		t.Error("a process was saved nowhere")
	}
	if err := j.Acknowledge([]ID{look.ID}); err == nil {
		t.Error("Acknowledge should report the disk")
	}
	if len(j.index.ops) != 0 {
		t.Errorf("%d operations stay in memory", len(j.index.ops))
	}
}
