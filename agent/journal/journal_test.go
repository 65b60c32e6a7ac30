package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"pgregory.net/rapid"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
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

// startOp is a start of its own process.
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
	// The first outcome stands.
	other := agentproto.Result{Code: agentproto.CodeFailed, Reason: agentproto.ReasonCommandFailed, Message: "start: no"}
	if err := j.Finish(op.ID, other); err != nil {
		t.Fatal(err)
	}
	if r, _, _ := j.Result(op.ID); r.Code != agentproto.CodeSuccess {
		t.Fatalf("second result replaced the first: %+v", r)
	}
}

// TestUpgradedAgentKeepsTheOutcomeOfAnOperationItReadsDifferently: a later
// agent knows a field of the spec that its predecessor dropped, so that the
// repeat of a command no longer looks like the first one.
func TestUpgradedAgentKeepsTheOutcomeOfAnOperationItReadsDifferently(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	over, open := startOp("t", 0), startOp("t", 1)
	receive(t, j, over, open)
	finish(t, j, over.ID)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j, _ = mustOpen(t, dir)
	log, warned := logtest.NewNullLogger()
	j.log = log
	upgraded := func(op Op) Op {
		op.Spec.Crontab = "0 3 * * *"
		return op
	}
	if v := receive(t, j, upgraded(over), upgraded(open)); !v[0].Known || v[0].Result == nil || v[0].Result.Message != "success" ||
		!v[1].Known || v[1].Result != nil || v[1].Refused != nil {
		t.Fatalf("repeats: %+v", v)
	}
	if n := len(warned.AllEntries()); n != 2 {
		t.Fatalf("%d warnings, want 2", n)
	}
	if e := warned.LastEntry(); e.Data["received_hash"] == e.Data["repeated_hash"] || e.Data["item"] != 1 {
		t.Fatalf("warning has %v", e.Data)
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
	if err := j.Execute(op.ID, Exec{}); !errors.Is(err, errFinished) {
		t.Errorf("Execute after Finish: %v", err)
	}
}

func TestLogIsRotatedAndOldOperationsForgotten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	small := memLimits()
	small.retainOps, small.rotateBytes = 10, 4<<10
	j, _, err := open(dir, osDisk{}, small, quiet())
	if err != nil {
		t.Fatal(err)
	}
	stuck := startOp("stuck", 0)
	receive(t, j, stuck)
	for i := range 200 {
		op := startOp("t", i)
		receive(t, j, op)
		finish(t, j, op.ID)
		if err := j.Acknowledge([]ID{op.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if j.generation < 3 {
		t.Fatalf("only %d generations", j.generation)
	}
	if n := len(j.index.ops); n > 60 {
		t.Errorf("%d operations are in memory, 10 are to be kept", n)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) > 4 {
		t.Errorf("more than two generations are kept: %v", names)
	}
	mustClose(t, j)
	j, r := mustOpen(t, dir)
	if len(r.Open) != 1 || r.Open[0].ID != stuck.ID {
		t.Errorf("open operations: %+v", r.Open)
	}
	if _, _, known := j.Result(ID{"t", 199}); !known {
		t.Error("the newest operation is forgotten")
	}
	if v := receive(t, j, startOp("t", 199)); v[0].Result == nil {
		t.Errorf("repeat after rotation: %+v", v[0])
	}
}

func TestDamagedSnapshotIsReplacedByTheGenerationBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	for i := range 3 {
		receive(t, j, startOp("t", i))
		j.mu.Lock()
		if err := j.rotate(); err != nil {
			t.Fatal(err)
		}
		j.mu.Unlock()
	}
	receive(t, j, startOp("t", 3))
	newest := j.path(snapshotPrefix, j.generation)
	mustClose(t, j)
	data, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(newest, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, r := mustOpen(t, dir); len(r.Open) != 4 {
		t.Fatalf("%d of 4 operations are left", len(r.Open))
	}
}

func TestNewerFormatIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	payload, err := encodeRecord(&record{Group: 1, Head: &head{Format: format + 1, Generation: 1}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "log-000001")
	// Behind the head stands what this program cannot read.
	data := append(appendFrame(nil, payload), "from the future"...)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = Open(dir, quiet())
	if !errors.Is(err, ErrNewerFormat) {
		t.Fatalf("got %v", err)
	}
	if after, err := os.ReadFile(name); err != nil || string(after) != string(data) {
		t.Fatalf("file was changed: %v", err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Fatalf("files were added: %v", names)
	}
}

func TestUnavailableJournalStillAnswersStatus(t *testing.T) {
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

// An agent that follows on the same boot reads the PID from the page cache; on
// another boot the process does not exist.
func TestOnlyTheRecordBeforeTheSpawnIsSynced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	op := startOp("t", 0)
	receive(t, j, op)
	var synced []bool
	j.OnWrite(func(w Write) { synced = append(synced, w.Sync > 0) })
	for _, exec := range []Exec{{BootID: "b"}, {BootID: "b", PID: 7, Start: 8}} {
		if err := j.Execute(op.ID, exec); err != nil {
			t.Fatal(err)
		}
	}
	if want := []bool{true, false}; !slices.Equal(synced, want) {
		t.Errorf("synced %v, want %v", synced, want)
	}
	mustClose(t, j)
	_, recovered := mustOpen(t, dir)
	if open := recovered.Open; len(open) != 1 || open[0].Exec.PID != 7 {
		t.Errorf("recovered %+v, want the PID", open)
	}
}

// TestAPanicInAWriteFailsTheOtherChanges: callers that wait for the same
// commit return with an error instead of hanging or reporting a durable change.
func TestAPanicInAWriteFailsTheOtherChanges(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	j.mu.Lock() // both changes are queued before one of them is written
	var undone atomic.Bool
	panicked, failed := make(chan any, 1), make(chan error, 1)
	go func() {
		defer func() { panicked <- recover() }()
		_ = j.do(&change{stage: func(g *group) error {
			g.onFailure(func() { undone.Store(true) })
			panic("a bug")
		}})
	}()
	queued := func(n int) func() bool {
		return func() bool { j.queueMu.Lock(); defer j.queueMu.Unlock(); return len(j.queue) == n }
	}
	testenv.Eventually(t, time.Minute, queued(1), "the first change is queued")
	go func() { failed <- j.SaveProcess("k", json.RawMessage(`1`)) }()
	testenv.Eventually(t, time.Minute, queued(2), "the second change is queued")
	j.mu.Unlock()
	if got := <-panicked; got != "a bug" {
		t.Errorf("recovered %v", got)
	}
	if err := <-failed; !errors.Is(err, errPanicked) || !undone.Load() {
		t.Errorf("the other change: %v; undone: %v", err, undone.Load())
	}
	if err := j.SaveProcess("k", json.RawMessage(`2`)); err != nil {
		t.Errorf("the next change: %v", err)
	}
	mustClose(t, j)
}

func TestClosedJournalRefuses(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	mustClose(t, j)
	if _, err := j.Receive([]Op{startOp("t", 0)}); err == nil {
		t.Fatal("no error")
	}
}

func BenchmarkReceive(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			j, _ := mustOpen(b, b.TempDir())
			var wg sync.WaitGroup
			b.ResetTimer()
			for c := range callers {
				wg.Go(func() {
					for i := c; i < b.N; i += callers {
						if _, err := j.Receive([]Op{startOp("t", i)}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}
