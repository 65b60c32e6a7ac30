//go:build compose

package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/test/internal/images"
)

// patience is the timeout for a busy machine.
const patience = 90 * time.Second

// fleet is the running docker-compose.yml.
type fleet struct {
	t           *testing.T
	env         []string
	hosts       []string // of agent-1, agent-2, …
	dispatchers []string // URLs of the dispatchers
	token       string   // of an application
}

// up starts the file as a separate project, which is removed at the end of the
// test.
func up(t *testing.T, with made) *fleet {
	t.Helper()
	f := &fleet{t: t}
	ports := make([]string, 2)
	for i := range ports {
		ports[i] = strconv.Itoa(testenv.FreePort(t))
		f.dispatchers = append(f.dispatchers, "http://127.0.0.1:"+ports[i])
	}
	net := fmt.Sprintf("172.31.%d", 100+rand.N(100))
	for i := range 3 {
		f.hosts = append(f.hosts, fmt.Sprintf("0:%s.%d", net, 11+i))
	}
	f.env = []string{
		"COMPOSE_PROJECT_NAME=procfleet-test-" + strconv.Itoa(os.Getpid()), "COMPOSE_IGNORE_ORPHANS=true",
		"PROCFLEET_IMAGE=" + with.server, "PROCFLEET_AGENT_IMAGE=" + with.agent,
		"PROCFLEET_HTTP_PORT=" + ports[0], "PROCFLEET_HTTP_PORT_2=" + ports[1], "PROCFLEET_NET=" + net,
	}
	t.Cleanup(f.down)
	f.token = "shop." + f.addApplication("shop")
	f.compose("up", "-d")
	return f
}

func (f *fleet) try(args ...string) (string, error) {
	return images.Command{Env: f.env, Dir: testenv.ModuleRoot()}.Run("docker-compose", args...)
}

func (f *fleet) compose(args ...string) string {
	f.t.Helper()
	out, err := f.try(args...)
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// addApplication adds an application with the command in the comments of the file,
// and returns its secret.
func (f *fleet) addApplication(code string) string {
	f.t.Helper()
	out := f.compose("run", "--rm", "--no-deps", "-T", "dispatcher-1", "app", "add", code)
	for line := range strings.Lines(out) { // other output of docker-compose and the command contains spaces
		if line = strings.TrimSpace(line); len(line) == 43 && !strings.Contains(line, " ") {
			return line
		}
	}
	f.t.Fatalf("no secret in the output of app add:\n%s", out)
	return ""
}

// down removes everything. If the test failed, it first logs the output of the
// containers.
func (f *fleet) down() {
	if f.t.Failed() {
		for _, args := range [][]string{{"ps"}, {"logs", "--no-color", "--tail=80"}} {
			out, err := f.try(args...)
			f.t.Logf("docker-compose %s: %v\n%s", args[0], err, out)
		}
	}
	if _, err := f.try("down", "--volumes", "--timeout", "5"); err != nil {
		f.t.Error(err)
	}
}

// container returns the id of a service's container.
func (f *fleet) container(service string) string {
	f.t.Helper()
	return f.compose("ps", "-q", service)
}

// kill sends SIGKILL to services.
func (f *fleet) kill(services ...string) {
	f.t.Helper()
	for _, s := range services {
		docker(f.t, "kill", "--signal", "KILL", f.container(s))
	}
}

func (f *fleet) start(services ...string) {
	f.t.Helper()
	f.compose(append([]string{"start"}, services...)...)
}

// in runs a shell command in a service's container.
func (f *fleet) in(service, command string) string {
	f.t.Helper()
	return docker(f.t, "exec", f.container(service), "/bin/sh", "-c", command)
}

// running reports whether a service runs and, if it has a health check, is healthy.
func (f *fleet) running(service string) bool {
	state := docker(f.t, "inspect", "--format", "{{.State.Status}} {{with .State.Health}}{{.Status}}{{end}}", f.container(service))
	return state == "running" || state == "running healthy"
}

// call sends one request; the status is 0 if there was no response.
func (f *fleet) call(dispatcher, method, path string, body, into any) int {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 15*time.Second)
	defer cancel()
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			f.t.Fatal(err)
		}
		reader = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, dispatcher+path, reader)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return 0
	}
	return resp.StatusCode
}

// wait waits until every dispatcher is ready and lists every host.
func (f *fleet) wait() {
	f.t.Helper()
	for _, dispatcher := range f.dispatchers {
		testenv.Eventually(f.t, patience, func() bool {
			var page struct{ Hosts []struct{ Host string } }
			if f.call(dispatcher, http.MethodGet, "/v1/hosts", nil, &page) != http.StatusOK {
				return pause()
			}
			known := make([]string, len(page.Hosts))
			for i, h := range page.Hosts {
				known[i] = h.Host
			}
			for _, h := range f.hosts {
				if !slices.Contains(known, h) {
					return pause()
				}
			}
			return true
		}, dispatcher+" knows every host")
	}
	for _, service := range []string{"redis", "dispatcher-1", "dispatcher-2"} {
		testenv.Eventually(f.t, patience, func() bool { return f.running(service) || pause() }, service+" is healthy")
	}
}

// pause returns false after a moment. It limits the rate of docker commands and
// requests.
func pause() bool {
	<-time.After(200 * time.Millisecond)
	return false
}

// sample is a process that every host has under this name: a copy of sleep. Its
// start command records that it ran, and is slow.
type sample struct {
	name string
	slow int // duration of the start in seconds
}

func (s sample) dir() string { return "/srv/" + s.name }

func (s sample) spec() map[string]any {
	return map[string]any{
		"namespace": "shop", "name": s.name, "proc_name": s.name, "setup_path": s.dir(), "pid_path": s.dir() + "/pid",
		"control": map[string]any{
			"start":      fmt.Sprintf("echo ran >> starts; sleep %d; ./%s 3600 & echo $! > pid", s.slow, s.name),
			"no_profile": true,
		},
		"alive": map[string]any{"op_timeout": "60s", "start_check_begin": "200ms", "start_check_end": "500ms"},
	}
}

// install copies the samples to every host.
func (f *fleet) install(samples ...sample) {
	f.t.Helper()
	var script strings.Builder
	for _, s := range samples {
		fmt.Fprintf(&script, "mkdir -p %s && cp /bin/sleep %s/%s && ", s.dir(), s.dir(), s.name)
	}
	for i := range f.hosts {
		f.in(fmt.Sprintf("agent-%d", i+1), script.String()+"true")
	}
}

// submit starts the samples on every host as one task, and returns its id.
func (f *fleet) submit(dispatcher string, samples ...sample) string {
	f.t.Helper()
	var operations []map[string]any
	for _, s := range samples {
		operations = append(operations, map[string]any{"action": "start", "process": s.spec(), "hosts": f.hosts})
	}
	var answer struct{ ID string }
	if status := f.call(dispatcher, http.MethodPost, "/v1/tasks", map[string]any{"operations": operations}, &answer); status != http.StatusCreated {
		f.t.Fatalf("POST /v1/tasks at %s: %d", dispatcher, status)
	}
	return answer.ID
}

type task struct {
	State  string
	Items  int
	Counts map[string]int
}

// finished polls the task until it is finished.
func (f *fleet) finished(dispatcher, id string) task {
	f.t.Helper()
	var last task
	testenv.Eventually(f.t, patience, func() bool {
		var now task
		if f.call(dispatcher, http.MethodGet, "/v1/tasks/"+url.PathEscape(id), nil, &now) != http.StatusOK {
			return pause()
		}
		last = now
		return last.State == "finished" || pause()
	}, "task "+id+" is finished")
	return last
}

// check verifies in the containers that each sample was started once and runs.
func (f *fleet) check(samples ...sample) {
	f.t.Helper()
	for i := range f.hosts {
		agent := fmt.Sprintf("agent-%d", i+1)
		for _, s := range samples {
			if lines := strings.Fields(f.in(agent, "cat "+s.dir()+"/starts")); len(lines) != 1 {
				f.t.Errorf("%s: %s was started %d times", agent, s.name, len(lines))
			}
			if comm := f.in(agent, "cat /proc/$(cat "+s.dir()+"/pid)/comm"); comm != s.name {
				f.t.Errorf("%s: the pid of %s has the command name %q", agent, s.name, comm)
			}
		}
	}
}
