//go:build linux

package e2e

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// TestATimeOfAScheduleHasOneTaskThoughItsDispatcherIsKilled kills the dispatcher after it has created
// the task of a time, and before it has recorded that. The next dispatcher finds the task and creates
// no second one.
func TestATimeOfAScheduleHasOneTaskThoughItsDispatcherIsKilled(t *testing.T) {
	t.Parallel()
	const patience = 90*time.Second + finishTimeout
	f := newFleet(t, 1)
	dying, first := f.dispatcher("dispatcher.fired")
	f.worker("")
	f.waitListed(first, 1)
	all := f.procs.grid(f.hosts(1), 1, "scheduled")
	cron := time.Now().UTC().Add(70 * time.Second).Format("4 15 2 1 *") // once, in 10 to 70 s
	body := map[string]any{"cron": cron, "missed": "run_once", "task": operation("start", all)}
	if status, data, ok := first.call(http.MethodPut, "/v1/schedules/e2e/nightly", "", body); !ok || status != http.StatusOK {
		t.Fatalf("set a schedule: %d %s", status, data)
	}
	dying.Wait(t, patience)

	_, c := f.dispatcher("")
	var last struct{ Task string }
	testenv.Eventually(t, patience, func() bool {
		var list struct {
			Schedules []struct{ Last *struct{ Task string } }
		}
		status, data, ok := c.call(http.MethodGet, "/v1/schedules/e2e", "", nil)
		if !ok || status != http.StatusOK || json.Unmarshal(data, &list) != nil || len(list.Schedules) != 1 {
			t.Fatalf("schedules: %d %s", status, data)
		}
		if list.Schedules[0].Last == nil {
			return false
		}
		last.Task = list.Schedules[0].Last.Task
		return true
	}, "the second dispatcher records the time")
	var tasks struct {
		Tasks []struct {
			ID string
		}
	}
	status, data, ok := c.call(http.MethodGet, "/v1/tasks?limit=100", "", nil)
	if !ok || status != http.StatusOK || json.Unmarshal(data, &tasks) != nil {
		t.Fatalf("tasks: %d %s", status, data)
	}
	if len(tasks.Tasks) != 1 || tasks.Tasks[0].ID != last.Task {
		t.Errorf("the schedule names task %q, the tasks are %v", last.Task, tasks.Tasks)
	}
	c.wait(last.Task)
	f.verifyStarted(c, last.Task, all)
}
