package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

func TestWatchGivesUpWhenPatienceEndsOrTheServerRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		want   error
	}{
		"no such task": {http.StatusNotFound, client.ErrNotFound},
		"not allowed":  {http.StatusForbidden, client.ErrDenied},
		"away":         {http.StatusBadGateway, client.ErrUnavailable},
		"no server":    {0, client.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				if test.status != 0 {
					t.serve("a", func(w http.ResponseWriter, _ *http.Request) {
						answer(w, test.status, `{"error":{"code":"word","message":"no"}}`)
					})
				}
				c := t.client(client.Config{Patience: time.Minute})
				begun := time.Now()
				if _, err := c.Wait(t.Context(), id); !errors.Is(err, test.want) || time.Since(begun) > time.Minute {
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}

func TestATaskOfAnotherIDIsNotBelieved(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		other := strings.Replace(finished, string(id), "GSETASK:3:4", 1)
		s := &script{task: other, events: []http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) { send(w, "end", "1", other) }}}
		t.serve("a", s.serve)
		if _, err := t.client(client.Config{}).Wait(t.Context(), id); !errors.Is(err, client.ErrBadResponse) {
			t.Errorf("%v", err)
		}
	})
}

// The bubble fails if a goroutine of the watch remains.
func TestAWatchThatIsLeftLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		s := &script{events: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			send(w, "snapshot", "1", running(0))
			send(w, "progress", "2", running(1))
			hold(r)
		}}}
		t.serve("a", s.serve)
		c := t.client(client.Config{})
		for task, err := range c.Watch(t.Context(), id) {
			if err != nil {
				t.Error(err)
			}
			if task.Counts.Open() < 10 {
				break
			}
		}
		interrupted := errors.New("received interrupt")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour/60, interrupted)
		defer cancel()
		last, err := c.Wait(ctx, id)
		if !errors.Is(err, interrupted) || !errors.Is(err, context.DeadlineExceeded) || err.Error() != interrupted.Error() {
			t.Errorf("%v", err)
		}
		if last.Counts[procfleet.StateSucceeded] != 1 {
			t.Errorf("what was seen last is lost: %+v", last)
		}
	})
}

func TestTheTimeoutOfTheHTTPClientDoesNotCutAWatch(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		s := &script{events: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			send(w, "snapshot", "1", running(0))
			time.Sleep(40 * time.Second)
			finish(w, r)
		}}}
		t.serve("a", s.serve)
		c, err := client.New(client.Config{URL: "http://a", Timeout: time.Second, HTTP: &http.Client{Transport: t.transport, Timeout: time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Wait(t.Context(), id); err != nil || s.calls != 1 {
			t.Errorf("%d connections, %v", s.calls, err)
		}
	})
}
