package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

const id procfleet.TaskID = "GSETASK:1:2"

// taskJSON is a task of ten items of which so many have succeeded.
func taskJSON(state procfleet.TaskState, succeeded int) string {
	return fmt.Sprintf(`{"id":%q,"state":%q,"items":10,"counts":{"pending":%d,"succeeded":%d},"finished_at":null}`, id, state, 10-succeeded, succeeded)
}

func running(n int) string { return taskJSON(procfleet.TaskRunning, n) }

var finished = taskJSON(procfleet.TaskFinished, 10)

// send writes an event and flushes it.
func send(w http.ResponseWriter, name, id, data string) {
	raw(w, "event: "+name+"\nid: "+id+"\ndata: "+data+"\n\n")
}

func raw(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, text)            // the client may have disconnected
	_ = http.NewResponseController(w).Flush() // likewise
}

// script answers the n-th request for events with the n-th handler, the
// later ones with the last, and requests for the task with task.
type script struct {
	events []http.HandlerFunc
	task   string    // body; empty is 404
	done   time.Time // if not zero: when the task is finished
	calls  int       // of events
	looks  int       // at the task
	ids    []string
}

func (s *script) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/events"):
		s.calls++
		s.ids = append(s.ids, r.Header.Get("Last-Event-ID"))
		s.events[min(s.calls, len(s.events))-1](w, r)
	case r.URL.Path != "/v1/tasks/"+string(id):
		answer(w, http.StatusNotFound, `{"error":{"code":"not_found","message":"no such path"}}`)
	default:
		s.looks++
		if s.task == "" {
			answer(w, http.StatusNotFound, `{"error":{"code":"not_found","message":"no such task"}}`)
			return
		}
		if !s.done.IsZero() && !time.Now().Before(s.done) {
			answer(w, http.StatusOK, finished)
			return
		}
		answer(w, http.StatusOK, s.task)
	}
}

func finish(w http.ResponseWriter, _ *http.Request) { send(w, "end", "9", finished) }

// watched returns the number of succeeded items in each state that Watch yields.
func watched(ctx context.Context, c *client.Client) (seen []int, err error) {
	for task, err := range c.Watch(ctx, id) {
		if err != nil {
			return seen, err
		}
		seen = append(seen, task.Counts[procfleet.StateSucceeded])
	}
	return seen, nil
}

// However a stream of events breaks, the watch continues until the task has ended, and
// reports no state twice.
func TestWatchSeesTheEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, second http.HandlerFunc // answers of the events endpoint
		task          string
		want          []int
		atMost        time.Duration
		calls         int
		resumed       string // Last-Event-ID of the second request
		polls         bool
	}{
		"all in one stream": {
			first: func(w http.ResponseWriter, _ *http.Request) {
				raw(w, "retry: 2000\n\n")
				send(w, "snapshot", "1", running(0))
				raw(w, ": still here\n\n")
				send(w, "progress", "2", running(4))
				send(w, "progress", "3", running(4))
				send(w, "end", "4", finished)
				raw(w, "event: progress\ndata: after the end\n\n")
			},
			want: []int{0, 4, 10}, calls: 1,
		},
		"over before it began": {first: finish, want: []int{10}, calls: 1},
		"an event with an unknown name": {
			first: func(w http.ResponseWriter, r *http.Request) {
				send(w, "weather", "1", "rain")
				send(w, "snapshot", "2", running(1))
				finish(w, r)
			},
			want: []int{1, 10}, calls: 1,
		},
		"CRLF and data over lines": {
			first: func(w http.ResponseWriter, _ *http.Request) {
				data := strings.ReplaceAll(running(1), ",", ",\r\ndata: ")
				raw(w, "event: snapshot\r\nid: 1\r\ndata: "+data+"\r\n\r\nevent: end\r\ndata: "+finished+"\r\n\r\n")
			},
			want: []int{1, 10}, calls: 1,
		},
		"cut in the middle of an event": {
			first: func(w http.ResponseWriter, _ *http.Request) {
				raw(w, "retry: 50\n\n")
				send(w, "snapshot", "7", running(2))
				raw(w, "event: progress\nid: 8\ndata: "+running(3)+"\n")
				cut()
			},
			second: func(w http.ResponseWriter, r *http.Request) {
				send(w, "snapshot", "8", running(2)) // nothing new
				finish(w, r)
			},
			want: []int{2, 10}, calls: 2, resumed: "7", atMost: 75 * time.Millisecond,
		},
		"ended without an end": {
			first: func(w http.ResponseWriter, _ *http.Request) { send(w, "snapshot", "7", running(2)) },
			want:  []int{2, 10}, calls: 2, resumed: "7", atMost: 3 * time.Second,
		},
		"over at the second connection": {
			first:  func(w http.ResponseWriter, _ *http.Request) { send(w, "snapshot", "7", running(2)) },
			second: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
			task:   finished,
			want:   []int{2, 10}, calls: 2, resumed: "7", atMost: 3 * time.Second,
		},
		"silence after an event": {
			first: func(w http.ResponseWriter, r *http.Request) { send(w, "snapshot", "7", running(2)); hold(r) },
			want:  []int{2, 10}, calls: 2, resumed: "7", atMost: 48 * time.Second,
		},
		"cut and then nothing new for hours": {
			first: func(w http.ResponseWriter, _ *http.Request) { send(w, "snapshot", "7", running(2)) },
			second: func(w http.ResponseWriter, r *http.Request) {
				raw(w, "retry: 2000\n\n")
				for range 1000 {
					time.Sleep(15 * time.Second)
					raw(w, ": still here\n\n")
				}
				finish(w, r)
			},
			want: []int{2, 10}, calls: 2, resumed: "7", atMost: 5 * time.Hour,
		},
		"nothing but a sign of life for hours": {
			first: func(w http.ResponseWriter, r *http.Request) {
				send(w, "snapshot", "7", running(2))
				for range 1000 {
					time.Sleep(15 * time.Second)
					raw(w, ": still here\n\n")
				}
				finish(w, r)
			},
			want: []int{2, 10}, calls: 1, atMost: 5 * time.Hour,
		},
		"garbage after an event": {
			first: func(w http.ResponseWriter, _ *http.Request) {
				send(w, "snapshot", "7", running(2))
				send(w, "progress", "8", "<html>")
			},
			want: []int{2, 10}, calls: 2, resumed: "8", atMost: 3 * time.Second,
		},
		"an event without an end": {
			first: func(w http.ResponseWriter, _ *http.Request) {
				send(w, "snapshot", "7", running(2))
				for range 2 << 10 {
					raw(w, strings.Repeat("x", 1<<10))
				}
			},
			want: []int{2, 10}, calls: 2, resumed: "7", atMost: 3 * time.Second,
		},
		"busy at first": {
			first: func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusServiceUnavailable, unavailable) },
			task:  running(1),
			want:  []int{1, 10}, calls: 2, atMost: 3 * time.Second,
		},
		"redirected": {
			first: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://a"+r.URL.Path+"?again", http.StatusFound)
			},
			want: []int{10}, calls: 2,
		},
		"a server without events": {
			first: func(w http.ResponseWriter, _ *http.Request) {
				answer(w, http.StatusNotFound, `{"error":{"code":"not_found","message":"no such path"}}`)
			},
			task: running(5), polls: true,
			want: []int{5, 10}, calls: 1, atMost: 62 * time.Second,
		},
		"a page instead of events": {
			first: func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "<html>") },
			task:  running(5), polls: true,
			want: []int{5, 10}, calls: 1, atMost: 62 * time.Second,
		},
		"a proxy that holds everything back": {
			first: func(w http.ResponseWriter, r *http.Request) { raw(w, ""); hold(r) }, second: func(w http.ResponseWriter, r *http.Request) { raw(w, ""); hold(r) },
			task: running(5), polls: true,
			want: []int{5, 10}, calls: 3, atMost: 62 * time.Second,
		},
		"a proxy that lets only signs of life through": {
			first: func(w http.ResponseWriter, r *http.Request) { trickle(w, r) }, second: func(w http.ResponseWriter, r *http.Request) { trickle(w, r) },
			task: running(5), polls: true,
			want: []int{5, 10}, calls: 3, atMost: 62 * time.Second,
		},
		"streams that are always cut at once": {
			first: func(w http.ResponseWriter, _ *http.Request) { raw(w, ""); cut() }, second: func(w http.ResponseWriter, _ *http.Request) { raw(w, ""); cut() },
			task: running(5), polls: true,
			want: []int{5, 10}, calls: 3, atMost: 62 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				if test.second == nil {
					test.second = finish
				}
				s := &script{events: []http.HandlerFunc{test.first, test.second}, task: test.task}
				if test.polls {
					s.done = time.Now().Add(time.Minute)
				}
				t.serve("a", s.serve)
				polls := false
				begun := time.Now()
				seen, err := watched(t.Context(), t.client(client.Config{Trouble: func(err error) { polls = polls || errors.Is(err, client.ErrNoEvents) }}))
				if err != nil || !slices.Equal(seen, test.want) || s.calls != test.calls {
					t.Errorf("saw %v, want %v; %d connections, want %d; %v", seen, test.want, s.calls, test.calls, err)
				}
				if took := time.Since(begun); took > test.atMost {
					t.Errorf("it took %v, want at most %v", took, test.atMost)
				}
				if test.resumed != "" && s.ids[1] != test.resumed {
					t.Errorf("went on after %q, want %q", s.ids[1], test.resumed)
				}
				if polls != test.polls {
					t.Errorf("told of polling: %v, want %v", polls, test.polls)
				}
			})
		})
	}
}

// trickle sends keep-alive comments and no event.
func trickle(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		raw(w, ":\n\n")
		select {
		case <-time.After(time.Second):
		case <-r.Context().Done():
		}
	}
}

// A client does not fall back to polling while it receives events, even if a dispatcher that
// restarts repeatedly or a proxy with a time limit ends every stream early.
func TestStreamsThatAreCutAfterTheirBeginningAreTakenUpAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		s := &script{task: running(2), events: []http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) { send(w, "snapshot", "7", running(2)) }}}
		for range 20 {
			s.events = append(s.events, func(w http.ResponseWriter, _ *http.Request) { raw(w, "retry: 2000\n\n"); cut() })
		}
		s.events = append(s.events, finish)
		t.serve("a", s.serve)
		seen, err := watched(t.Context(), t.client(client.Config{Trouble: func(err error) { t.Errorf("told of %v", err) }}))
		if err != nil || !slices.Equal(seen, []int{2, 10}) || s.looks != 0 {
			t.Errorf("saw %v after %d looks at the task, %v", seen, s.looks, err)
		}
	})
}

func TestWatchGoesOnAtAnotherServerWhenOneDies(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		a := &script{task: running(1), events: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			send(w, "snapshot", "7", running(1))
			hold(r)
		}}}
		b := &script{events: []http.HandlerFunc{finish}}
		t.serve("a", a.serve)
		t.serve("b", b.serve)
		time.AfterFunc(time.Minute/2, func() { t.stop("a") })
		seen, err := watched(t.Context(), t.client(client.Config{URL: "http://a,http://b"}))
		if err != nil || !slices.Equal(seen, []int{1, 10}) || !slices.Equal(b.ids, []string{"7"}) {
			t.Errorf("saw %v, %v; the second was asked with ids %q", seen, err, b.ids)
		}
	})
}

func TestWatchSurvivesARestartAndGoesOnWithEvents(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		before := &script{events: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) { send(w, "snapshot", "7", running(1)); hold(r) }}}
		after := &script{events: []http.HandlerFunc{finish}}
		t.serve("a", before.serve)
		time.AfterFunc(10*time.Second, func() { t.stop("a") })
		time.AfterFunc(10*time.Minute, func() { t.serve("a", after.serve) })
		told := 0
		seen, err := watched(t.Context(), t.client(client.Config{Trouble: func(error) { told++ }}))
		if err != nil || !slices.Equal(seen, []int{1, 10}) || after.calls != 1 || told != 1 {
			t.Errorf("saw %v, %v; %d connections; told %d times", seen, err, after.calls, told)
		}
	})
}
