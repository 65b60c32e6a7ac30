//go:build compose

package compose

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/test/internal/images"
)

// TestComposeFileSurvivesFaults is one test, because the start of the
// services takes most of the time.
func TestComposeFileSurvivesFaults(t *testing.T) {
	images.Require(t, "docker", "docker-compose")
	f := up(t, buildImages(t))
	f.wait()
	a, b := f.dispatchers[0], f.dispatchers[1]
	f.rejectsUnknownCallers()
	f.redisRejectsUnknownUsers()

	succeeds := func(samples ...sample) {
		t.Helper()
		f.install(samples...)
		f.succeeded(b, f.submit(a, samples...))
		f.check(samples...)
	}
	succeeds(sample{name: "first"})
	first := f.submit(a, sample{name: "first"}) // already runs

	t.Log("two of the three workers and a dispatcher are killed during a task")
	var slow []sample
	for i := range 4 {
		slow = append(slow, sample{name: fmt.Sprintf("slow-%d", i), slow: 4})
	}
	f.install(slow...)
	id := f.submit(a, slow...)
	for i := range f.hosts {
		agent := fmt.Sprintf("agent-%d", i+1)
		testenv.Eventually(t, patience, func() bool {
			return f.in(agent, "cat "+slow[0].dir()+"/starts 2>/dev/null; true") != "" || pause()
		}, agent+" has begun")
	}
	f.kill("worker-1", "worker-2", "dispatcher-1")
	f.start("worker-1", "worker-2", "dispatcher-1")
	f.succeeded(b, id)
	f.check(slow...)
	for _, service := range []string{"worker-1", "worker-2", "dispatcher-1"} {
		testenv.Eventually(t, patience, func() bool { return f.running(service) || pause() }, service+" runs again")
	}
	f.wait()
	// The restarted workers must do this alone.
	f.kill("worker-3")
	succeeds(sample{name: "second"})
	f.start("worker-3")

	for _, service := range []string{"nats", "redis"} {
		t.Logf("%s is restarted", service)
		f.compose("restart", service)
		f.wait()
		if done := f.finished(a, first); done.Counts["unchanged"] != len(f.hosts) {
			t.Errorf("after the restart of %s, an earlier task is %+v", service, done)
		}
		succeeds(sample{name: "after-" + service})
	}
}

// rejectsUnknownCallers checks that unknown callers are rejected, and that an
// application can call that is added while the dispatchers run.
func (f *fleet) rejectsUnknownCallers() {
	f.t.Helper()
	mine := f.token
	defer func() { f.token = mine }()
	var answer any
	for _, token := range []string{"", "shop.guess", "late.none"} {
		f.token = token
		for _, dispatcher := range f.dispatchers {
			if status := f.call(dispatcher, http.MethodGet, "/v1/tasks", nil, &answer); status != http.StatusUnauthorized {
				f.t.Errorf("response to a call with token %q: %d %v", token, status, answer)
			}
		}
	}
	f.token = "late." + f.addApplication("late")
	for _, dispatcher := range f.dispatchers {
		testenv.Eventually(f.t, patience, func() bool {
			return f.call(dispatcher, http.MethodGet, "/v1/tasks", nil, &answer) == http.StatusOK || pause()
		}, dispatcher+" knows the application")
	}
}

// redisRejectsUnknownUsers checks that clients without a Redis user can neither read
// nor write.
func (f *fleet) redisRejectsUnknownUsers() {
	f.t.Helper()
	for args, want := range map[string]string{
		"keys *":                            "NOAUTH",
		"set pf:stranger 1":                 "NOAUTH",
		"--user health --pass none keys *":  "NOPERM",
		"--user worker --pass guess keys *": "WRONGPASS",
	} {
		command := append([]string{"exec", f.container("redis"), "redis-cli"}, strings.Fields(args)...)
		if said := docker(f.t, command...); !strings.Contains(said, want) {
			f.t.Errorf("redis-cli %s: reply %q, want %s", args, said, want)
		}
	}
}

// succeeded waits for the end of a task, of which every item must have succeeded.
func (f *fleet) succeeded(dispatcher, id string) {
	f.t.Helper()
	if done := f.finished(dispatcher, id); done.Counts["succeeded"] != done.Items || done.Items == 0 {
		var why any
		f.call(dispatcher, http.MethodGet, "/v1/tasks/"+url.PathEscape(id)+"/results", nil, &why)
		f.t.Fatalf("task %s ended with %v of %d items: %v", id, done.Counts, done.Items, why)
	}
}
