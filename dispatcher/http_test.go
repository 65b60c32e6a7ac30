package dispatcher

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/openapi/openapitest"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

const (
	multiPath  = "/api/c/compapi/v2/gse/operate_proc_multi/"
	v2Path     = "/api/c/compapi/v2/gse/operate_proc_v2/"
	resultPath = "/api/c/compapi/v2/gse/get_proc_operate_result_v2/"
	jobPath    = "/api/c/compapi/v2/job/operate_process/"
	jobGetPath = "/api/c/compapi/v2/job/get_proc_result/"
	nativePath = "/v1/tasks"

	backendPath = "/procapi/v2/proc/operate"
	gatewayPath = "/api/bk-gse/prod/api/v2/proc/operate_proc_v2/"
)

// testServer is a dispatcher behind a real HTTP server.
type testServer struct {
	t     *testing.T
	url   string
	store taskstore.Queries
	// described is the description against which every response is checked; nil = no check.
	described *openapitest.Document
}

func startServer(t *testing.T, cfg Config, store Store, queue Queue) *testServer {
	t.Helper()
	d, err := New(cfg, store, queue)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(d.Handler())
	t.Cleanup(server.Close)
	return &testServer{t: t, url: server.URL, store: store, described: description(t)}
}

// answer is the response to a request.
type answer struct {
	status int
	header http.Header
	text   string
	body   map[string]any
}

// call sends a request and returns the response. If that fails it marks the test as failed. It may
// be called from any goroutine.
func (d *testServer) call(method, path, body string, header ...string) answer {
	d.t.Helper()
	a, err := d.try(method, path, body, header)
	if err != nil {
		d.t.Errorf("%s %s: %v in %q", method, path, err, a.text)
	}
	return a
}

func (d *testServer) try(method, path, body string, header []string) (answer, error) {
	return d.tryWith(http.DefaultClient, method, path, body, header)
}

func (d *testServer) tryWith(client *http.Client, method, path, body string, header []string) (answer, error) {
	r, err := http.NewRequestWithContext(d.t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, header: resp.Header, text: string(text)}
	if err == nil && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		err = json.Unmarshal(text, &a.body)
	}
	if err == nil && d.described != nil {
		err = asDescribed(d.described, r, body, &a)
	}
	return a, err
}

// tasks returns the number of tasks.
func (d *testServer) tasks() int {
	d.t.Helper()
	tasks, err := d.store.Tasks(d.t.Context(), taskstore.TaskQuery{Limit: 1000})
	if err != nil {
		d.t.Fatal(err)
	}
	return len(tasks)
}

func gseBody(op int, hosts ...string) string {
	var list []string
	for _, h := range hosts {
		list = append(list, fmt.Sprintf(`{"ip":%q,"bk_cloud_id":0}`, h))
	}
	return fmt.Sprintf(`{"meta":{"namespace":"ns","name":"web"},"op_type":%d,"hosts":[%s],
		"spec":{"identity":{"proc_name":"nginx","setup_path":"/srv"}}}`, op, strings.Join(list, ","))
}

func jobBody(ip string) string {
	return fmt.Sprintf(`{"bk_biz_id":1,"op_type":2,"process_infos":[{"setup_path":"/srv","proc_name":"nginx","pid_path":"/srv/p.pid",
		"ip_list":[{"bk_cloud_id":0,"ip":%q}]}]}`, ip)
}

// oldJobBody puts the members of a body of Job's where its older form has them.
func oldJobBody(body string) string {
	return `{"bk_biz_id":1,"params":{` + strings.TrimPrefix(body, `{"bk_biz_id":1,`) + `}`
}

func nativeBody(host string) string {
	return fmt.Sprintf(`{"action":"status","process":{"namespace":"ns","name":"web","proc_name":"nginx"},"hosts":[%q]}`, host)
}

// Every published form reports acceptance in its own way.
var shapes = []struct {
	name     string
	path     string
	good     string
	id       func(answer) any
	conflict func(answer) bool
}{
	{"multi", multiPath, `{"proc_operate_req":[` + gseBody(2, "10.0.0.1") + `]}`, esbID("task_id"), esbCode(1306406)},
	{"v2", v2Path, gseBody(2, "10.0.0.1"), esbID("task_id"), esbCode(1306406)},
	{"job", jobPath, jobBody("10.0.0.1"), esbID("bk_gse_taskid"), esbCode(1241002)},
	{"backend", backendPath, gseBody(2, "10.0.0.1"), esbID("task_id"), esbCode(1306406)},
	{"gateway", gatewayPath, gseBody(2, "10.0.0.1"), esbID("task_id"), esbCode(1306406)},
	{"native", nativePath, nativeBody("0:10.0.0.1"), func(a answer) any { return a.body["id"] }, nativeCode(409, "conflict")},
}

func esbID(field string) func(answer) any {
	return func(a answer) any {
		data, _ := a.body["data"].(map[string]any)
		return data[field]
	}
}

// esbCode returns a function that reports whether a response is an error with the given code.
func esbCode(code float64) func(answer) bool {
	return func(a answer) bool {
		data, there := a.body["data"]
		return a.status == http.StatusOK && a.body["result"] == false && a.body["code"] == code && there && data == nil &&
			a.body["message"] != ""
	}
}

func nativeCode(status int, code string) func(answer) bool {
	return func(a answer) bool {
		problem, _ := a.body["error"].(map[string]any)
		return a.status == status && problem["code"] == code && problem["message"] != ""
	}
}

func TestAStoreWithoutRoomForNewTasksIsSaidInEveryShape(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), &brokenStore{Store: openStore(t), create: fmt.Errorf("create a task: %w", taskstore.ErrFull)}, &fakeQueue{})
	for _, shape := range shapes {
		a := d.call(http.MethodPost, shape.path, shape.good)
		if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.text, "the task store is full") {
			t.Errorf("%s: %d %v %s", shape.name, a.status, a.header, a.text)
		}
		if shape.name == "native" && !nativeCode(http.StatusServiceUnavailable, "store_full")(a) {
			t.Errorf("native: %s", a.text)
		}
	}
}

func TestEveryShapeAcceptsAndShowsTheSameTaskAgain(t *testing.T) {
	t.Parallel()
	nats := testenv.StartNATS(t)
	d := startServer(t, testConfig(t), openStore(t), nats.Bus)
	for n, shape := range shapes {
		first := d.call(http.MethodPost, shape.path, shape.good, "Idempotency-Key", "k-"+shape.name)
		id, _ := shape.id(first).(string)
		if _, err := procfleet.ParseTaskID(id); err != nil {
			t.Fatalf("%s: %d %s", shape.name, first.status, first.text)
		}
		more := `{"unknown":[{}],`
		if shape.name == "native" { // rejects unknown members
			more = `{"select":null,`
		}
		again := d.call(http.MethodPost, shape.path, " "+strings.Replace(shape.good, "{", more, 1), "Idempotency-Key", "k-"+shape.name)
		if shape.id(again) != id {
			t.Errorf("%s: the repeat with other bytes is %s, want %s", shape.name, again.text, id)
		}
		other := d.call(http.MethodPost, shape.path, strings.Replace(shape.good, "10.0.0.1", "10.0.0.2", 1), "Idempotency-Key", "k-"+shape.name)
		if !shape.conflict(other) {
			t.Errorf("%s: another request under the key: %d %s", shape.name, other.status, other.text)
		}
		if got := d.tasks(); got != n+1 {
			t.Errorf("%s: %d tasks, want %d", shape.name, got, n+1)
		}
		shown := d.call(http.MethodGet, "/v1/tasks/"+id, "")
		if shown.status != http.StatusOK || shown.body["id"] != id || shown.body["items"] != 1.0 || shown.body["state"] != "accepted" {
			t.Errorf("%s: shown as %d %s", shape.name, shown.status, shown.text)
		}
	}
}

func TestKeysAreThereAtTheFirstPoll(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	id := esbID("task_id")(d.call(http.MethodPost, v2Path, gseBody(0, "10.0.0.1", "10.0.0.2", "10.0.0.1", "")))
	poll := d.call(http.MethodPost, resultPath, fmt.Sprintf(`{"task_id":%q}`, id))
	data, _ := poll.body["data"].(map[string]any)
	if len(data) != 3 {
		t.Fatalf("keys are %v, want one for each host and one without address", data)
	}
	for _, key := range []string{"0:10.0.0.1:ns:web", "0:10.0.0.2:ns:web", "0::ns:web"} {
		entry, _ := data[key].(map[string]any)
		if entry["error_code"] != 115.0 || entry["error_msg"] != "handling" || entry["content"] != "" {
			t.Errorf("%s is %v", key, entry)
		}
	}
	byGET := d.call(http.MethodGet, strings.TrimSuffix(resultPath, "/")+"?task_id="+fmt.Sprint(id), "")
	if byGET.status != http.StatusOK || byGET.body["result"] != true {
		t.Errorf("by GET: %d %s", byGET.status, byGET.text)
	}
	job := d.call(http.MethodGet, jobGetPath+"?bk_biz_id=1&bk_gse_taskid="+fmt.Sprint(id), "")
	if data, _ := job.body["data"].(map[string]any); data["status"] != 115.0 {
		t.Errorf("by Job: %d %s", job.status, job.text)
	}
}

func TestEveryPathOfTheESBLeadsToTheCall(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	for _, path := range []string{
		"/api/c/compapi/v2/gse/operate_proc_v2/", "/api/c/compapi/v2/gse/operate_proc_v2",
		"/c/compapi/v2/gse/operate_proc_v2/", "/c/compapi/v2/gse/operate_proc_v2",
	} {
		if a := d.call(http.MethodPost, path, gseBody(2, "10.0.0.1")); a.body["result"] != true {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	for _, path := range []string{"/api/c/compapi/v2/jobv3/operate_process", "/c/compapi/v2/job/operate_process/"} {
		if a := d.call(http.MethodPost, path, jobBody("10.0.0.1")); a.body["result"] != true {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	for _, c := range []struct{ method, path string }{
		{http.MethodPost, "/api/c/compapi/v2/gse/no_such_call/"},
		{http.MethodGet, "/c/compapi/"},
		{http.MethodPut, v2Path},
		{http.MethodDelete, jobGetPath},
	} {
		a := d.call(c.method, c.path, "")
		if _, coded := a.body["code"]; a.status != http.StatusNotFound || coded || a.body["message"] != "The content does not exist" {
			t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.text)
		}
	}
	if a := d.call(http.MethodGet, "/v2/tasks", ""); !nativeCode(404, "not_found")(a) {
		t.Errorf("an unknown path: %d %s", a.status, a.text)
	}
	if a := d.call(http.MethodDelete, nativePath, ""); !nativeCode(405, "method_not_allowed")(a) || a.header.Get("Allow") != "GET, POST" {
		t.Errorf("an unknown method: %d %v %s", a.status, a.header, a.text)
	}
}

func TestBusyMeans503AndRetryAfterInEveryShape(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t)}
	queue := &fakeQueue{}
	d := startServer(t, testConfig(t), store, queue)
	check := func(when string, mention string) {
		t.Helper()
		for _, shape := range shapes {
			a := d.call(http.MethodPost, shape.path, shape.good)
			if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || a.body == nil || !strings.Contains(a.text, mention) {
				t.Errorf("%s when %s: %d %v %s", shape.name, when, a.status, a.header, a.text)
			}
		}
	}
	queue.fail(bus.ErrFull)
	check("the queue is full", "full")
	queue.fail(bus.ErrUnavailable)
	check("the queue is away", "cannot be reached")
	store.reject = taskstore.ErrUnavailable
	check("nothing is sure", "GSETASK:")
	store.create = taskstore.ErrUnavailable
	check("the store is away", "nothing was done")
}

func TestABrokenStoreIsTheCallersToRetryOnEveryQuery(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), &brokenStore{Store: store, chunk: func(int) error { return taskstore.ErrUnavailable }}, &fakeQueue{})
	id := esbID("task_id")(d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1")))
	a := d.call(http.MethodPost, resultPath, fmt.Sprintf(`{"task_id":%q}`, id))
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || a.body["result"] != false {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
}

func TestAResultMapIsCutWhenTheStoreGoesAwayInTheMiddle(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t)}
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	hosts := make([]string, 5000)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("10.0.%d.%d", i>>8, i&255)
	}
	id := esbID("task_id")(d.call(http.MethodPost, v2Path, gseBody(2, hosts...)))
	query := fmt.Sprintf("%s?task_id=%s", resultPath, id)
	whole := d.call(http.MethodGet, query, "")
	if data, _ := whole.body["data"].(map[string]any); len(data) != len(hosts) {
		t.Fatalf("%d keys, want %d", len(data), len(hosts))
	}
	store.chunk = func(n int) error {
		if n > 15 {
			return taskstore.ErrUnavailable
		}
		return nil
	}
	resp, err := http.Get(d.url + query)
	if err != nil {
		return // cut before the header: as good
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("half a map of %d bytes looks whole", len(text))
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	a := d.call(http.MethodPost, v2Path, "{}", "X-Bkapi-Request-Id", "from-the-gateway")
	id, _ := a.body["request_id"].(string)
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		t.Errorf("request_id is %q", id)
	}
	if got := a.header.Get("X-Bkapi-Request-Id"); got != "from-the-gateway" {
		t.Errorf("the caller's id came back as %q", got)
	}
	if b := d.call(http.MethodPost, v2Path, "{}"); b.body["request_id"] == id || b.header.Get("X-Bkapi-Request-Id") != b.body["request_id"] {
		t.Errorf("the next request has %v", b.body["request_id"])
	}
	bad := d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1"), "X-Bkapi-Authorization", "{")
	if _, there := bad.body["request_id"]; there || bad.body["code"] != 1306406.0 {
		t.Errorf("an unreadable header: %s", bad.text)
	}
}

func TestPagesOfTasksResultsAndHosts(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	var announced []taskstore.Announcement
	for i := range 3 {
		a := d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1", "10.0.0.2", "10.0.0.3"))
		if a.body["result"] != true {
			t.Fatal(a.text)
		}
		announced = append(announced, taskstore.Announcement{Host: host(t, fmt.Sprintf("0:10.0.0.%d", i+1)), Instance: "i"})
	}
	if err := store.Announce(t.Context(), announced); err != nil {
		t.Fatal(err)
	}
	tasks := d.walk("/v1/tasks", "tasks", "cursor")
	if len(tasks) != 3 {
		t.Fatalf("%d tasks, want 3", len(tasks))
	}
	if results := d.walk(fmt.Sprintf("/v1/tasks/%s/results", tasks[0]["id"]), "results", "cursor"); len(results) != 3 {
		t.Errorf("%d results, want 3", len(results))
	}
	hosts := d.walk("/v1/hosts", "hosts", "after")
	if len(hosts) != 3 || hosts[2]["host"] != "0:10.0.0.3" {
		t.Errorf("hosts are %v", hosts)
	}
}

// walk reads all pages of a list, with two entries per page.
func (d *testServer) walk(path, list, cursor string) []map[string]any {
	d.t.Helper()
	var all []map[string]any
	for next := ""; ; {
		a := d.call(http.MethodGet, fmt.Sprintf("%s?limit=2&%s=%s", path, cursor, next), "")
		page, _ := a.body[list].([]any)
		for _, row := range page {
			all = append(all, row.(map[string]any))
		}
		if next, _ = a.body["next"].(string); next == "" || a.status != http.StatusOK || len(all) > 100 {
			return all
		}
	}
}

func TestAPanicIsOneAnswerAndNotTheEnd(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t), chunk: func(int) error { panic("a bug") }}
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	id := esbID("task_id")(d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1")))
	a := d.call(http.MethodGet, fmt.Sprintf("%s?task_id=%s", resultPath, id), "")
	if a.status != http.StatusInternalServerError || a.body["code"] != 1306000.0 || strings.Contains(a.text, "a bug") {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := d.call(http.MethodGet, "/healthz", ""); a.status != http.StatusOK {
		t.Errorf("afterwards: %d", a.status)
	}
}

func TestRepeatsAtTheSameMomentAreOneTaskQueuedOnce(t *testing.T) {
	t.Parallel()
	nats, store := testenv.StartNATS(t), openStore(t)
	doors := []*testServer{startServer(t, testConfig(t), store, nats.Bus), startServer(t, testConfig(t), store, nats.Bus)}
	answers := make(chan answer, 16)
	for i := range cap(answers) {
		go func() {
			answers <- doors[i%2].call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1"), "Idempotency-Key", "k")
		}()
	}
	ids := make(map[any]bool)
	for range cap(answers) {
		ids[esbID("task_id")(<-answers)] = true
	}
	if len(ids) != 1 || ids[nil] {
		t.Errorf("the answers name %v", ids)
	}
	stream, err := nats.JS.Stream(t.Context(), bus.StreamOps)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 || doors[0].tasks() != 1 {
		t.Errorf("%d chunks queued, %d tasks", n, doors[0].tasks())
	}
}
