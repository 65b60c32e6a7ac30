package dispatcher

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
)

// noTaskEvents is a broker without events of tasks.
type noTaskEvents struct{}

func (noTaskEvents) TaskEventRange(context.Context) (first, last uint64, err error) { return 1, 0, nil }

func (noTaskEvents) FollowTasks(context.Context, uint64, func(bus.TaskEvent) error) error {
	return bus.ErrUnavailable
}

// fakeFeed has events at the positions from first on. Its streams end after the last event.
type fakeFeed struct {
	first  uint64
	events []bus.TaskEvent
}

func (f *fakeFeed) TaskEventRange(context.Context) (first, last uint64, err error) {
	return f.first, f.first + uint64(len(f.events)) - 1, nil
}

func (f *fakeFeed) FollowTasks(_ context.Context, after uint64, visit func(bus.TaskEvent) error) error {
	for i, e := range f.events {
		if e.Position = f.first + uint64(i); e.Position > after {
			if err := visit(e); err != nil {
				return err
			}
		}
	}
	return bus.ErrUnavailable
}

// TestAnApplicationFollowsOnlyTheTasksThatItMaySee: "elsewhere" may act for business 3 only.
func TestAnApplicationFollowsOnlyTheTasksThatItMaySee(t *testing.T) {
	t.Parallel()
	const own, other = procfleet.TaskID("GSETASK:20261121053522:1"), procfleet.TaskID("GSETASK:20261121053522:2")
	cfg := guarded(t)
	addElsewhere(t, cfg.AppsFile)
	cfg.TaskFeed = &fakeFeed{first: 5, events: []bus.TaskEvent{
		{Record: audit.Record{Event: audit.Accepted, Task: own, Number: 1, Application: "elsewhere", Business: "3"}},
		{Record: audit.Record{Event: audit.Accepted, Task: other, Number: 1, Application: "free", Business: "2"}},
		{
			Record:     audit.Record{Event: audit.Transition, Task: own, Number: 2, Application: "elsewhere", Business: "3", Reason: "why"},
			Transition: &bus.TaskTransition{Kind: procfleet.TransitionHeld, Hold: procfleet.HoldBudget, Seq: 1, Stage: 2},
		},
		{Record: audit.Record{Event: audit.Finished, Task: own, Number: 3, Application: "elsewhere", Business: "3", State: procfleet.TaskFinished}},
		{Record: audit.Record{Event: audit.Finished, Task: other, Number: 2, Application: "free", Business: "2", State: procfleet.TaskRejected}},
	}}
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	event := regexp.MustCompile(`id: (\d+)\nevent: (\w+)\ndata: \{"id":"GSETASK:20261121053522:(\d/\d)"`)
	for _, test := range []struct {
		app, query string
		want       []string
	}{
		{"elsewhere", "last_event_id=4", []string{"5 accepted 1/1", "7 held 1/2", "8 finished 1/3"}},
		{"elsewhere", "last_event_id=7", []string{"8 finished 1/3"}},
		{"elsewhere", "", nil},
		{"elsewhere", "last_event_id=4&business=2", nil},
		{"free", "last_event_id=4", []string{"5 accepted 1/1", "6 accepted 2/1", "7 held 1/2", "8 finished 1/3", "9 rejected 2/2"}},
		{"free", "last_event_id=4&business=2", []string{"6 accepted 2/1", "9 rejected 2/2"}},
		{"free", "last_event_id=4&task=" + string(own), []string{"5 accepted 1/1", "7 held 1/2", "8 finished 1/3"}},
	} {
		a := d.call(http.MethodGet, "/v1/tasks/events?"+test.query, "", "Authorization", "Bearer "+test.app+".s3cret")
		var got []string
		for _, e := range event.FindAllStringSubmatch(a.text, -1) {
			got = append(got, e[1]+" "+e[2]+" "+e[3])
		}
		if a.status != http.StatusOK || a.header.Get("Content-Type") != "text/event-stream" || !slices.Equal(got, test.want) {
			t.Errorf("%s %s: %d %q, want %q in %s", test.app, test.query, a.status, got, test.want, a.text)
		}
	}
	for query, want := range map[string]int{"last_event_id=3": http.StatusGone, "last_event_id=10": http.StatusGone, "last_event_id=x": http.StatusBadRequest} {
		if a := d.call(http.MethodGet, "/v1/tasks/events?"+query, "", "Authorization", "Bearer free.s3cret"); a.status != want {
			t.Errorf("%s: %d %s", query, a.status, a.text)
		}
	}
}
