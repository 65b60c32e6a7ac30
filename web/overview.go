package web

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// overview is the content of the first page.
type overview struct {
	Survey   *survey        // nil while the first one is read, and with Limited
	Limited  bool           // the viewer may not read the hosts of all businesses
	NotReady string         // why the dispatcher cannot accept operations; "" if it can
	Health   *client.Health // nil if the viewer may not read all businesses
	Unread   bool           // the store is unavailable: nothing else was read
	Running  []client.Task
	Held     []client.Task
	Waiting  int // tasks that no worker has begun to deliver for longer than waitsLong
	Events   eventList
	Concerns []concern
}

// waitsLong is the time after which an accepted task should have been delivered.
const waitsLong = 15 * time.Second

// concern is something that an operator should look at.
type concern struct {
	Text  string // key of an amount
	Count int
	Link  string
}

func showOverview(ctx context.Context, v *visit) (any, error) {
	var view overview
	if err := v.api.Ready(ctx); err != nil {
		view.NotReady = err.Error()
	}
	switch health, err := v.api.Health(ctx); {
	case err == nil:
		view.Health = &health
	case signedOut(err):
		return nil, err
	}
	if view.Unread = view.Health != nil && view.Health.Store.Problem != ""; view.Unread {
		return &view, nil
	}
	open, err := v.api.TaskPage(ctx, client.TaskQuery{
		States: []procfleet.TaskState{procfleet.TaskAccepted, procfleet.TaskRunning}, Query: client.Query{PageSize: rows},
	})
	if err != nil {
		return nil, err
	}
	for _, t := range open.Items {
		if t.Hold != nil || t.Rollout != nil && t.Rollout.Hold != nil {
			view.Held = append(view.Held, t)
			continue
		}
		if t.State == procfleet.TaskAccepted && time.Since(t.CreatedAt) > waitsLong {
			view.Waiting++
		}
		if len(view.Running) < tasksShown {
			view.Running = append(view.Running, t)
		}
	}
	if view.Events, err = v.recentEvents(ctx, client.EventQuery{}, eventsShown); err != nil {
		return nil, err
	}
	view.Survey, err = v.console.surveys.of(ctx, v)
	if view.Limited = mayNot(err); err != nil && !view.Limited {
		return nil, err
	}
	view.Concerns = view.concerns()
	return &view, nil
}

// Fine reports that all parts that the viewer may see work.
func (o *overview) Fine() bool {
	h := o.Health
	return o.NotReady == "" && (h == nil || h.NATS.Problem+h.Store.Problem+h.Workers.Problem+h.Sweep.Problem == "")
}

// roundTripText formats a short duration so coarsely that a page does not change with each reading.
func roundTripText(seconds float64) string {
	if seconds < 0.001 {
		return "< 1 ms"
	}
	return strconv.Itoa(int(1000*seconds)) + " ms"
}

// lagText formats the delay of the sweep. A few seconds are normal.
func lagText(seconds float64) string {
	if seconds < 5 {
		return "< 5 s"
	}
	return strconv.Itoa(int(seconds)) + " s"
}

// concerns returns what needs the attention of an operator.
func (o *overview) concerns() []concern {
	all := []concern{
		{"concern.waiting", o.Waiting, Prefix + "tasks?state=accepted"},
		{"concern.held", len(o.Held), Prefix + "tasks?state=running"},
	}
	if s := o.Survey; s != nil {
		all = append(all,
			concern{"concern.gaveup", s.GaveUp, Prefix + "processes?state=" + gaveUpPhase},
			concern{"concern.claimed", s.Total.Claimed, Prefix + "hosts?conflict=1"},
			concern{"concern.drifted", s.Drifted, Prefix + "processes?drifted=1"},
		)
	}
	return slices.DeleteFunc(all, func(c concern) bool { return c.Count == 0 })
}
