package dispatcher

import (
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// released keeps that the processes of all released hosts had the spec of the task before.
func (c *controlled) released(name string) {
	c.t.Helper()
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.Control.Start = "ns", name, "web", "./old.sh"
	if err := c.store.KeepPrevious(c.t.Context(), c.id, []taskstore.PreviousSpecs{{Specs: []*procfleet.ProcessSpec{&spec}}}); err != nil {
		c.t.Fatal(err)
	}
}

func TestAnOpenRolloutIsCanceledAndUndoneOnce(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	records := audited(t, &cfg)
	c := startControlled(t, cfg)
	if a := c.control("undo", `{}`); a.status != http.StatusConflict || !strings.Contains(a.text, "no rollout") {
		t.Errorf("a task without a rollout: %d %s", a.status, a.text)
	}
	c.id = c.submit(gradual(`{"max_concurrency":1}`))
	c.advance()
	if a := c.control("undo", `{"if_seq":7}`); a.status != http.StatusConflict {
		t.Errorf("another seq: %d %s", a.status, a.text)
	}
	c.released("web")
	made := c.control("undo", `{"speed":"all","reason":"errors"}`)
	undo, _ := made.body["id"].(string)
	if made.status != http.StatusOK || made.body["undo_of"] != string(c.id) || made.body["items"] != 1.0 {
		t.Fatalf("%d %s", made.status, made.text)
	}
	if again := c.control("undo", `{}`); again.body["id"] != undo {
		t.Errorf("again: %d %s", again.status, again.text)
	}
	task, err := c.store.Task(t.Context(), c.id)
	if err != nil || !task.Canceled() || task.Cancel.Reason != "errors" || string(task.UndoneBy) != undo || task.Counts[procfleet.StateCancelled] != 2 {
		t.Errorf("the rollout is %+v: %v", task, err)
	}
	items, err := c.store.Chunk(t.Context(), procfleet.TaskID(undo), 0)
	if err != nil || items[0].Item.Action != procfleet.ActionRestart || items[0].Spec.Control.Start != "./old.sh" {
		t.Errorf("the undo has %+v: %v", items, err)
	}
	found := false
	for _, r := range records() {
		found = found || r.Change == "undo task" && r.Reason == "errors"
	}
	if !found {
		t.Error("the undo is not audited")
	}
}

func TestAnUndoWithoutAnythingToRevertIsRefused(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	c.id = c.submit(gradual(`{"max_concurrency":1}`))
	if a := c.control("undo", `{}`); a.status != http.StatusConflict || !strings.Contains(a.text, "previous spec") {
		t.Errorf("%d %s", a.status, a.text)
	}
	if task, err := c.store.Task(t.Context(), c.id); err != nil || task.Canceled() {
		t.Errorf("the rollout was canceled: %v", err)
	}
}
