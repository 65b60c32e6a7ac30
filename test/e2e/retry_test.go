//go:build linux

package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
)

// TestARetryRunsOnceIfItsDispatcherIsKilled repeats a task on the host whose agent was not
// connected. The dispatcher dies after it has accepted the retry, before it has linked both
// tasks; the same request at another dispatcher finds the retry, and the command runs once.
func TestARetryRunsOnceIfItsDispatcherIsKilled(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	dying, first := f.dispatcher("dispatcher.retried")
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 2)
	f.agents[1].stop()
	all := f.procs.grid(f.hosts(2), 1, "retried")
	id := c.submit(operation("start", all))
	c.wait(id)
	f.agents[1].start()
	f.agents[1].waitReady()

	path := "/v1/tasks/" + url.PathEscape(id) + "/retry"
	body := map[string]any{"if_seq": 0, "states": []string{"unreachable"}}
	if _, _, ok := first.call(http.MethodPost, path, "", body); ok {
		t.Error("the killed dispatcher answered")
	}
	dying.Wait(t, finishTimeout)
	status, data, ok := c.call(http.MethodPost, path, "", body)
	var retry struct {
		ID      string `json:"id"`
		RetryOf string `json:"retry_of"`
		Items   int    `json:"items"`
	}
	if !ok || status != http.StatusOK || json.Unmarshal(data, &retry) != nil || retry.RetryOf != id || retry.Items != 1 {
		t.Fatalf("retry: %d %s", status, data)
	}
	c.wait(retry.ID)
	f.verifyStarted(c, retry.ID, all[1:])
	if n := len(c.tasks()); n != 2 {
		t.Errorf("%d tasks, want the task and its retry", n)
	}
	if status, data, _ := c.call(http.MethodPost, path, "", body); status != http.StatusConflict {
		t.Errorf("the request again: %d %s", status, data)
	}
}
