package client_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

func TestListsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		var asked []string
		t.serve("a", func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.RequestURI())
			page, _ := strconv.Atoi(r.URL.Query().Get("cursor") + r.URL.Query().Get("after"))
			next := ""
			if page < 2 {
				next = strconv.Itoa(page + 1)
			}
			_, _ = fmt.Fprintf(w, `{"results":[{"item":%d}],"tasks":[{"items":%d}],"hosts":[{"supervised":%d}],"next":%q}`, page, page, page, next)
		})
		c := t.client(client.Config{})
		var got []int
		for r, err := range c.Results(t.Context(), id, client.Query{State: procfleet.StateFailed}) {
			got = append(got, r.Item)
			if err != nil {
				t.Error(err)
			}
		}
		for task, err := range c.Tasks(t.Context(), client.TaskQuery{Query: client.Query{PageSize: 7, Cursor: "1"}}) {
			got = append(got, task.Items)
			if err != nil {
				t.Error(err)
			}
		}
		for agent, err := range c.Hosts(t.Context(), client.HostQuery{Query: client.Query{PageSize: 1}}) {
			got = append(got, agent.Supervised)
			if err != nil {
				t.Error(err)
			}
			if agent.Supervised == 1 {
				break // the client must not request the third page
			}
		}
		if fmt.Sprint(got) != "[0 1 2 1 2 0 1]" {
			t.Errorf("got %v", got)
		}
		want := `/v1/tasks/GSETASK:1:2/results?limit=1000&state=failed
/v1/tasks/GSETASK:1:2/results?cursor=1&limit=1000&state=failed
/v1/tasks/GSETASK:1:2/results?cursor=2&limit=1000&state=failed
/v1/tasks?cursor=1&limit=7
/v1/tasks?cursor=2&limit=7
/v1/hosts?limit=1
/v1/hosts?after=1&limit=1`
		if strings.Join(asked, "\n") != want {
			t.Errorf("asked\n%s", strings.Join(asked, "\n"))
		}
	})
}

func TestAListGoesOnAfterAnOutageInItsMiddle(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		calls := 0
		t.serve("a", func(w http.ResponseWriter, r *http.Request) {
			switch calls++; calls {
			case 1:
				answer(w, http.StatusOK, `{"results":[{"item":0}],"next":"c"}`)
			case 2:
				cut()
			case 3:
				answer(w, http.StatusServiceUnavailable, unavailable)
			default:
				answer(w, http.StatusOK, `{"results":[{"item":1}],"next":""}`)
			}
		})
		items := 0
		for _, err := range t.client(client.Config{}).Results(t.Context(), id, client.Query{}) {
			if err != nil {
				t.Error(err)
			}
			items++
		}
		if items != 2 || calls != 4 {
			t.Errorf("%d items in %d calls", items, calls)
		}
	})
}

func TestAListEndsAfterItsFirstError(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		body   string
		want   error
	}{
		"refused":                     {http.StatusNotFound, `{"error":{"code":"not_found","message":"no such task"}}`, client.ErrNotFound},
		"bad JSON":                    {http.StatusOK, `{"results":[}`, client.ErrBadResponse},
		"wrong types":                 {http.StatusOK, `{"results":{"item":"x"}}`, client.ErrBadResponse},
		"a page that leads to itself": {http.StatusOK, `{"results":[],"next":"c"}`, client.ErrBadResponse},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				t.serve("a", func(w http.ResponseWriter, _ *http.Request) { answer(w, test.status, test.body) })
				var errs []error
				for _, err := range t.client(client.Config{}).Results(t.Context(), id, client.Query{}) {
					errs = append(errs, err)
				}
				if len(errs) != 1 || !errors.Is(errs[0], test.want) {
					t.Errorf("errors %v", errs)
				}
			})
		})
	}
}

// endless is a transport whose answers have no end.
type endless struct{}

func (endless) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r, Body: endless{}}, nil
}
func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

func TestAnAnswerWithoutAnEndIsRefused(t *testing.T) {
	t.Parallel()
	c, err := client.New(client.Config{URL: "http://a", HTTP: &http.Client{Transport: endless{}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Task(t.Context(), id); !errors.Is(err, client.ErrBadResponse) || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("%v", err)
	}
}

func TestEveryFieldOfATaskAndOfAResultIsRead(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		t.serve("a", func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/results") {
				answer(w, http.StatusOK, `{"results":[{"item":8,"host":"0:10.0.0.9","agent_id":"a","namespace":"shop","name":"web","key":"shop:web",
					"action":"start","state":"failed","code":65535,"reason":"command_failed","message":"exit=1","warnings":["w"],
					"status":{"pid":7,"running":true},"finished_at":"2026-11-21T05:35:22.4Z","late":true},{"host":""}],"next":""}`)
				return
			}
			answer(w, http.StatusOK, `{"id":"GSETASK:1:2","state":"finished","counts":{"failed":1,"succeeded":2},"items":3,"actions":["start"],
				"created_at":"2026-11-21T05:35:22Z","deadline":"2026-11-21T05:37:22Z","finished_at":"2026-11-21T05:36:00Z",
				"expires_at":"2026-11-28T05:37:22Z","dialect":"native","application":"shop","business":"2","tomorrow":1}`)
		})
		c := t.client(client.Config{})
		task, err := c.Task(t.Context(), id)
		if err != nil || !task.Done() || task.Succeeded() || task.Business != "2" || task.FinishedAt.Minute() != 36 || task.Actions[0] != procfleet.ActionStart {
			t.Errorf("%+v, %v", task, err)
		}
		page, err := c.ResultPage(t.Context(), id, client.Query{})
		if err != nil || len(page.Items) != 2 {
			t.Fatalf("%+v, %v", page, err)
		}
		if r := page.Items[0]; r.Host.String() != "0:10.0.0.9" || r.Code != procfleet.CodeFailed || r.Status.PID != 7 || !r.Late || r.Warnings[0] != "w" {
			t.Errorf("%+v", r)
		}
		if !page.Items[1].Host.IsZero() {
			t.Errorf("%+v", page.Items[1])
		}
	})
}

func TestTheKindsOfErrors(t *testing.T) {
	t.Parallel()
	kinds := []error{client.ErrInvalid, client.ErrDenied, client.ErrNotFound, client.ErrConflict, client.ErrUnavailable}
	for status, want := range map[int]error{
		400: client.ErrInvalid, 401: client.ErrDenied, 403: client.ErrDenied, 404: client.ErrNotFound, 405: nil, 408: client.ErrUnavailable,
		409: client.ErrConflict, 413: client.ErrInvalid, 429: client.ErrUnavailable, 500: nil, 502: client.ErrUnavailable, 503: client.ErrUnavailable,
	} {
		for _, kind := range kinds {
			e := &client.Error{Status: status}
			if errors.Is(e, kind) != errors.Is(want, kind) {
				t.Errorf("%d is %v: %v", status, kind, errors.Is(e, kind))
			}
			if e.Retryable() != errors.Is(want, client.ErrUnavailable) {
				t.Errorf("%d is retryable: %v", status, e.Retryable())
			}
		}
	}
}

func TestAForeignErrorIsShownInOneLine(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		t.serve("a", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusTeapot, "<html>\n\x1b[31m"+strings.Repeat("é", 1000))
		})
		_, err := t.client(client.Config{}).Task(t.Context(), id)
		if err == nil || !strings.Contains(err.Error(), "418") || strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 300 {
			t.Errorf("%v", err)
		}
	})
}

func TestA404OfAnotherServerIsNoMissingTask(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		t.serve("proxy", http.NotFound)
		t.serve("a", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusNotFound, `{"error":{"code":"not_found","message":"there is no such task"}}`)
		})
		_, err := t.client(client.Config{URL: "http://proxy"}).Wait(t.Context(), id)
		if errors.Is(err, client.ErrNotFound) || !errors.Is(err, client.ErrBadResponse) || !strings.Contains(err.Error(), "http://proxy answered 404") {
			t.Errorf("a proxy: %v", err)
		}
		if _, err := t.client(client.Config{}).Wait(t.Context(), id); !errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrBadResponse) {
			t.Errorf("a dispatcher: %v", err)
		}
	})
}

func TestAnOutageNamesEveryServer(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		busy := `{"error":{"code":"unavailable","message":"the queue is full"}}`
		t.serve("busy", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusServiceUnavailable, busy) })
		_, err := t.client(client.Config{URL: "http://gone,http://busy,http://lost", Patience: -1}).Task(t.Context(), id)
		for _, want := range []string{"http://gone", "the queue is full", "http://lost"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not name %s", err, want)
			}
		}
		if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, client.ErrUnreachable) {
			t.Errorf("%v is not of both kinds", err)
		}
	})
}

func TestHTTPSToAServerWithoutTLSIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		t.serve("a", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "{}") })
		begun := time.Now()
		_, err := t.client(client.Config{URL: "https://a", Patience: time.Minute}).Task(t.Context(), id)
		if took := time.Since(begun); took != 0 || !errors.Is(err, http.ErrSchemeMismatch) {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestABadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "localhost:8080", "ftp://x", "http://", "http://a,", "http://a?x=1", "http://a#x"} {
		if _, err := client.New(client.Config{URL: url}); err == nil || !strings.Contains(err.Error(), "http://127.0.0.1:8080") {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := client.New(client.Config{URL: "http://a", Token: "shop.s\nx"}); err == nil || strings.Contains(err.Error(), "shop") {
		t.Errorf("token: %v", err)
	}
}

func TestReadyAsksOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		calls := 0
		t.serve("b", func(w http.ResponseWriter, r *http.Request) {
			if calls++; calls == 1 {
				answer(w, http.StatusServiceUnavailable, "the store is away")
				return
			}
			answer(w, http.StatusOK, "ready")
		})
		c := t.client(client.Config{URL: "http://gone,http://b"})
		if err := c.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "the store is away") {
			t.Errorf("%v", err)
		}
		if err := c.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The URL of a server may contain a password for a proxy, and callers log errors.
func TestNoErrorShowsThePasswordOfAServer(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		const url = "http://me:quite-secret@"
		t.serve("page", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "<html>") })
		t.serve("proxy", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusNotFound, "<html>") })
		for name, want := range map[string]error{"page": client.ErrBadResponse, "proxy": client.ErrBadResponse, "gone": client.ErrUnreachable} {
			c := t.client(client.Config{URL: url + name, Patience: -1})
			_, submitted := c.Submit(t.Context(), statusOperation())
			_, watched := c.Wait(t.Context(), "GSETASK:1")
			for _, err := range []error{submitted, watched} {
				if !errors.Is(err, want) || strings.Contains(err.Error(), "quite-secret") || !strings.Contains(err.Error(), "@"+name) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
	for _, url := range []string{"ftp://me:quite-secret@a", "http://me:quite secret@a", "http://me:quite,secret@a", "http://me:quite-secret@a?x"} {
		if _, err := client.New(client.Config{URL: url}); err == nil || strings.Contains(err.Error(), "quite") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
