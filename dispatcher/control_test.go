package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/internal/bus"
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
	queue *fakeQueue
	hints *recordedHints
	id    procfleet.TaskID
}

func startControlled(t *testing.T, cfg Config) *controlled {
	t.Helper()
	c := &controlled{store: openStore(t), queue: &fakeQueue{}, hints: &recordedHints{}}
	cfg.Hints = c.hints
	c.testServer = startServer(t, cfg, c.store, c.queue)
	c.id = c.submit(nativeBody("0:10.0.0.1"))
	return c
}

func (c *controlled) submit(body string) procfleet.TaskID {
	c.t.Helper()
	made := c.call(http.MethodPost, "/v1/tasks", body)
	id, _ := made.body["id"].(string)
	if id == "" {
		c.t.Fatalf("%d %s", made.status, made.text)
	}
	return procfleet.TaskID(id)
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
	if b, err := c.store.Begin(t.Context(), c.id, 0, 0); err != nil || b.Gate != taskstore.GateHeld {
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
	if b, err := c.store.Begin(t.Context(), c.id, 0, 0); err != nil || b.Gate != taskstore.GateOpen {
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
	b, err := c.store.Begin(t.Context(), c.id, 0, 0)
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

func TestHostsOfATaskAreCanceled(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	records := audited(t, &cfg)
	c := startControlled(t, cfg)
	c.id = c.submit(strings.Replace(nativeBody("0:10.0.0.1"), `"0:10.0.0.1"`, `"0:10.0.0.1", "0:10.0.0.2"`, 1))
	unknown := c.control("cancel", `{"hosts":["0:10.0.0.1","0:10.0.0.9"]}`)
	if unknown.status != http.StatusBadRequest || !strings.Contains(unknown.text, "0:10.0.0.9, on which the task has no item") {
		t.Errorf("unknown host: %d %s", unknown.status, unknown.text)
	}
	canceled := c.control("cancel", `{"mode":"interrupt","reason":"wrong version","hosts":["0:10.0.0.2"],"if_seq":0}`)
	if canceled.status != http.StatusOK || canceled.body["cancel"] != nil || canceled.body["seq"] != 1.0 {
		t.Errorf("cancel: %d %s", canceled.status, canceled.text)
	}
	items, err := c.store.ItemCancels(t.Context(), c.id, 0)
	if err != nil || len(items.Cancels) != 1 || !slices.Equal(items.Cancels[0].Items, []int{1}) || items.Cancels[0].Reason != "wrong version" {
		t.Errorf("cancels %+v, %v", items.Cancels, err)
	}
	rounds := c.queue.rounds()
	if last := rounds[len(rounds)-1]; len(last) != 1 || !last[0].Cancels || last[0].Lane != procfleet.LaneSmall {
		t.Errorf("queued %+v", last)
	}
	c.queue.fail(bus.ErrUnavailable)
	if left := c.control("cancel", `{"hosts":["0:10.0.0.1"]}`); left.status != http.StatusOK {
		t.Errorf("without a queue: %d %s", left.status, left.text)
	}
	if task, err := c.store.Task(t.Context(), c.id); err != nil || task.ItemCancels != 1 || task.Seq != 2 {
		t.Errorf("left to the sweep: %+v, %v", task, err)
	}
	c.queue.fail(nil)
	all := records()
	if last := all[len(all)-2]; last.Change != "cancel task" || last.Hosts != 1 || !slices.Equal(last.Targets, []string{"0:10.0.0.2"}) {
		t.Errorf("audited %+v", last)
	}
}

func TestARetryRepeatsTheItemsInTheseStates(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	c.id = c.submit(strings.Replace(nativeBody("0:10.0.0.1"), `["0:10.0.0.1"]`, `["0:10.0.0.1","0:10.0.0.2","0:10.0.0.3"]`, 1))
	id := string(c.id)
	none := c.control("retry", `{}`)
	if none.status != http.StatusConflict || !strings.Contains(none.text, "no item in the states") {
		t.Errorf("retry of a task without failures: %d %s", none.status, none.text)
	}
	results := []procfleet.Result{
		{Item: 0, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent},
		{Item: 1, Code: procfleet.CodeFailed, Reason: procfleet.ReasonCommandFailed, Rank: procfleet.RankAgent},
		{Item: 2, Code: procfleet.CodeAgentAbnormal, Reason: procfleet.ReasonUnreachable, Rank: procfleet.RankServer},
	}
	if _, err := c.store.Record(t.Context(), []taskstore.Batch{{Task: c.id, Results: results}}); err != nil {
		t.Fatal(err)
	}
	for _, refused := range []struct {
		body, message string
		status        int
	}{
		{`{"states":["succeeded"]}`, "states", http.StatusBadRequest},
		{`{"hosts":["0:10.0.0.1"]}`, "0:10.0.0.1", http.StatusBadRequest},
		{`{"if_seq":3}`, "seq 0", http.StatusConflict},
	} {
		if a := c.control("retry", refused.body); a.status != refused.status || !strings.Contains(a.text, refused.message) {
			t.Errorf("retry %s: %d %s", refused.body, a.status, a.text)
		}
	}
	first := c.control("retry", `{"states":["unreachable"],"if_seq":0}`)
	second := c.control("retry", `{"if_seq":1}`)
	want := map[string]string{"unreachable": "[0:10.0.0.3]", "all": "[0:10.0.0.2 0:10.0.0.3]"}
	var retries []procfleet.TaskID
	for name, a := range map[string]answer{"unreachable": first, "all": second} {
		if a.status != http.StatusOK || a.body["retry_of"] != id {
			t.Fatalf("%s: %d %s", name, a.status, a.text)
		}
		retry := procfleet.TaskID(a.body["id"].(string))
		items, err := c.store.Chunk(t.Context(), retry, 0)
		if err != nil {
			t.Fatal(err)
		}
		var hosts []string
		for _, it := range items {
			hosts = append(hosts, it.Item.Target.Host.String())
		}
		if got := fmt.Sprint(hosts); got != want[name] {
			t.Errorf("%s: items on %s, want %s", name, got, want[name])
		}
		retries = append(retries, retry)
	}
	task, err := c.store.Task(t.Context(), c.id)
	if err != nil || len(task.RetriedBy) != 2 || task.Seq != 2 || !slices.Contains(retries, task.RetriedBy[0]) {
		t.Errorf("retried by %v, seq %d, %v", task.RetriedBy, task.Seq, err)
	}
	if again := c.control("retry", `{"if_seq":1}`); again.status != http.StatusConflict {
		t.Errorf("a repeated request: %d %s", again.status, again.text)
	}
}

func TestThePlanOfARetryNamesNewerTasks(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	kill := func(hosts string) string {
		return `{"action":"kill","process":{"namespace":"ns","name":"web","proc_name":"nginx"},"hosts":[` + hosts + `]}`
	}
	c.id = c.submit(kill(`"0:10.0.0.1","0:10.0.0.2"`))
	failed := procfleet.Result{Code: procfleet.CodeFailed, Reason: procfleet.ReasonCommandFailed, Rank: procfleet.RankAgent}
	second := failed
	second.Item = 1
	if _, err := c.store.Record(t.Context(), []taskstore.Batch{{Task: c.id, Results: []procfleet.Result{failed, second}}}); err != nil {
		t.Fatal(err)
	}
	c.submit(kill(`"0:10.0.0.2"`))
	newest := c.submit(kill(`"0:10.0.0.2"`))
	c.submit(nativeBody("0:10.0.0.1")) // a status changes nothing

	plan := c.control("retry?plan=true", `{}`)
	var p v1.Plan
	if err := json.Unmarshal([]byte(plan.text), &p); err != nil || plan.status != http.StatusOK {
		t.Fatalf("%d %s", plan.status, plan.text)
	}
	newer := map[string]procfleet.TaskID{}
	for _, h := range p.Operations[0].Hosts {
		newer[h.Host.String()] = h.NewerTask
	}
	if want := map[string]procfleet.TaskID{"0:10.0.0.1": "", "0:10.0.0.2": newest}; p.Items != 2 || !maps.Equal(newer, want) {
		t.Errorf("%d items, newer tasks %v, want %v", p.Items, newer, want)
	}
	if !slices.ContainsFunc(p.Problems, func(p v1.PlanProblem) bool { return p.Reason == v1.NewerOperation }) {
		t.Errorf("problems %+v", p.Problems)
	}
	if task, err := c.store.Task(t.Context(), c.id); err != nil || len(task.RetriedBy) != 0 {
		t.Errorf("the plan changed the task: %v, %v", task.RetriedBy, err)
	}
}

func TestTasksAreFoundByHostAndProcess(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	second := c.submit(nativeBody("0:10.0.0.2"))
	for query, want := range map[string][]procfleet.TaskID{
		"host=0:10.0.0.1":                {c.id},
		"host=0:10.0.0.3":                nil,
		"process=web":                    {second, c.id},
		"process=ns:web&host=0:10.0.0.2": {second},
		"process=other":                  nil,
	} {
		a := c.call(http.MethodGet, "/v1/tasks?"+query, "")
		var page v1.TaskPage
		if err := json.Unmarshal([]byte(a.text), &page); err != nil || page.Next != "" {
			t.Fatalf("%s: %d %s", query, a.status, a.text)
		}
		var got []procfleet.TaskID
		for _, task := range page.Tasks {
			got = append(got, task.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
}

// unlinking fails the first link of a retry, as if the dispatcher had died before it.
type unlinking struct {
	Store
	failed atomic.Bool
}

func (s *unlinking) Retried(ctx context.Context, id, retry procfleet.TaskID) (procfleet.Task, error) {
	if s.failed.CompareAndSwap(false, true) {
		return procfleet.Task{}, taskstore.ErrUnavailable
	}
	return s.Store.Retried(ctx, id, retry)
}

func TestARetryThatWasNotLinkedIsFoundByTheNextRequest(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), &unlinking{Store: store}, &fakeQueue{})
	made := d.call(http.MethodPost, "/v1/tasks", nativeBody("0:10.0.0.1"))
	id := procfleet.TaskID(made.body["id"].(string))
	failed := procfleet.Result{Code: procfleet.CodeFailed, Reason: procfleet.ReasonCommandFailed, Rank: procfleet.RankAgent}
	if _, err := store.Record(t.Context(), []taskstore.Batch{{Task: id, Results: []procfleet.Result{failed}}}); err != nil {
		t.Fatal(err)
	}
	path := "/v1/tasks/" + string(id) + "/retry"
	if a := d.call(http.MethodPost, path, `{"if_seq":0}`); a.status != http.StatusServiceUnavailable {
		t.Fatalf("not linked: %d %s", a.status, a.text)
	}
	if a := d.call(http.MethodPost, path, `{"if_seq":0,"states":["unreachable","failed"]}`); a.status != http.StatusConflict {
		t.Errorf("another retry: %d %s", a.status, a.text)
	}
	a := d.call(http.MethodPost, path, `{"if_seq":0}`)
	if a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.text)
	}
	tasks, err := store.Tasks(t.Context(), taskstore.TaskQuery{Limit: 10})
	if err != nil || len(tasks) != 2 || string(tasks[0].ID) != a.body["id"] || tasks[1].RetriedBy[0] != tasks[0].ID {
		t.Errorf("tasks are %+v, %v", tasks, err)
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
