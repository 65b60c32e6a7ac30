package client_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/procfleet/procfleet/client"
)

// sendTaskEvent writes an event of a task at a position.
func sendTaskEvent(w http.ResponseWriter, position, number int) {
	send(w, "held", fmt.Sprint(position), fmt.Sprintf(`{"id":"%s/%d","number":%d,"task":%q,"kind":"held","of_a_later_release":1}`, id, number, number, id))
}

// However a stream of the events of tasks breaks, the client continues after its last position,
// also if that came without an event. An expired position is an error.
func TestFollowTasksContinuesAfterItsPosition(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handlers []http.HandlerFunc
		want     []string // positions and numbers
		resumed  []string // Last-Event-ID of each request
	}{
		"a stream that breaks before an event": {
			[]http.HandlerFunc{
				func(w http.ResponseWriter, _ *http.Request) { raw(w, "id: 7\nretry: 2000\n\n"); cut() },
				func(w http.ResponseWriter, _ *http.Request) { sendTaskEvent(w, 9, 1); cut() },
				func(w http.ResponseWriter, _ *http.Request) { sendTaskEvent(w, 11, 2) },
			},
			[]string{"9 1", "11 2"},
			[]string{"", "7", "9", "11"},
		},
		"a proxy without the server": {
			[]http.HandlerFunc{
				func(w http.ResponseWriter, _ *http.Request) { sendTaskEvent(w, 9, 1) },
				func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusBadGateway, "<html>") },
				func(w http.ResponseWriter, _ *http.Request) { sendTaskEvent(w, 10, 2) },
			},
			[]string{"9 1", "10 2"},
			[]string{"", "9", "9", "10"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				expired := func(w http.ResponseWriter, _ *http.Request) {
					answer(w, http.StatusGone, `{"error":{"code":"expired","message":"no longer stored"}}`)
				}
				s := &script{events: append(test.handlers, expired)}
				t.serve("a", s.serve)
				var seen []string
				var failure error
				for e, err := range t.client(client.Config{}).FollowTasks(t.Context(), client.TaskEventQuery{}) {
					if err != nil {
						failure = err
						break
					}
					seen = append(seen, fmt.Sprint(e.Position, " ", e.Number))
				}
				refused, is := errors.AsType[*client.Error](failure)
				if !slices.Equal(seen, test.want) || !slices.Equal(s.ids, test.resumed) || !is || refused.Code != "expired" {
					t.Errorf("seen %q, want %q; continued after %q, want %q; %v", seen, test.want, s.ids, test.resumed, failure)
				}
			})
		})
	}
}

// A caller ends the stream by leaving the loop.
func TestFollowTasksEndsWithItsLoop(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		s := &script{events: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			if got := r.URL.RawQuery; got != "business=2" {
				t.Errorf("query %q", got)
			}
			sendTaskEvent(w, 9, 1)
			sendTaskEvent(w, 10, 2)
			hold(r)
		}}}
		t.serve("a", s.serve)
		for e, err := range t.client(client.Config{}).FollowTasks(t.Context(), client.TaskEventQuery{Business: "2", After: "8"}) {
			if err != nil || e.Position != "9" {
				t.Errorf("event %+v, %v", e, err)
			}
			break
		}
	})
}
