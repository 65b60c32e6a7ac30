//go:build linux

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// failure is the response of an API to one kind of failure.
type failure struct {
	status int
	code   any    // nil for a response without a code
	says   string // text in the response
}

// apiFamily is one API: its paths for operations and results, and its failures.
type apiFamily struct {
	name            string
	operate, result string // method and path
	good            string
	ask             func(task string) string // returns the body of result
	method          string                   // a method that is not allowed
	nowhere         string                   // a path that does not exist

	malformed, form, missing, unknown, large, noMethod, noPath, away failure
}

func apiFamilies() []apiFamily {
	const (
		process = `"meta":{"namespace":"e2e","name":"web"},"spec":{"identity":{"proc_name":"nginx","setup_path":"/srv"}}`
		gse     = `{` + process + `,"op_type":2,"hosts":[{"ip":"10.99.0.1","bk_cloud_id":0}]}`
		job     = `{"bk_scope_type":"biz","bk_scope_id":"2","op_type":2,"process_infos":[{"setup_path":"/srv","proc_name":"nginx","pid_path":"/srv/p.pid","ip_list":[{"bk_cloud_id":0,"ip":"10.99.0.1"}]}]}`
		native  = `{"action":"status","process":{"namespace":"e2e","name":"web","proc_name":"nginx"},"hosts":["0:10.99.0.1"]}`
		unread  = "Request JSON string is wrong in format, which cannot be analyzed."
	)
	askGSE := func(task string) string { return `{"task_id":"` + task + `"}` }
	askJob := func(task string) string { return `{"bk_biz_id":2,"bk_gse_taskid":"` + task + `"}` }
	none := failure{404, nil, `"message":"The content does not exist"`}
	var all []apiFamily
	for name, root := range map[string]string{"the ESB": "/api/c/compapi/", "the ESB's root": "/c/compapi/"} {
		all = append(all, apiFamily{
			name: "GSE at " + name, operate: "POST " + root + "v2/gse/operate_proc_v2/", result: "POST " + root + "v2/gse/get_proc_operate_result_v2/",
			good: gse, ask: askGSE, method: http.MethodPut, nowhere: root + "v2/gse/operate_proc_v3/",
			malformed: failure{200, 1306000, unread}, form: failure{200, 1306406, "meta"}, missing: failure{200, 1306406, "hosts"},
			unknown: failure{200, 1306406, "task_id"}, large: failure{200, 1306406, "body"}, noMethod: none, noPath: none,
			away: failure{503, 1306201, "Component request third-party system [GSE]"},
		}, apiFamily{
			name: "Job at " + name, operate: "POST " + root + "v2/job/operate_process/", result: "GET " + root + "v2/jobv3/get_proc_result/",
			good: job, ask: askJob, method: http.MethodDelete, nowhere: root + "v2/job/operate_processes/",
			malformed: failure{200, 1306000, unread}, form: failure{200, 1241002, "bk_biz_id"}, missing: failure{200, 1241002, "ip_list"},
			unknown: failure{200, 1241002, "bk_gse_taskid"}, large: failure{200, 1241002, "body"}, noMethod: none, noPath: none,
			away: failure{503, 1210001, "GSE is not available"},
		})
	}
	all = append(all, apiFamily{
		name: "GSE behind an ESB", operate: "POST /procapi/v2/proc/operate", result: "GET /procapi/v2/proc/operate",
		good: gse, ask: askGSE, method: http.MethodPut, nowhere: "/procapi/v3/proc/operate",
		malformed: failure{200, 1306406, unread}, form: failure{200, 1306406, "meta"}, missing: failure{200, 1306406, "hosts"},
		unknown: failure{200, 1306406, "task_id"}, large: failure{200, 1306406, "body"},
		noMethod: failure{405, 1306404, "PUT"}, noPath: failure{404, 1306404, "/procapi/v3"}, away: failure{503, 1306201, "GSE"},
	}, apiFamily{
		name: "Job behind an ESB", operate: "POST /api/job/v2/job-execute/operate_process", result: "POST /esb/api/v3/get_proc_result",
		good: job, ask: askJob, method: http.MethodGet, nowhere: "/api/job/v2/job-execute/operate_processes",
		malformed: failure{200, 1241002, unread}, form: failure{200, 1241002, "bk_biz_id"}, missing: failure{200, 1241002, "ip_list"},
		unknown: failure{200, 1241002, "bk_gse_taskid"}, large: failure{200, 1241002, "body"},
		noMethod: failure{405, 1241002, "GET"}, noPath: failure{404, 1241002, "operate_processes"}, away: failure{503, 1210001, "GSE is not available"},
	})
	for name, base := range map[string]string{"the gateway": "/api/bk-gse/prod/", "the root": "/", "the ESB as a gateway": "/api/c/compapi/v2/gse/"} {
		all = append(all, apiFamily{
			name: "GSE at " + name, operate: "POST " + base + "api/v2/proc/operate_proc_v2/", result: "POST " + base + "api/v2/proc/get_proc_operate_result_v2",
			good: gse, ask: askGSE, method: http.MethodGet, nowhere: base + "api/v2/proc/operate_proc_v3",
			malformed: failure{200, 1306406, "Parameters error"}, form: failure{200, 1306406, "meta"}, missing: failure{200, 1306406, "hosts"},
			unknown: failure{200, 1306406, "task_id"}, large: failure{413, 1641301, "BODY_SIZE_LIMIT_EXCEED"},
			noMethod: failure{404, 1640401, `API not found [method=\"GET\" path=\"` + base}, noPath: failure{404, 1640401, `API not found [method=\"POST\" path=\"` + base},
			away: failure{503, 1650300, "SERVICE_UNAVAILABLE"},
		})
	}
	return append(all, apiFamily{
		name: "native", operate: "POST /v1/tasks", result: "GET /v1/tasks/{id}/results",
		good: native, ask: func(string) string { return "" }, method: http.MethodDelete, nowhere: "/v2/tasks",
		malformed: failure{400, "invalid_request", ""}, form: failure{400, "invalid_request", "is not a JSON object"}, missing: failure{400, "invalid_request", "hosts"},
		unknown: failure{404, "not_found", ""}, large: failure{413, "too_large", "body"},
		noMethod: failure{405, "method_not_allowed", "DELETE"}, noPath: failure{404, "not_found", "/v2/tasks"}, away: failure{503, "unavailable", ""},
	})
}

// without returns a valid body without the hosts.
func (d *apiFamily) without() string {
	return strings.NewReplacer(`"hosts":`, `"x":`, `"ip_list":`, `"x":`).Replace(d.good)
}

// send sends a body unchanged and without Content-Type. It is safe for concurrent
// use; an error fails the test and returns an empty response.
func (c *client) send(way, body string) (status int, header http.Header, answer string) {
	c.t.Helper()
	method, path, _ := strings.Cut(way, " ")
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Errorf("%s: %v", way, err)
		return 0, nil, ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Errorf("%s: %v", way, err)
		return 0, nil, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Errorf("%s: %v", way, err)
		return 0, nil, ""
	}
	asDescribed(c.t, req, resp, text)
	return resp.StatusCode, resp.Header, string(text)
}

// fails sends a request that must fail in the form of the API: result false, no
// data, and a code; or the native error; or, for paths that the ESB itself does not
// know, neither a code nor a request id.
func (c *client) fails(d *apiFamily, what, way, body string, want failure) http.Header {
	c.t.Helper()
	status, header, text := c.send(way, body)
	var answer struct {
		Result    *bool
		Code      any
		Message   string
		Data      json.RawMessage
		RequestID *string `json:"request_id"`
		Error     *struct{ Code, Message string }
	}
	problem := json.Unmarshal([]byte(text), &answer)
	code := answer.Code
	if number, is := code.(float64); is {
		code = int(number)
	}
	formed := answer.Result != nil && !*answer.Result && string(answer.Data) == "null" && answer.Message != "" && (want.code != nil || answer.RequestID == nil)
	if native := answer.Error; native != nil {
		code, formed = native.Code, answer.Result == nil && native.Message != ""
	}
	if problem != nil || !formed || status != want.status || code != want.code || !strings.Contains(text, want.says) {
		c.t.Errorf("%s, %s: %d %s, want %d, %v and %q", d.name, what, status, text, want.status, want.code, want.says)
	}
	if kind := header.Get("Content-Type"); kind != "application/json; charset=utf-8" || header.Get("X-Bkapi-Request-Id") == "" {
		c.t.Errorf("%s, %s: %v", d.name, what, header)
	}
	return header
}

// TestEveryAPIFailsInItsForm sends every kind of invalid request to every
// API of a running system, with valid credentials.
func TestEveryAPIFailsInItsForm(t *testing.T) {
	t.Parallel()
	const limit = 4096
	u := newUp(t, "--agent=false", "--max-body", "4096")
	u.start()
	const nobody = "GSETASK:20180315180551:1000"
	for _, d := range apiFamilies() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			c := &client{t: t, url: u.c.url}
			method, path, _ := strings.Cut(d.operate, " ")
			if status, _, text := c.send(d.operate, d.good); status/100 != 2 || strings.Contains(text, `"result":false`) {
				t.Fatalf("valid request: %d %s", status, text)
			}
			c.fails(&d, "no JSON", d.operate, `{"op_type":`, d.malformed)
			c.fails(&d, "JSON and more", d.operate, d.good+"}", d.malformed)
			c.fails(&d, "a form", d.operate, "bk_app_code=x&bk_app_secret=y", d.form)
			c.fails(&d, "an array", d.operate, "["+d.good+"]", d.form)
			c.fails(&d, "nothing", d.operate, "", d.form)
			c.fails(&d, "no hosts", d.operate, d.without(), d.missing)
			c.fails(&d, "a large body", d.operate, `{"x":"`+strings.Repeat("x", limit)+`"}`, d.large)
			c.fails(&d, "no such method", d.method+" "+path, d.good, d.noMethod)
			c.fails(&d, "no such path", method+" "+d.nowhere, d.good, d.noPath)
			c.fails(&d, "no such task", d.read(nobody), d.ask(nobody), failure{d.unknown.status, d.unknown.code, "there is no such task"})
			c.fails(&d, "no task id", d.read("x"), d.ask("x"), d.unknown)
		})
	}
}

// read returns the route to the results of a task.
func (d *apiFamily) read(task string) string { return strings.ReplaceAll(d.result, "{id}", task) }

// TestEveryAPIReportsUnavailableServers checks that without NATS no task is accepted but
// stored data is readable, and that without the store all requests fail. Every
// response must have Retry-After.
func TestEveryAPIReportsUnavailableServers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("", "--submissions=false")
	stored := c.submit(json.RawMessage(apiFamilies()[len(apiFamilies())-1].good))
	comeAgain := func(d *apiFamily, what, way, body string) {
		t.Helper()
		if header := c.fails(d, what, way, body, d.away); header.Get("Retry-After") == "" {
			t.Errorf("%s, %s: no Retry-After in %v", d.name, what, header)
		}
	}
	f.broker.Kill()
	testenv.Eventually(t, finishTimeout, func() bool { status, _, _ := c.send("GET /readyz", ""); return status == http.StatusServiceUnavailable }, "the dispatcher reports that NATS is unavailable")
	everyAPI(func(d *apiFamily) {
		comeAgain(d, "operating without NATS", d.operate, d.good)
		if status, _, text := c.send(d.read(stored), d.ask(stored)); status != http.StatusOK || strings.Contains(text, `"result":false`) {
			t.Errorf("%s, reading without NATS: %d %s", d.name, status, text)
		}
	})
	f.redis.Stop(t)
	everyAPI(func(d *apiFamily) {
		comeAgain(d, "reading without the store", d.read(stored), d.ask(stored))
		if status, header, text := c.send(d.operate, d.good); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !strings.Contains(text, "nothing was done") {
			t.Errorf("%s, operating without the store: %d %v %s, want 503 and a message that nothing was done", d.name, status, header, text)
		}
	})
}
