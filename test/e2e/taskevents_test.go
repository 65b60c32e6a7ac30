//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/testenv"
)

// wantEvents waits for the end of a task in the stream of events. The stream must have exactly the
// given events of the task, with the numbers from 1 in their order: the kind, with the hold or the
// mode of a transition.
func (f *fleet) wantEvents(id string, want ...string) {
	f.t.Helper()
	nc, err := nats.Connect(f.broker.URL)
	if err != nil {
		f.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
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
