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

func TestAPlannedControlChangesNothing(t *testing.T) {
	t.Parallel()
	const id = "GSETASK:20260102030405:2"
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String())
		switch {
		case strings.HasSuffix(r.URL.Path, "/retry"):
			fmt.Fprint(w, `{"items":1,"hosts":1,"operations":[{"action":"kill","name":"web","process":null,"hosts":[{"host":"0:10.0.0.1","alive":true,"newer_task":"GSETASK:20260102030405:9"}]}],"problems":[]}`)
		case strings.HasSuffix(r.URL.Path, "1"):
			fmt.Fprint(w, `{"id":"GSETASK:20260102030405:1","state":"finished","items":1}`)
		default:
			fmt.Fprint(w, `{"id":"`+id+`","state":"running","items":3,"counts":{"pending":1,"delivered":1,"succeeded":1},"actions":["start"]}`)
		}
	}))
	t.Cleanup(server.Close)

	code, stdout, stderr := call(t, "task", "cancel", id, "GSETASK:20260102030405:1", "--dry-run", "--server", server.URL)
	if want := id + " would be canceled: 1 pending, 1 accepted by agents, 1 of 3 ended\n"; code != 1 || stdout != want || !strings.Contains(stderr, "the task is finished") {
		t.Errorf("exit %d: %q, %s", code, stdout, stderr)
	}
	if code, stdout, stderr = call(t, "task", "retry", id, "--plan", "--server", server.URL); code != 0 || !strings.Contains(stdout, "NEWER TASK") || !strings.Contains(stdout, "GSETASK:20260102030405:9") {
		t.Errorf("exit %d: %s, %s", code, stdout, stderr)
	}
	for _, request := range asked {
		if strings.HasPrefix(request, "POST") && !strings.HasSuffix(request, "/retry?plan=true") {
			t.Errorf("asked %q", request)
		}
	}
}

func TestSomeHostsOfATaskAreCanceled(t *testing.T) {
	t.Parallel()
	const id = "GSETASK:20260102030405:2"
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests = append(requests, r.Method+" "+r.URL.String()+" "+string(body))
		switch r.URL.Query().Get("state") {
		case "pending":
			fmt.Fprint(w, `{"results":[{"item":0,"host":"0:10.0.0.1","name":"web","action":"start","state":"pending"},{"item":1,"host":"0:10.0.0.2","name":"web","action":"start","state":"pending"}]}`)
		case "delivered":
			fmt.Fprint(w, `{"results":[]}`)
		default:
			fmt.Fprint(w, `{"id":"`+id+`","state":"running","items":3,"counts":{"pending":2,"succeeded":1},"actions":["start"],"seq":1}`)
		}
	}))
	t.Cleanup(server.Close)

	code, stdout, stderr := call(t, "task", "cancel", id, "--host", "0:10.0.0.1", "--plan", "--server", server.URL)
	if code != 0 || !strings.Contains(stdout, "0:10.0.0.1") || strings.Contains(stdout, "0:10.0.0.2") || len(requests) != 2 {
		t.Errorf("plan: exit %d: %s, %s, requests %q", code, stdout, stderr, requests)
	}
	code, stdout, stderr = call(t, "task", "cancel", id, "--host", "0:10.0.0.1", "--interrupt", "--server", server.URL)
	if want := id + " canceled on 1 of its hosts: 2 pending, 0 accepted by agents, 1 of 3 ended\n"; code != 0 || stdout != want {
		t.Errorf("exit %d: %q, %s", code, stdout, stderr)
	}
	if want := `POST /v1/tasks/` + id + `/cancel {"mode":"interrupt","hosts":["0:10.0.0.1"]}`; len(requests) != 3 || requests[2] != want {
		t.Errorf("requests %q, want %q", requests, want)
	}
	if code, _, stderr = call(t, "task", "cancel", id, "--host", "nowhere", "--server", server.URL); code != 2 || !strings.Contains(stderr, "--host") {
		t.Errorf("no host: exit %d: %s", code, stderr)
	}
}
