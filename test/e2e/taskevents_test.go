//go:build linux

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	procfleetclient "github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/internal/testenv"
)

// wantEvents waits for the end of a task in the stream of events. The stream must have exactly the
// given events of the task, with the numbers from 1 in their order: the kind, with the hold or the
// mode of a transition.
func (f *fleet) wantEvents(id string, want ...string) {
	f.t.Helper()
	js, err := jetstream.New(f.connect())
	if err != nil {
		f.t.Fatal(err)
	}
	testenv.Eventually(f.t, finishTimeout, func() bool { return stored(f.t, js, "PROCFLEET_EVENTS")[id+"/finished "+id] > 0 }, "the end is published")
	if got := eventsOf(f.t, js, id); !slices.Equal(got, want) {
		f.t.Errorf("events of task %s:\n%q, want\n%q", id, got, want)
	}
}

func eventsOf(t *testing.T, js jetstream.JetStream, id string) (events []string) {
	t.Helper()
	for _, data := range contents(t, js, "PROCFLEET_EVENTS") {
		var e struct {
			Event, Task, Kind, Hold, Mode string
			Number                        int
		}
		if err := json.Unmarshal(data, &e); err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Task != id:
		case e.Event == "accepted":
			events = append(events, "1 accepted")
		case e.Kind == "":
			events = append(events, fmt.Sprint(e.Number, " finished"))
		case e.Event != fmt.Sprintf("%s/%d", id, e.Number):
			t.Errorf("event %s", data)
		default:
			events = append(events, fmt.Sprint(e.Number, " ", e.Kind, " ", e.Hold+e.Mode))
		}
	}
	return events
}

// TestFollowersMissNoEvent kills the dispatcher that a client follows, and workers before they
// publish an event. The client must receive each event of each task, in the order of the numbers.
func TestFollowersMissNoEvent(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	followed, first := f.dispatcher("", "--submissions=false", "--audit-required")
	_, second := f.dispatcher("", "--submissions=false", "--audit-required")
	working := f.worker("")
	f.simulate(20, "0s")
	f.waitListed(second, 20)
	feed := followTasks(t, first.url, second.url)
	var tasks []string
	for i := range 30 {
		id := second.submit(simulated(20))
		tasks = append(tasks, id)
		if i%3 == 0 && second.control(id, "pause") == http.StatusOK {
			second.control(id, "resume")
		}
		switch i {
		case 5:
			followed.Kill()
		case 10:
			working.Kill() // it may have finished all tasks so far
			second.control(second.submit(simulated(20)), "pause")
			tasks = append(tasks, second.submit(simulated(20)))
			f.worker("worker.before-transition").Wait(t, finishTimeout)
			tasks = append(tasks, second.submit(simulated(20))) // the others may have ended before the worker died
			f.worker("worker.before-notify").Wait(t, finishTimeout)
			f.worker("")
		}
	}
	for _, id := range tasks {
		second.wait(id)
		testenv.Eventually(t, finishTimeout, func() bool { return feed.ended(id) }, "the end of "+id+" is received")
		if events := feed.of(id); !slices.IsSorted(events) || len(slices.Compact(events)) != events[len(events)-1] {
			t.Errorf("task %s: events %v", id, events)
		}
	}
}

// taskFeed has the numbers of the events of each task that a client received, without repeats.
type taskFeed struct {
	mu      sync.Mutex
	seen    map[string]bool
	numbers map[string][]int
	ends    map[string]bool
}

// followTasks follows the events of all tasks, with the first server as long as it lives.
func followTasks(t *testing.T, servers ...string) *taskFeed {
	t.Helper()
	c, err := procfleetclient.New(procfleetclient.Config{URL: strings.Join(servers, ",")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	feed := &taskFeed{seen: map[string]bool{}, numbers: map[string][]int{}, ends: map[string]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for e, err := range c.FollowTasks(ctx, procfleetclient.TaskEventQuery{After: "0"}) {
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("the stream ended: %v", err)
				}
				return
			}
			feed.add(&e.TaskEvent)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return feed
}

func (f *taskFeed) add(e *procfleetclient.TaskEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[e.ID] {
		return
	}
	f.seen[e.ID] = true
	f.numbers[string(e.Task)] = append(f.numbers[string(e.Task)], e.Number)
	f.ends[string(e.Task)] = e.Kind == "finished"
}

func (f *taskFeed) ended(task string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ends[task]
}

func (f *taskFeed) of(task string) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.numbers[task])
}

// followed reads the events of a task from the beginning until its end.
func (s *scene) followed(r route) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, s.url+r.path+"?last_event_id=0&task="+s.task, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header = s.header.Clone()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var kinds []string
	for lines := bufio.NewScanner(resp.Body); lines.Scan() && !slices.Contains(kinds, "finished"); {
		if kind, is := strings.CutPrefix(lines.Text(), "event: "); is {
			kinds = append(kinds, kind)
		}
	}
	if !slices.Equal(kinds, []string{"accepted", "finished"}) {
		s.t.Errorf("%s: %d, events %q", r, resp.StatusCode, kinds)
	}
}
