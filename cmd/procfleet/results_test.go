package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

func TestTheStateOfSupervisionIsTold(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for want, status := range map[string]procfleet.ProcessStatus{
		"down":                            {},
		"up, pid 7, supervised":           {Running: true, PID: 7, Supervised: true, Phase: "running"},
		"down, given up after 3 failures": {Phase: "fatal", Failures: 3},
		"down, supervised, given up after 3 failures; rare attempt in 9m39s": {
			Supervised: true, Phase: "fatal", Failures: 3, At: now, NextRetryAt: now.Add(9*time.Minute + 39*time.Second),
		},
		"down, supervised, start in 4s after 1 failure": {
			Supervised: true, Phase: "backoff", Failures: 1, At: now, NextRetryAt: now.Add(4 * time.Second),
		},
		"down, supervised, frozen for 1h0m0s": {Supervised: true, At: now, FrozenUntil: now.Add(time.Hour)},
		"up, pid 8":                           {Running: true, PID: 8, At: now, FrozenUntil: now.Add(-time.Hour)},
	} {
		if got := statusText(&status); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAMessageStaysOnItsLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := writeResults(&out, []client.Result{{
		Host: procfleet.Host{Addr: netip.MustParseAddr("10.0.0.1")}, Key: "a:b\tc", State: procfleet.StateFailed, Code: 65535,
		Message: "exit=1; tail:\nfirst\tsecond\r\n\x1b[31mred " + strings.Repeat("x", 1000),
	}})
	text := out.String()
	if err != nil || strings.Count(text, "\n") != 1 || strings.ContainsAny(text, "\t\r\x1b") || len(text) > 400 || !strings.Contains(text, "tail: first second [31mred xx") {
		t.Errorf("%v %q", err, text)
	}
}

// pagesOf serves results one by one, whatever the limit is.
func pagesOf(t *testing.T, n int) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var i int
		_, _ = fmt.Sscan(r.URL.Query().Get("cursor"), &i) // none is the first
		next := ""
		if i+1 < n {
			next = fmt.Sprint(i + 1)
		}
		fmt.Fprintf(w, `{"results":[{"item":%d,"host":"0:10.0.0.%d","key":"k","state":"failed"}],"next":%q}`, i, i, next)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestTaskResultsShowsAllOrSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	server := pagesOf(t, 3)
	for _, more := range [][]string{nil, {"--json"}} {
		_, all, _ := call(t, append([]string{"task", "results", "x", "--server", server.URL}, more...)...)
		if !strings.Contains(all, "10.0.0.0") || !strings.Contains(all, "10.0.0.2") || strings.Contains(all, "more:") {
			t.Errorf("%v\n%s", more, all)
		}
	}
	_, page, _ := call(t, "task", "results", "x", "--server", server.URL, "--limit", "1", "--state", "failed")
	want := "more: procfleet task results x --cursor 1 --limit 1 --state failed --server " + server.URL + "\n"
	if strings.Contains(page, "10.0.0.1") || !strings.HasSuffix(page, want) {
		t.Errorf("got\n%s\nwant the end\n%s", page, want)
	}
}

func TestWhyATaskWasRejectedIsTold(t *testing.T) {
	t.Parallel()
	server := tasksOf(t, `{"id":"x","state":"rejected","reject_reason":"the queue\nis full","business":"2"}`)
	_, stdout, _ := call(t, "task", "get", "x", "--server", server.URL)
	for _, want := range []string{"reason    the queue is full\n", "business  2\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

func TestTheLastPageAsJSONHasAnEmptyNextAsTheAPIHas(t *testing.T) {
	t.Parallel()
	server := pagesOf(t, 1)
	_, stdout, _ := call(t, "task", "results", "x", "--json", "--limit", "1", "--server", server.URL)
	if !strings.Contains(stdout, `"next": ""`) {
		t.Errorf("%s", stdout)
	}
}

func TestAnotherKindOfServerIsNamedWithAdvice(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	_, _, stderr := call(t, "task", "get", "x", "--server", server.URL)
	for _, want := range []string{server.URL + " answered 404", "is --server right?"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in %s", want, stderr)
		}
	}
}

func TestATaskWithoutAFailureIsNotSaidToHaveShownNone(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	done := task("finished", shownGood+1, 0, shownGood+1)
	done.ID = "x"
	if err := writeOutcome(t.Context(), &out, nil, "", done); err != nil || out.String() != "no failures; all: procfleet task results x\n" {
		t.Errorf("%v %q", err, out.String())
	}
}
