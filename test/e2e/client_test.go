//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// finishTimeout is the timeout of a task that redelivery and sweeps have to
// recover, on a busy machine.
const finishTimeout = 150 * time.Second

// client calls the native API.
type client struct {
	t      *testing.T
	url    string
	header http.Header // added to every request
}

type task struct {
	ID         string         `json:"id"`
	State      string         `json:"state"`
	Items      int            `json:"items"`
	Counts     map[string]int `json:"counts"`
	FinishedAt time.Time      `json:"finished_at"`
}

type result struct {
	Item     int      `json:"item"`
	Host     string   `json:"host"`
	Name     string   `json:"name"`
	State    string   `json:"state"`
	Code     int      `json:"code"`
	Reason   string   `json:"reason"`
	Refusal  string   `json:"refusal"`
	Message  string   `json:"message"`
	Late     bool     `json:"late"`
	Warnings []string `json:"warnings"`
	Status   *struct {
		PID        int  `json:"pid"`
		Running    bool `json:"running"`
		Supervised bool `json:"supervised"`
	} `json:"status"`
}

// call sends one request; ok is false if there was no response.
func (c *client) call(method, path, key string, body any) (status int, answer []byte, ok bool) {
	c.t.Helper()
	status, _, answer, ok = c.exchange(method, path, key, body)
	return status, answer, ok
}

// exchange is call with the header of the response.
func (c *client) exchange(method, path, key string, body any) (status int, header http.Header, answer []byte, ok bool) {
	c.t.Helper()
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		reader = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, reader)
	if err != nil {
		c.t.Fatal(err)
	}
	maps.Copy(req.Header, c.header)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, nil, false
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, nil, false
	}
	asDescribed(c.t, req, resp, data)
	return resp.StatusCode, resp.Header, data, true
}

// get retries until the status is 200, because the system may be recovering.
func (c *client) get(path string, into any) {
	c.t.Helper()
	testenv.Eventually(c.t, startTimeout, func() bool {
		status, data, ok := c.call(http.MethodGet, path, "", nil)
		return ok && status == http.StatusOK && json.Unmarshal(data, into) == nil
	}, "GET "+path+" answers 200")
}

// operation returns one action on each process, as one task.
func operation(action string, all []proc) map[string]any {
	var operations []map[string]any
	for _, p := range all {
		operations = append(operations, map[string]any{"action": action, "process": p.spec(), "hosts": []string{p.host}})
	}
	return map[string]any{"operations": operations}
}

// submit submits an operation and returns the task id. Any other response fails the
// test.
func (c *client) submit(body any) string {
	c.t.Helper()
	status, data, ok := c.call(http.MethodPost, "/v1/tasks", "", body)
	if !ok || status != http.StatusCreated {
		c.t.Fatalf("POST /v1/tasks: %d %s", status, data)
	}
	return taskID(c.t, data)
}

func taskID(t *testing.T, data []byte) string {
	t.Helper()
	var answer struct{ ID string }
	if err := json.Unmarshal(data, &answer); err != nil || answer.ID == "" {
		t.Fatalf("no id in %s", data)
	}
	return answer.ID
}

func (c *client) task(id string) task {
	c.t.Helper()
	var answer task
	c.get("/v1/tasks/"+url.PathEscape(id), &answer)
	return answer
}

// wait polls until the task is finished. In every poll the counters must add up to
// the number of items.
func (c *client) wait(id string) task {
	c.t.Helper()
	var last task
	testenv.Eventually(c.t, finishTimeout, func() bool {
		last = c.task(id)
		sum := 0
		for _, n := range last.Counts {
			sum += n
		}
		if sum != last.Items {
			c.t.Fatalf("task %s: counters %v add up to %d, not %d", id, last.Counts, sum, last.Items)
		}
		return last.State == "finished"
	}, "task "+id+" is finished")
	return last
}

// results reads all pages and checks that every item occurs exactly once.
func (c *client) results(id string, items int) []result {
	c.t.Helper()
	var all []result
	seen := map[int]bool{}
	for cursor := ""; ; {
		var page struct {
			Results []result
			Next    string
		}
		c.get("/v1/tasks/"+url.PathEscape(id)+"/results?limit=500&cursor="+url.QueryEscape(cursor), &page)
		for _, r := range page.Results {
			if seen[r.Item] {
				c.t.Fatalf("task %s: item %d occurs twice", id, r.Item)
			}
			seen[r.Item] = true
			all = append(all, r)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if len(all) != items {
		c.t.Fatalf("task %s: %d results, want %d", id, len(all), items)
	}
	return all
}

// tasks returns the newest thousand tasks, newest first.
func (c *client) tasks() []task {
	c.t.Helper()
	var page struct{ Tasks []task }
	c.get("/v1/tasks?limit=1000", &page)
	return page.Tasks
}

func (c *client) hosts() []string {
	c.t.Helper()
	var page struct {
		Hosts []struct{ Host string }
	}
	c.get("/v1/hosts?limit=1000", &page)
	var hosts []string
	for _, h := range page.Hosts {
		hosts = append(hosts, h.Host)
	}
	return hosts
}
