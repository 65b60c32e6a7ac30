package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// tasksOf serves a task with one result. Each request for the task returns the next of the given
// forms, and the last form from then on.
func tasksOf(t *testing.T, forms ...string) *httptest.Server {
	t.Helper()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/results"):
			_, _ = io.WriteString(w, `{"results":[{"host":"0:10.0.0.1","key":"k","state":"failed","code":65535,"message":"exit=1"}],"next":""}`)
		case strings.HasSuffix(r.URL.Path, "/events"):
			http.NotFound(w, r)
		default:
			asked++
			_, _ = io.WriteString(w, forms[min(asked, len(forms))-1])
		}
	}))
	t.Cleanup(server.Close)
	return server
}

const (
	oneRunning   = `{"id":"x","state":"running","items":1,"counts":{"pending":1}}`
	oneFailed    = `{"id":"x","state":"finished","items":1,"counts":{"failed":1}}`
	oneUnchanged = `{"id":"x","state":"finished","items":1,"counts":{"unchanged":1}}`
)

func TestTaskWatchEndsWith3WhenAHostFailed(t *testing.T) {
	t.Parallel()
	for last, want := range map[string]int{oneFailed: exitHostsFailed, oneUnchanged: 0, `{"id":"x","state":"rejected"}`: exitHostsFailed} {
		for _, form := range []string{"--json=false", "--json"} {
			server := tasksOf(t, oneRunning, last)
			if code, stdout, stderr := call(t, "task", "watch", "x", form, "--server", server.URL); code != want {
				t.Errorf("%s: exit %d, want %d\n%s%s", form, code, want, stdout, stderr)
			}
		}
	}
}

func TestTaskWatchWritesALineOfJSONForEveryChange(t *testing.T) {
	t.Parallel()
	server := tasksOf(t, oneRunning, oneRunning, oneFailed)
	_, stdout, stderr := call(t, "task", "watch", "x", "--json", "--server", server.URL)
	var states []procfleet.TaskState
	for line := range strings.Lines(stdout) {
		var task client.Task
		if err := json.Unmarshal([]byte(line), &task); err != nil {
			t.Errorf("%v in %s", err, line)
		}
		states = append(states, task.State)
	}
	if fmt.Sprint(states) != "[running finished]" {
		t.Errorf("states %v", states)
	}
	if !strings.Contains(stderr, "no events") {
		t.Errorf("that there are no events is kept quiet: %q", stderr)
	}
}

func TestAnInterruptedWatchSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	server := tasksOf(t, oneRunning)
	ctx, cancel := context.WithCancelCause(t.Context())
	out := writerFunc(func(p []byte) (int, error) { cancel(errors.New("received interrupt")); return len(p), nil })
	var stderr bytes.Buffer
	code := run(ctx, []string{"task", "watch", "x", "--server", server.URL}, out, &stderr)
	want := "procfleet: received interrupt; task x continues, follow it with: procfleet task watch x --server " + server.URL + "\n"
	if code != command.ExitFailed || !strings.HasSuffix(stderr.String(), want) {
		t.Errorf("exit %d, %q, want %q", code, stderr.String(), want)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestAWatchOfNoTaskEndsAtOnce(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	if code, _, stderr := call(t, "task", "watch", "x", "--server", server.URL); code != command.ExitFailed || strings.Contains(stderr, "follow it") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestAFrozenServerDoesNotHoldUpAQuestionForAMinute(t *testing.T) {
	t.Parallel()
	frozen := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(frozen.Close)
	well := tasksOf(t, oneUnchanged)
	ctx, cancel := context.WithTimeout(t.Context(), 4*queryTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	if code := run(ctx, []string{"task", "get", "x", "--server", frozen.URL + "," + well.URL}, &stdout, &stderr); code != 0 {
		t.Errorf("exit %d, %s", code, stderr.String())
	}
}

func TestAHintOfSeveralServersCanBePasted(t *testing.T) {
	t.Parallel()
	s := serverFlags{url: "http://a:1, http://b:1"}
	if got, want := s.watchCommand("x"), "procfleet task watch x --server http://a:1,http://b:1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
