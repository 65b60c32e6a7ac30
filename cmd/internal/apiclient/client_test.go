package apiclient_test

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/apiclient"
)

// serve returns a client of a server that answers with handler.
func serve(t *testing.T, handler http.HandlerFunc) *apiclient.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := apiclient.New(server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestSubmitSendsTheDocumentedBody(t *testing.T) {
	t.Parallel()
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		want := `{"action":"start","process":{"proc_name":"x"},"hosts":["0:10.0.0.1"],"timeout":"1m30s"}`
		if r.Method != http.MethodPost || r.URL.Path != "/v1/tasks" || r.Header.Get("Idempotency-Key") != "k" || string(body) != want {
			t.Errorf("%s %s %v\n%s", r.Method, r.URL, r.Header, body)
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":"GSETASK:1"}`)
	})
	id, err := client.Submit(t.Context(), apiclient.Submission{
		Action: procfleet.ActionStart, Process: json.RawMessage(`{"proc_name":"x"}`),
		Hosts: []string{"0:10.0.0.1"}, Timeout: procfleet.Seconds(90),
	}, "k")
	if err != nil || id != "GSETASK:1" {
		t.Errorf("id %q, %v", id, err)
	}
}

func TestABusyServerIsAskedAgainUnderTheSameKey(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "k" {
			t.Errorf("key %q", r.Header.Get("Idempotency-Key"))
		}
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{"id":"GSETASK:1"}`)
	})
	if _, err := client.Submit(t.Context(), apiclient.Submission{}, "k"); err != nil || calls.Load() != 2 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
}

func TestARefusalIsToldOnceWithItsField(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"code":"invalid_request","message":"is empty","field":"process.proc_name"}}`)
	})
	_, err := client.Submit(t.Context(), apiclient.Submission{}, "k")
	var refusal *apiclient.Error
	if !errors.As(err, &refusal) || refusal.Status != http.StatusBadRequest || err.Error() != "process.proc_name: is empty" || calls.Load() != 1 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
}

func TestPagesAndCursorsAreAskedFor(t *testing.T) {
	t.Parallel()
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.RequestURI(); got != "/v1/tasks/GSETASK:1:2/results?cursor=c&limit=7&state=failed" {
			t.Errorf("asked %s", got)
		}
		_, _ = io.WriteString(w, `{"results":[{"item":3,"code":65535,"state":"failed"}],"next":"d"}`)
	})
	page, err := client.Results(t.Context(), "GSETASK:1:2", apiclient.Page{State: procfleet.StateFailed, Limit: 7, Cursor: "c"})
	if err != nil || page.Next != "d" || len(page.Results) != 1 || page.Results[0].Item != 3 {
		t.Errorf("%+v, %v", page, err)
	}
}

func TestWatchEndsWhenTheTaskIsDone(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case 1:
			_, _ = io.WriteString(w, `{"id":"x","state":"running","finished_at":null}`)
		case 2: // a dispatcher that restarts is no reason to give up
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = io.WriteString(w, `{"id":"x","state":"finished","finished_at":"2026-01-02T03:04:05Z"}`)
		}
	})
	var states []string
	outages := 0
	last, err := client.Watch(t.Context(), "x", func(task apiclient.Task) { states = append(states, task.State) }, func(error) { outages++ })
	if err != nil || last.FinishedAt.IsZero() || strings.Join(states, " ") != "running finished" || outages != 1 {
		t.Errorf("%+v after %v and %d outages, %v", last, states, outages, err)
	}
}

func TestWatchSurvivesARestartOfTheServerAndHasAnEnd(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"x","state":"finished"}`)
	})
	first := httptest.NewServer(handler)
	address := first.Listener.Addr().String()
	first.Close()
	client, err := apiclient.New("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	var second *httptest.Server
	last, err := client.Watch(ctx, "x", func(apiclient.Task) {}, func(error) {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		second = httptest.NewUnstartedServer(handler)
		_ = second.Listener.Close() // it was to find an address
		second.Listener = listener
		second.Start()
	})
	if err != nil || !last.Done() {
		t.Errorf("%+v, %v", last, err)
	}
	second.Close()
	client.Patience = 100 * time.Millisecond
	if _, err := client.Watch(ctx, "x", func(apiclient.Task) {}, func(error) {}); !errors.Is(err, apiclient.ErrUnreachable) {
		t.Errorf("without a server: %v", err)
	}
}

func TestSubmitSaysWhenATaskMayHaveBeenMade(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"error":{"code":"unknown","message":"m","task":"GSETASK:1:2"}}`: true,
		`{"error":{"code":"unavailable","message":"m"}}`:                  false,
	} {
		client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, body)
		})
		if _, err := client.Submit(t.Context(), apiclient.Submission{}, "k"); err == nil || errors.Is(err, apiclient.ErrUnknown) != want {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestAnotherKindOfServerIsNoticed(t *testing.T) {
	t.Parallel()
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	if _, err := client.Tasks(t.Context(), apiclient.Page{}); err == nil || !strings.Contains(err.Error(), "--server") {
		t.Errorf("error %v", err)
	}
}

func TestABadURLIsRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "localhost:8080", "ftp://x", "http://"} {
		if _, err := apiclient.New(url); err == nil {
			t.Errorf("%q was accepted", url)
		}
	}
}
