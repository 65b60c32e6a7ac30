package dispatcher

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// TestAQueueMakesARollout submits queues with and without a policy. The task lives until the operations
// that are delivered at the end of the queue have ended.
func TestAQueueMakesARollout(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	d.setPolicies("2", `{"policies":[{"name":"careful","rollout":{"max":1,"queue":{"for":"3h"},"deadline":"1h"}}],"default":"careful","required_above":9}`)
	for what, c := range map[string]struct {
		members string
		header  []string
		window  int
		queue   time.Duration
	}{
		"no queue":                     {members: ``},
		"a queue":                      {members: `,"queue":{"for":"2h","coalesce":true}`, window: 3, queue: 2 * time.Hour},
		"a policy with a queue":        {members: ``, header: []string{policyHeader, "careful"}, window: 1, queue: 3 * time.Hour},
		"a queue instead of that":      {members: `,"queue":{"for":"2h"}`, header: []string{policyHeader, "careful"}, window: 1, queue: 2 * time.Hour},
		"a queue of a policy in force": {members: `,"rollout":{"max":2,"queue":{"for":"90s"}}`, window: 2, queue: 90 * time.Second},
	} {
		a := d.call(http.MethodPost, nativePath, startOn(c.members), c.header...)
		id, _ := a.body["id"].(string)
		task, err := store.Task(t.Context(), procfleet.TaskID(id))
		if err != nil {
			t.Fatalf("%s: %d %s: %v", what, a.status, a.text, err)
		}
		if task.Rollout == nil {
			if c.window != 0 {
				t.Errorf("%s: no rollout", what)
			}
			continue
		}
		plan := task.Rollout.Plan
		if plan.Window != c.window || plan.Queue != c.queue || task.Deadline.Sub(task.CreatedAt) < c.queue+plan.UnitTimeout {
			t.Errorf("%s: window %d, queue %s, deadline after %s", what, plan.Window, plan.Queue, task.Deadline.Sub(task.CreatedAt))
		}
	}
	var p v1.Plan
	if a := d.call(http.MethodPost, nativePath+"?plan=true", startOn(`,"queue":{"for":"2h","coalesce":true}`)); json.Unmarshal([]byte(a.text), &p) != nil || p.Rollout == nil {
		t.Fatalf("%d %s", a.status, a.text)
	}
	if want := (procfleet.HostQueue{For: procfleet.Duration(2 * time.Hour), Coalesce: true}); p.Rollout.Queue == nil || *p.Rollout.Queue != want {
		t.Errorf("planned queue %+v", p.Rollout.Queue)
	}
}
