package dispatcher

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

const twoStages = `{"max_concurrency":2,"ramp":["1","100%"],"max_failures":0,"stage":{"gates":["manual"]}}`

// gradual is a native operation on three hosts with a rollout policy.
func gradual(policy string) string {
	return `{"action":"start","process":{"namespace":"ns","name":"web","proc_name":"web","control":{"start":"./start.sh"},"pid_path":"/run/web.pid"},
		"hosts":["0:10.0.0.1","0:10.0.0.2","0:10.0.0.3"],"rollout":` + policy + `}`
}

func (c *controlled) rollout() (r v1.Rollout) {
	c.t.Helper()
	var task v1.Task
	a := c.call(http.MethodGet, "/v1/tasks/"+string(c.id), "")
	if err := json.Unmarshal([]byte(a.text), &task); err != nil || task.Rollout == nil {
		c.t.Fatalf("%d %s: %v", a.status, a.text, err)
	}
	return *task.Rollout
}

// ended records the results of items, and moves the rollout on.
func (c *controlled) ended(reason procfleet.Reason, items ...int) {
	c.t.Helper()
	b := taskstore.Batch{Task: c.id}
	for _, i := range items {
		b.Results = append(b.Results, procfleet.Result{Item: i, Reason: reason, Rank: procfleet.RankAgent})
	}
	if _, err := c.store.Record(c.t.Context(), []taskstore.Batch{b}); err != nil {
		c.t.Fatal(err)
	}
	c.advance()
}

func (c *controlled) advance() {
	c.t.Helper()
	if _, err := c.store.AdvanceRollout(c.t.Context(), c.id, taskstore.Advance{}); err != nil {
		c.t.Fatal(err)
	}
}

func TestARolloutIsAcceptedAndReleasedByWorkers(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	c.id = c.submit(gradual(twoStages))
	r := c.rollout()
	if r.Window != 2 || r.Hosts != 3 || r.Released != 0 || len(r.Stages) != 2 || r.Stage != 1 || r.MaxFailures == nil || *r.MaxFailures != 0 {
		t.Errorf("a new rollout: %+v", r)
	}
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	last := c.queue.published[len(c.queue.published)-1]
	if len(last) != 1 || last[0] != (bus.ChunkRef{Task: c.id, Lane: procfleet.LaneSmall, Advances: true}) {
		t.Errorf("acceptance published %+v", last)
	}
	if _, total, err := c.store.EntryPage(t.Context(), "ns", 0, 1); err != nil || total > 0 {
		t.Errorf("%d processes are registered before their hosts are released: %v", total, err)
	}
}

func TestAStageIsApprovedByItsNumber(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	c.id = c.submit(gradual(twoStages))
	if a := c.control("approve", `{"stage":1}`); a.status != http.StatusConflict {
		t.Errorf("approved before the end of the stage: %d %s", a.status, a.text)
	}
	c.advance()
	c.ended(procfleet.ReasonSucceeded, 0)
	if r := c.rollout(); r.Hold == nil || r.Hold.Kind != procfleet.HoldApproval {
		t.Fatalf("after the stage: %+v", r)
	}
	for body, status := range map[string]int{
		`{"stage":2}`:             http.StatusConflict,
		`{"stage":1,"if_seq":99}`: http.StatusConflict,
		`{}`:                      http.StatusBadRequest,
	} {
		if a := c.control("approve", body); a.status != status {
			t.Errorf("approve %s: %d %s", body, a.status, a.text)
		}
	}
	if a := c.control("resume", ``); a.status != http.StatusConflict || !strings.Contains(a.text, "approval") {
		t.Errorf("resume: %d %s", a.status, a.text)
	}
	if a := c.control("approve", `{"stage":1}`); a.status != http.StatusOK {
		t.Errorf("approve: %d %s", a.status, a.text)
	}
	if r := c.rollout(); r.Stage != 2 || r.Hold != nil {
		t.Errorf("after the approval: %+v", r)
	}
	if a := c.control("approve", `{"stage":1}`); a.status != http.StatusConflict {
		t.Errorf("approved again: %d %s", a.status, a.text)
	}
}

func TestAHoldOfTheBudgetNeedsAHigherBudget(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	if a := c.control("resume", `{"hold":"budget","max_failures":1}`); a.status != http.StatusConflict {
		t.Errorf("a task without a rollout: %d %s", a.status, a.text)
	}
	c.id = c.submit(gradual(`{"max_concurrency":2,"max_failures":0}`))
	c.advance()
	c.ended(procfleet.ReasonCommandFailed, 0)
	if r := c.rollout(); r.Hold == nil || r.Hold.Kind != procfleet.HoldBudget || r.Failed != 1 || r.Released != 2 {
		t.Fatalf("after a failure: %+v", r)
	}
	if a := c.control("resume", `{"hold":"budget","max_failures":0}`); a.status != http.StatusBadRequest || !strings.Contains(a.text, "max_failures") {
		t.Errorf("resumed with a budget that is used up: %d %s", a.status, a.text)
	}
	if a := c.control("resume", `{"hold":"budget","max_failures":"34%"}`); a.status != http.StatusOK {
		t.Errorf("resume: %d %s", a.status, a.text)
	}
	if r := c.rollout(); r.Hold != nil || *r.MaxFailures != 1 {
		t.Errorf("after resume: %+v", r)
	}
}

func TestAPlanShowsTheStages(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	a := c.call(http.MethodPost, "/v1/tasks?plan=true", gradual(twoStages))
	var p v1.Plan
	if err := json.Unmarshal([]byte(a.text), &p); err != nil || p.Rollout == nil {
		t.Fatalf("%d %s: %v", a.status, a.text, err)
	}
	if p.Rollout.Zones != nil || p.Rollout.Window != 2 || len(p.Rollout.Stages) != 2 || p.Rollout.Stages[1].Hosts != 2 || p.Items != 3 {
		t.Errorf("planned: %+v", p.Rollout)
	}
}
