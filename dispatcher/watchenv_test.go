package dispatcher

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

func TestMain(m *testing.M) {
	if !testenv.IsLong() {
		_ = flag.Set("rapid.checks", "30") // cases of each property; rapid prints the seed of a failure, and the command line prevails
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		testenv.CleanUp()
		os.Exit(code)
	}))
}

// patience is the maximum time that a test waits for an expected event.
const patience = 30 * time.Second

// aTask is a task of ten items, of which some are done.
func aTask(done int) procfleet.Task {
	n := procfleet.Number(1_700_000_000_000_123)
	t := procfleet.Task{
		ID: n.TaskID(), Number: n, State: procfleet.TaskRunning, Items: 10, Chunks: 1, CreatedAt: n.Time(), Dialect: "native",
		Counts: procfleet.Counts{procfleet.StatePending: 10 - done, procfleet.StateSucceeded: done},
	}
	if done == 10 {
		t.State, t.FinishedAt = procfleet.TaskFinished, n.Time().Add(time.Second)
	}
	return t
}

// scriptedStore has one task, which a test changes at will.
type scriptedStore struct {
	Store // nil: the tests call no other method

	mu    sync.Mutex
	task  procfleet.Task
	err   error
	panic any
	reads int
}

// Schedules returns none: dispatchers that run look for due ones.
func (*scriptedStore) Schedules(context.Context) ([]catalog.Schedule, error) { return nil, nil }

func (s *scriptedStore) Task(_ context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	switch {
	case s.panic != nil:
		panic(s.panic)
	case s.err != nil:
		return procfleet.Task{}, s.err
	case id != s.task.ID:
		return procfleet.Task{}, taskstore.ErrNotFound
	}
	return s.task, nil
}

func (s *scriptedStore) set(task procfleet.Task) { s.change(func() { s.task = task }) }

func (s *scriptedStore) fail(err error) { s.change(func() { s.err = err }) }

func (s *scriptedStore) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *scriptedStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// scriptedHints stores the functions that follow a task, so that a test can call them.
type scriptedHints struct {
	onFollow func() // before following is in effect
	mu       sync.Mutex
	err      error
	hinted   map[*func(bool)]func(bool)
}

func (*scriptedHints) Hint(procfleet.TaskID, bool) error { return nil }

func (*scriptedHints) Hold(procfleet.TaskID) error { return nil }

func (h *scriptedHints) Follow(_ context.Context, _ procfleet.TaskID, hinted func(bool)) (func(), error) {
	if h.onFollow != nil {
		h.onFollow()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	if h.hinted == nil {
		h.hinted = make(map[*func(bool)]func(bool))
	}
	key := &hinted
	h.hinted[key] = hinted
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.hinted, key)
	}, nil
}

func (h *scriptedHints) hint(over bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hinted := range h.hinted {
		hinted(over)
	}
}

func (h *scriptedHints) followers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.hinted)
}

// window is a dispatcher that is watched through a real HTTP server.
type window struct {
	*testServer
	watches       *watches
	authenticator *auth.Authenticator
}

// openWindow starts a dispatcher that reads watched tasks almost only after hints; adjust changes its
// timing.
func openWindow(t *testing.T, cfg Config, store Store, adjust func(*watchTiming)) *window {
	t.Helper()
	d, err := New(cfg, store, &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	d.watches.timing.poll = time.Hour
	if adjust != nil {
		adjust(&d.watches.timing)
	}
	server := httptest.NewServer(d.Handler())
	t.Cleanup(func() {
		d.watches.stop()
		server.Close()
		d.watches.wait()
	})
	return &window{testServer: &testServer{t: t, url: server.URL, store: store}, watches: d.watches, authenticator: d.authenticator}
}

// sseEvent is one event as a client reads it.
type sseEvent struct {
	name, id, data string
}

// done returns the number of succeeded items.
func (e sseEvent) done() int {
	var task struct {
		Counts map[procfleet.State]int `json:"counts"`
	}
	if json.Unmarshal([]byte(e.data), &task) != nil {
		return -1
	}
	return task.Counts[procfleet.StateSucceeded]
}

// viewer reads a stream.
type viewer struct {
	t      *testing.T
	resp   *http.Response
	lines  *bufio.Scanner
	cancel context.CancelFunc
	still  int // comments received
}

func eventsPath(id procfleet.TaskID) string { return "/v1/tasks/" + string(id) + "/events" }

// view opens a stream, which ends with the test.
func (d *testServer) view(id procfleet.TaskID, header ...string) *viewer {
	d.t.Helper()
	v, err := d.tryView(id, header)
	if err != nil {
		d.t.Fatal(err)
	}
	if v.resp.StatusCode != http.StatusOK {
		d.t.Fatalf("status %d", v.resp.StatusCode)
	}
	return v
}

// tryView may be used from any goroutine.
func (d *testServer) tryView(id procfleet.TaskID, header []string) (*viewer, error) {
	ctx, cancel := context.WithCancel(context.Background())
	d.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+eventsPath(id), nil)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	d.t.Cleanup(func() { _ = resp.Body.Close() })
	return &viewer{t: d.t, resp: resp, lines: bufio.NewScanner(resp.Body), cancel: cancel}, nil
}

// leave ends the stream from the client's side.
func (v *viewer) leave() { v.cancel() }

// next reads up to the next event; io.EOF is the orderly end of the stream.
func (v *viewer) next() (sseEvent, error) {
	timer := time.AfterFunc(patience, v.cancel)
	defer timer.Stop()
	var e sseEvent
	for v.lines.Scan() {
		name, value, _ := strings.Cut(v.lines.Text(), ": ")
		switch name {
		case "":
			if e.data != "" {
				return e, nil
			}
			v.still++ // the line was a comment's
		case "event":
			e.name = value
		case "id":
			e.id = value
		case "data":
			e.data = value
		}
	}
	if err := v.lines.Err(); err != nil {
		return e, err
	}
	return e, io.EOF
}

// want reads the next event and compares it.
func (v *viewer) want(name string, done int) sseEvent {
	v.t.Helper()
	e, err := v.next()
	if err != nil {
		v.t.Fatalf("waiting for %s of %d: %v", name, done, err)
	}
	if e.name != name || e.done() != done {
		v.t.Fatalf("%s of %d (%s), want %s of %d", e.name, e.done(), e.data, name, done)
	}
	return e
}

// wantEnd expects that the server ends the stream in good order.
func (v *viewer) wantEnd() {
	v.t.Helper()
	if e, err := v.next(); !errors.Is(err, io.EOF) {
		v.t.Fatalf("%+v, %v; want the end of the stream", e, err)
	}
}
