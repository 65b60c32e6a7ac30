//go:build linux

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// watched is one event of a task.
type watched struct {
	name string
	task task
}

// watch reads the events of a task until their stream ends.
func (c *client) watch(id string) []watched {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), finishTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/v1/tasks/"+url.PathEscape(id)+"/events", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var events []watched
	var e watched
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			e.name = name
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			e.task = task{}
			if err := json.Unmarshal([]byte(data), &e.task); err != nil {
				c.t.Fatalf("%v in %s", err, data)
			}
			events = append(events, e)
		}
	}
	if err := lines.Err(); err != nil {
		c.t.Fatalf("after %d events: %v", len(events), err)
	}
	return events
}

// TestWatchingATask watches a task from its acceptance to its end. The counters of
// every event must add up.
func TestWatchingATask(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	procs := newProcs(t)
	all := procs.grid([]string{"0:127.0.0.1"}, 20, "watched")
	id := u.c.submit(operation("start", all))
	events := u.c.watch(id)
	if len(events) == 0 {
		t.Fatal("no events")
	}
	over := -1
	for i, e := range events {
		want := "progress"
		switch i {
		case len(events) - 1:
			want = "end"
		case 0:
			want = "snapshot"
		}
		sum := 0
		for _, n := range e.task.Counts {
			sum += n
		}
		now := sum - e.task.Counts["pending"] - e.task.Counts["delivered"]
		if e.name != want || e.task.ID != id || sum != e.task.Items || now < over {
			t.Errorf("event %d of %d is %+v, after one with %d ended items", i+1, len(events), e, over)
		}
		over = now
	}
	last := events[len(events)-1].task
	if last.State != "finished" || last.Counts["succeeded"] != len(all) {
		t.Errorf("the end is %+v", last)
	}
	if shown := u.c.task(id); shown.State != last.State || !shown.FinishedAt.Equal(last.FinishedAt) {
		t.Errorf("the end is %+v, the task %+v", last, shown)
	}
	if again := u.c.watch(id); len(again) != 1 || again[0].name != "end" {
		t.Errorf("after the end: %+v", again)
	}
}
