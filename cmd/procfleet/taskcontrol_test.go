package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestTasksArePausedAndResumedOneByOne(t *testing.T) {
	t.Parallel()
	const ended = "GSETASK:20260102030405:1"
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.Path+" "+string(body))
		if strings.Contains(r.URL.Path, ended) {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"error":{"code":"conflict","message":"the task is finished: only an open task can be controlled"}}`)
			return
		}
		fmt.Fprint(w, `{"id":"GSETASK:20260102030405:2","state":"running","items":3,"counts":{"pending":1,"delivered":1,"succeeded":1},"actions":["start"],
			"seq":1,"hold":{"kind":"operator","reason":"errors\n","since":"2026-11-21T05:35:22Z"}}`)
	}))
	t.Cleanup(server.Close)

	code, stdout, stderr := call(t, "task", "pause", ended, "GSETASK:20260102030405:2", "--reason", "errors", "--server", server.URL)
	if code != 1 || !strings.Contains(stderr, ended+": ") || !strings.Contains(stderr, "only an open task can be controlled") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if want := "GSETASK:20260102030405:2 paused: 1 pending, 1 accepted by agents, 1 of 3 ended\n"; stdout != want {
		t.Errorf("said %q, want %q", stdout, want)
	}
	if want := `POST /v1/tasks/GSETASK:20260102030405:2/pause {"reason":"errors"}`; len(asked) != 2 || asked[1] != want {
		t.Errorf("asked %q", asked)
	}
	if code, stdout, _ = call(t, "task", "resume", "GSETASK:20260102030405:2", "--server", server.URL); code != 0 || !strings.HasPrefix(asked[2], "POST /v1/tasks/GSETASK:20260102030405:2/resume") {
		t.Errorf("exit %d: %s, asked %q", code, stdout, asked)
	}
	if code, stdout, _ = call(t, "task", "get", "GSETASK:20260102030405:2", "--server", server.URL); code != 0 || !strings.Contains(stdout, "running,paused") || !strings.Contains(stdout, "since 2026-11-21T05:35:22Z: errors") {
		t.Errorf("exit %d: %s", code, stdout)
	}
}
