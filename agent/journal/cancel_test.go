package journal

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet/agentproto"
)

func cancellationOf(op *Op) Cancellation {
	return Cancellation{
		ID: op.ID, Lane: op.Lane, Action: op.Action, Fence: op.Fence, Key: op.Spec.Key,
		Result: agentproto.Result{Item: op.Item, Code: agentproto.CodeFailed, Reason: agentproto.ReasonCancelled, Message: "cancelled"},
	}
}

func cancel(t *testing.T, j *Journal, ops ...Op) (kinds []string) {
	t.Helper()
	var cancellations []Cancellation
	for i := range ops {
		cancellations = append(cancellations, cancellationOf(&ops[i]))
	}
	decisions, err := j.Cancel(cancellations)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range decisions {
		kinds = append(kinds, d.Kind)
		if begun := d.Kind == agentproto.DecisionBegun; begun != (d.Result == nil) {
			t.Errorf("item %d: %s with result %v", ops[i].Item, d.Kind, d.Result)
		}
	}
	return kinds
}

// TestACancelledOperationNeverBegins checks every decision, also after the journal was opened
// again and after a rotation.
func TestACancelledOperationNeverBegins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	waiting, begun, executing, over, unknown := startOp("t", 0), startOp("t", 1), startOp("t", 2), startOp("t", 3), startOp("t", 4)
	receive(t, j, waiting, begun, executing, over)
	if err := errors.Join(j.Begin(begun.ID), j.Begin(executing.ID), j.Execute(executing.ID, Exec{})); err != nil {
		t.Fatal(err)
	}
	finish(t, j, over.ID)
	all := []Op{waiting, begun, executing, over, unknown}
	want := []string{
		agentproto.DecisionDropped, agentproto.DecisionBegun, agentproto.DecisionBegun, agentproto.DecisionOver, agentproto.DecisionTombstoned,
	}
	if diff := cmp.Diff(want, cancel(t, j, all...)); diff != "" {
		t.Fatal(diff)
	}
	check := func(when string, j *Journal) {
		t.Helper()
		for _, op := range []Op{waiting, unknown} {
			if err := j.Begin(op.ID); !errors.Is(err, ErrFinished) {
				t.Errorf("%s: item %d begins: %v", when, op.Item, err)
			}
			if err := j.Execute(op.ID, Exec{}); !errors.Is(err, ErrFinished) {
				t.Errorf("%s: item %d executes: %v", when, op.Item, err)
			}
			a := receive(t, j, op)[0]
			if !a.Known || a.Result == nil || a.Result.Reason != agentproto.ReasonCancelled {
				t.Errorf("%s: a later command of item %d is admitted: %+v", when, op.Item, a)
			}
		}
		if diff := cmp.Diff([]string{agentproto.DecisionOver, agentproto.DecisionOver}, cancel(t, j, waiting, unknown)); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	check("at once", j)
	mustClose(t, j)
	j, recovered := mustOpen(t, dir)
	check("after a restart", j)
	if len(recovered.Unacknowledged) != 2 { // waiting and over; the result of a tombstone is not sent
		t.Errorf("results to send: %+v", recovered.Unacknowledged)
	}
	if err := j.rotate(); err != nil {
		t.Fatal(err)
	}
	check("after a rotation", j)
	mustClose(t, j)
	j, _ = mustOpen(t, dir)
	check("after a rotation and a restart", j)
	// In memory only: a restarted agent has not begun it either.
	if diff := cmp.Diff([]string{agentproto.DecisionDropped}, cancel(t, j, begun)); diff != "" {
		t.Error(diff)
	}
}

// TestACancelProvesNothingForARemovedOperation: an operation whose record was removed may have
// run.
func TestACancelProvesNothingForARemovedOperation(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	op := startOp("t", 0)
	receive(t, j, op)
	finish(t, j, op.ID)
	delete(j.index.ops, op.ID)
	c := cancellationOf(&op)
	decisions, err := j.Cancel([]Cancellation{c})
	if err != nil {
		t.Fatal(err)
	}
	if d := decisions[0]; d.Kind != agentproto.DecisionOver || d.Result.Reason != agentproto.ReasonCommandFailed {
		t.Errorf("%s: %+v", d.Kind, d.Result)
	}
}
