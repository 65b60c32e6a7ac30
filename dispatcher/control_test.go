package dispatcher

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// recordedHints records the hints that a dispatcher sends.
type recordedHints struct {
	scriptedHints
	mu   sync.Mutex
	sent []string
}

func (h *recordedHints) Hint(id procfleet.TaskID, _ bool) error { return h.record("hint", id) }
func (h *recordedHints) Hold(id procfleet.TaskID) error         { return h.record("hold", id) }

func (h *recordedHints) record(kind string, id procfleet.TaskID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = append(h.sent, kind+" "+string(id))
	return nil
}

// controlled is a dispatcher with a store that has one dispatched task.
type controlled struct {
	*testServer
	store *stores.Bolt
	hints *recordedHints
	id    procfleet.TaskID
}

func startControlled(t *testing.T, cfg Config) *controlled {
	t.Helper()
	c := &controlled{store: openStore(t), hints: &recordedHints{}}
	cfg.Hints = c.hints
	c.testServer = startServer(t, cfg, c.store, &fakeQueue{})
	made := c.call(http.MethodPost, "/v1/tasks", nativeBody("0:10.0.0.1"))
	id, _ := made.body["id"].(string)
	if c.id = procfleet.TaskID(id); id == "" {
		t.Fatalf("%d %s", made.status, made.text)
	}
	return c
}

func (c *controlled) control(transition, body string) answer {
	c.t.Helper()
	return c.call(http.MethodPost, "/v1/tasks/"+string(c.id)+"/"+transition, body, "Content-Type", "application/json")
}

func TestATaskIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	records := audited(t, &cfg)
	c := startControlled(t, cfg)
	paused := c.control("pause", `{"reason":"maintenance","if_seq":0}`)
	hold, _ := paused.body["hold"].(map[string]any)
	if paused.status != http.StatusOK || paused.body["seq"] != 1.0 || hold["kind"] != "operator" || hold["reason"] != "maintenance" || hold["since"] == nil {
		t.Errorf("pause: %d %s", paused.status, paused.text)
	}
	if b, err := c.store.Begin(t.Context(), c.id, 0); err != nil || b.Gate != taskstore.GateHeld {
		t.Errorf("gate %v, %v", b.Gate, err)
	}
	if shown := c.call(http.MethodGet, "/v1/tasks/"+string(c.id), ""); shown.text != paused.text {
		t.Errorf("shown as %s", shown.text)
	}
	resumed := c.control("resume", "{}")
	if resumed.status != http.StatusOK || resumed.body["seq"] != 2.0 || resumed.body["hold"] != nil {
		t.Errorf("resume: %d %s", resumed.status, resumed.text)
	}
	shard := taskstore.Shard(numberOf(t, c.id))
	if due, err := c.store.Due(t.Context(), shard, 10); err != nil || len(due) != 1 || due[0].Task != c.id {
		t.Errorf("due after resume: %v, %v", due, err)
	}
	id := string(c.id)
	if got, want := strings.Join(c.hints.sent, ", "), "hold "+id+", hint "+id+", hint "+id; got != want {
		t.Errorf("hints %s, want %s", got, want)
	}
	var changes []string
	for _, r := range records() {
		if r.Change != "" {
			changes = append(changes, r.Change+" "+string(r.Task)+" "+r.Reason)
		}
	}
	if got, want := strings.Join(changes, ", "), "pause task "+id+" maintenance, resume task "+id+" "; got != want {
		t.Errorf("audited %q, want %q", got, want)
	}
}

func TestATaskIsCanceled(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	if b, err := c.store.Begin(t.Context(), c.id, 0); err != nil || b.Gate != taskstore.GateOpen {
		t.Fatalf("gate %v, %v", b.Gate, err)
	}
	refused := c.control("cancel", `{"mode":"now"}`)
	if refused.status != http.StatusBadRequest || !strings.Contains(refused.text, "mode") {
		t.Errorf("unknown mode: %d %s", refused.status, refused.text)
	}
	for _, body := range []string{`{"reason":"wrong version","if_seq":0}`, `{"mode":"interrupt","if_seq":1}`} {
		canceled := c.control("cancel", body)
		cancel, _ := canceled.body["cancel"].(map[string]any)
		if canceled.status != http.StatusOK || cancel["mode"] == nil || cancel["since"] == nil {
			t.Errorf("cancel: %d %s", canceled.status, canceled.text)
		}
	}
	b, err := c.store.Begin(t.Context(), c.id, 0)
	if err != nil || b.Gate != taskstore.GateCanceled || b.Task.Cancel.Mode != procfleet.CancelInterrupt {
		t.Errorf("gate %v, %+v, %v", b.Gate, b.Task.Cancel, err)
	}
	shard := taskstore.Shard(numberOf(t, c.id))
	if due, err := c.store.Due(t.Context(), shard, 10); err != nil || len(due) != 1 || due[0].Task != c.id {
		t.Errorf("due after cancel: %v, %v", due, err)
	}
	id := string(c.id)
	if got, want := strings.Join(c.hints.sent, ", "), strings.Repeat("hold "+id+", hint "+id+", ", 2); got+", " != want {
		t.Errorf("hints %s, want %s", got, want)
	}
}

func numberOf(t *testing.T, id procfleet.TaskID) procfleet.Number {
	t.Helper()
	n, err := id.Number()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestControlOfATaskIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	refused := func(transition, body string, status int, message string) {
		t.Helper()
		if a := c.control(transition, body); a.status != status || !strings.Contains(a.text, message) {
			t.Errorf("%s %s: %d %s", transition, body, a.status, a.text)
		}
	}
	refused("pause", `{"if_seq":3}`, http.StatusConflict, "is 3, but the task has seq 0")
	refused("pause", `{"if_seq":-1}`, http.StatusBadRequest, "if_seq")
	refused("pause", `{"reason":"`+strings.Repeat("x", procfleet.MaxHoldReason+1)+`"}`, http.StatusBadRequest, "reason")
	refused("pause", `[]`, http.StatusBadRequest, "not a JSON object")
	if _, err := c.store.Record(t.Context(), []taskstore.Batch{{Task: c.id, Results: []procfleet.Result{{Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent}}}}); err != nil {
		t.Fatal(err)
	}
	refused("pause", `{}`, http.StatusConflict, "the task is finished: only an open task can be controlled")
	refused("resume", `{}`, http.StatusConflict, "the task is finished")
	c.id = "GSETASK:20200101000000:1"
	refused("resume", `{}`, http.StatusNotFound, "no such task")
}
