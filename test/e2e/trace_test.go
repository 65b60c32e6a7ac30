//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// tracedRoles starts a dispatcher and a worker with further flags.
func (f *fleet) tracedRoles(flags ...string) (c *client, roles []*testenv.Child) {
	f.t.Helper()
	addr := testenv.FreeAddress(f.t)
	common := append([]string{"--nats", f.broker.URL, "--fleet-key", f.keys.file, "--redis", f.redis.URL()}, flags...)
	dispatcher := testenv.StartChild(f.t, nil, f.programs.procfleet, append([]string{"dispatcher", "--http", addr}, common...)...)
	worker := testenv.StartChild(f.t, nil, f.programs.procfleet, append([]string{"worker"}, common...)...)
	dispatcher.WaitHTTP(f.t, startTimeout, "http://"+addr+"/readyz")
	return &client{t: f.t, url: "http://" + addr}, []*testenv.Child{dispatcher, worker}
}

// end stops roles gracefully, which sends the pending spans.
func end(t *testing.T, roles []*testenv.Child) {
	t.Helper()
	for _, role := range roles {
		role.Signal(syscall.SIGTERM)
	}
	for _, role := range roles {
		if code := role.Wait(t, startTimeout); code != 0 {
			t.Errorf("exit %d after SIGTERM, want 0", code)
		}
	}
}

// submitIn submits an operation with a caller's trace context.
func (c *client) submitIn(traceparent string, body any) string {
	c.t.Helper()
	c.header = http.Header{"Traceparent": {traceparent}}
	defer func() { c.header = nil }()
	return c.submit(body)
}

const (
	callerTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerSpan  = "00f067aa0ba902b7"
)

func TestOneOperationIsOneTraceThroughEveryProcess(t *testing.T) {
	t.Parallel()
	f, into := newFleet(t, 2), startCollector(t)
	c, roles := f.tracedRoles("--otlp", into.URL)
	f.waitListed(c, 2)
	processes := f.procs.grid(f.hosts(2), 1, "traced")
	id := c.submitIn("00-"+callerTrace+"-"+callerSpan+"-01", operation("start", processes))
	if last := c.wait(id); last.Counts["succeeded"] != 2 {
		t.Fatalf("counts %v", last.Counts)
	}
	var shown struct {
		TraceID string `json:"trace_id"`
	}
	if c.get("/v1/tasks/"+id, &shown); shown.TraceID != callerTrace {
		t.Errorf("the task has trace_id %q, want that of its caller", shown.TraceID)
	}
	f.waitFinishedEvent(id)
	end(t, roles)

	spans := into.all()
	want := map[string]int{
		"procfleet-dispatcher: HTTP native":      1,
		"procfleet-dispatcher: task accept":      1,
		"procfleet-dispatcher: store policies":   1,
		"procfleet-dispatcher: store create":     1,
		"procfleet-dispatcher: store register":   1,
		"procfleet-dispatcher: chunks publish":   1,
		"procfleet-dispatcher: store dispatched": 1,
		"procfleet-worker: chunk deliver":        1,
		"procfleet-worker: store begin":          1,
		"procfleet-worker: store presences":      1,
		"procfleet-worker: host ask":             2,
		"procfleet-worker: store delivered":      1,
		"procfleet-agent: agent operate":         2,
		"procfleet-worker: results record":       2,
		"procfleet-worker: task notify":          1,
		"procfleet-worker: store notified":       1,
	}
	got := named(spans)
	for name, n := range want { // on a slow machine a step may take several attempts
		if got[name] < n {
			t.Errorf("%d spans %q, want %d", got[name], name, n)
		}
	}
	for name := range got {
		if want[name] == 0 {
			t.Errorf("unexpected span %q", name)
		}
	}
	checkTree(t, spans)
	if !strings.Contains(roles[0].Output(), `"trace_id":"`+callerTrace+`"`) {
		t.Errorf("no line of the dispatcher's log has the trace id:\n%s", roles[0].Output())
	}
	for _, s := range spans {
		if s.Name == "agent operate" && (s.attribute("procfleet.clock") != "agent" || s.EndTimeUnixNano <= s.StartTimeUnixNano) {
			t.Errorf("span of an agent: %v", s)
		}
	}
}

// checkTree checks that spans are one trace below the caller's span.
func checkTree(t *testing.T, spans []span) {
	t.Helper()
	parents := map[string]string{ // child to parent
		"HTTP native": "", "task accept": "HTTP native", "store policies": "task accept", "store create": "task accept", "store register": "task accept",
		"chunks publish": "task accept", "store dispatched": "task accept", "chunk deliver": "chunks publish",
		"store begin": "chunk deliver", "store presences": "chunk deliver", "host ask": "chunk deliver",
		"store delivered": "chunk deliver", "agent operate": "host ask", "results record": "host ask",
		"task notify": "task accept", "store notified": "task notify",
	}
	byID := map[string]string{}
	for _, s := range spans {
		byID[s.id()] = s.Name
	}
	for _, s := range spans {
		if s.trace() != callerTrace {
			t.Errorf("span %q is in trace %s", s.Name, s.trace())
		}
		if want, known := parents[s.Name]; known && byID[s.parent()] != want {
			t.Errorf("parent of span %q is %q (%s), want %q", s.Name, byID[s.parent()], s.parent(), want)
		}
		if s.Name == "HTTP native" && s.parent() != callerSpan {
			t.Errorf("parent of the first span is %q, want the caller's %q", s.parent(), callerSpan)
		}
	}
}

func TestABigTaskHasFewSpans(t *testing.T) {
	t.Parallel()
	const hosts = 1000
	f, into := newFleet(t, 0), startCollector(t)
	c, roles := f.tracedRoles("--otlp", into.URL)
	agents := testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-bench"), "simulate", "--agents", strconv.Itoa(hosts), "--nats", f.broker.URL, "--fleet-key", f.keys.file)
	agents.WaitOutput(t, startTimeout, "ready")
	names := make([]string, 0, hosts+20)
	for i := range hosts + 20 { // the last ones have no agent
		names = append(names, fmt.Sprintf("0:10.0.%d.%d", i>>8, i&255))
	}
	id := c.submit(map[string]any{"operations": []map[string]any{{
		"action": "status", "hosts": names, "process": map[string]any{"namespace": "e2e", "name": "app", "proc_name": "app", "setup_path": "/opt/app"},
	}}})
	if last := c.wait(id); last.Counts["succeeded"] != hosts || last.Counts["unreachable"] != 20 {
		t.Fatalf("counts %v", last.Counts)
	}
	f.waitFinishedEvent(id)
	end(t, roles)

	spans := into.of(id)
	counts := named(spans)
	const chunks = 4
	if n := counts["procfleet-worker: chunk deliver"]; n < chunks {
		t.Errorf("%d chunks were delivered, want at least %d", n, chunks)
	}
	if asked := counts["procfleet-worker: host ask"]; asked < chunks+1 || asked > chunks*(1+8) {
		t.Errorf("%d hosts have spans, want the first host of each of %d chunks and up to 8 failures in each", asked, chunks)
	}
	if n := counts["procfleet-agent: agent operate"]; n < chunks || n > 2*chunks {
		t.Errorf("%d spans of agents, want about one for the first host of each of %d chunks", n, chunks)
	}
	if most := 200; len(spans) > most {
		t.Errorf("%d spans, want at most %d: %v", len(spans), most, counts)
	}
}

func TestAnUnavailableCollectorDelaysNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	nobody := "http://" + testenv.FreeAddress(t)
	c, roles := f.tracedRoles("--otlp", nobody)
	f.waitListed(c, 1)
	for i := range 5 {
		id := c.submit(operation("start", f.procs.grid(f.hosts(1), 1, "away"+strconv.Itoa(i))))
		if last := c.wait(id); last.Counts["succeeded"] != 1 {
			t.Fatalf("counts %v", last.Counts)
		}
	}
	end(t, roles)
}

func TestRatioZeroAndUnsampledCallersSendNothing(t *testing.T) {
	t.Parallel()
	f, into := newFleet(t, 1), startCollector(t)
	c, roles := f.tracedRoles("--otlp", into.URL, "--trace-ratio", "0")
	f.waitListed(c, 1)
	c.wait(c.submit(operation("start", f.procs.grid(f.hosts(1), 1, "zero"))))
	end(t, roles)

	c, roles = f.tracedRoles("--otlp", into.URL)
	c.wait(c.submitIn("00-"+callerTrace+"-"+callerSpan+"-00", operation("start", f.procs.grid(f.hosts(1), 1, "not"))))
	end(t, roles)
	if spans := into.all(); len(spans) > 0 {
		t.Errorf("spans %v", named(spans))
	}
}

func TestTheStandardVariablesSelectTheCollector(t *testing.T) {
	t.Parallel()
	f, into := newFleet(t, 1), startCollector(t)
	addr := testenv.FreeAddress(t)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + into.URL, "OTEL_RESOURCE_ATTRIBUTES=service.name=shop-fleet"}
	dispatcher := testenv.StartChild(t, env, f.programs.procfleet,
		"dispatcher", "--http", addr, "--nats", f.broker.URL, "--fleet-key", f.keys.file, "--redis", f.redis.URL())
	dispatcher.WaitHTTP(t, startTimeout, "http://"+addr+"/readyz")
	c := &client{t: t, url: "http://" + addr}
	c.submit(operation("status", f.procs.grid(f.hosts(1), 1, "env")))
	end(t, []*testenv.Child{dispatcher})
	for name := range named(into.all()) {
		if !strings.HasPrefix(name, "shop-fleet: ") {
			t.Errorf("span %s is not of the service that the environment names", name)
		}
	}
	if len(into.all()) == 0 {
		t.Error("no spans arrived")
	}
}
