package web

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"
)

// fakeAPI replies to each call with the same status and body.
type fakeAPI struct {
	reply atomic.Pointer[fakeReply]
}

type fakeReply struct {
	status int
	body   string
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	r := a.reply.Load()
	w.WriteHeader(r.status)
	_, _ = w.Write([]byte(r.body))
}

func (a *fakeAPI) set(status int, body string) { a.reply.Store(&fakeReply{status, body}) }

const (
	noTasks = `{"tasks":[],"next":""}`
	oneTask = `{"tasks":[{"id":"GSETASK:20261121053522:123456","state":"running","items":1,"counts":{"pending":1},"actions":["start"]}],"next":""}`
	refused = `{"error":{"code":"unavailable","message":"the task store\ncannot be reached"}}`
)

// openStream opens the stream of a page, and returns a function that returns its next event and data; ok
// is false at the end of the stream.
func openStream(t *testing.T, server *httptest.Server, path string) (next func() (event, data string, ok bool)) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+Prefix+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("content type %q", kind)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() (event, data string, ok bool) {
		for lines.Scan() {
			switch line := lines.Text(); {
			case line == "":
				return event, data, true
			case strings.HasPrefix(line, "event: "):
				event = strings.TrimPrefix(line, "event: ")
			default:
				data += strings.TrimPrefix(line, "data:") + "\n"
			}
		}
		return "", "", false
	}
}

func TestAStreamSendsWhatHasChangedAndEndsWithTheRights(t *testing.T) {
	t.Parallel()
	api := &fakeAPI{}
	api.set(http.StatusOK, noTasks)
	c, err := New(Config{API: api, Log: logrus.New()})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(c)
	defer server.Close()
	next := openStream(t, server, "tasks")
	expect := func(want, contains string) {
		t.Helper()
		for {
			event, data, ok := next()
			switch {
			case !ok:
				t.Fatalf("the stream ended before the event %q", want)
			case event == want && strings.Contains(data, contains):
				return
			case event != "same":
				t.Fatalf("event %q: %s, want %q with %q", event, data, want, contains)
			}
		}
	}
	expect("main", "No task matches")
	expect("same", "")
	api.set(http.StatusOK, oneTask)
	expect("main", "GSETASK:20261121053522:123456")
	api.set(http.StatusServiceUnavailable, refused)
	expect("problem", "cannot be reached")
	expect("problem", "cannot be reached")
	api.set(http.StatusOK, oneTask)
	expect("same", "")
	api.set(http.StatusUnauthorized, `{"error":{"code":"unauthenticated","message":"unknown"}}`)
	expect("end", "")
	if event, _, ok := next(); ok {
		t.Errorf("event %q after the end", event)
	}
}

func TestStreamsEndWithTheConsole(t *testing.T) {
	t.Parallel()
	api := &fakeAPI{}
	api.set(http.StatusOK, noTasks)
	c, err := New(Config{API: api, Log: logrus.New()})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(c)
	defer server.Close()
	next := openStream(t, server, "tasks")
	if event, _, ok := next(); !ok || event != "main" {
		t.Fatalf("event %q", event)
	}
	c.Stop()
	for ok := true; ok; {
		_, _, ok = next()
	}
	c.Wait()
}
