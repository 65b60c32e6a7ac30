//go:build linux

package pressure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func TestMain(m *testing.M) {
	defer testenv.CleanUp()
	m.Run()
}

// patience is the timeout for a busy machine.
const patience = 4 * time.Minute

// Memory limit of a dispatcher or worker in deploy/kubernetes, and its GOMEMLIMIT.
const (
	containerMemory = 512 << 20
	memoryLimit     = "GOMEMLIMIT=460MiB"
)

func program(t *testing.T) string {
	t.Helper()
	return testenv.BuildBinary(t, "./cmd/procfleet")
}

func bench(t *testing.T) string {
	t.Helper()
	return testenv.BuildBinary(t, "./cmd/procfleet-bench")
}

// rig is NATS in the test's process, and Redis and the roles as child processes.
type rig struct {
	t     *testing.T
	nats  *testenv.NATS
	redis *redistest.Server
	store string // URL of Redis for the roles
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, nats: testenv.StartNATS(t), redis: redistest.Start(t, "--appendonly", "no")}
	r.store = r.redis.URL()
	return r
}

// role starts a dispatcher or a worker with the memory limit of its container, and
// returns it with the URL of its metrics, which for a dispatcher is the URL of its
// API.
func (r *rig) role(name string, args ...string) (child *testenv.Child, url string) {
	r.t.Helper()
	addr := testenv.FreeAddress(r.t)
	listen := map[string]string{"dispatcher": "--http", "worker": "--status-http"}[name]
	args = append([]string{name, listen, addr, "--nats", r.nats.URL, "--redis", r.store, "--log-level", "error"}, args...)
	child = testenv.StartChild(r.t, []string{memoryLimit}, program(r.t), args...)
	child.WaitHTTP(r.t, patience, "http://"+addr+"/readyz")
	return child, "http://" + addr
}

func (r *rig) simulate(agents int, args ...string) {
	r.t.Helper()
	child := testenv.StartChild(r.t, nil, bench(r.t), append([]string{"simulate", "--agents", strconv.Itoa(agents), "--nats", r.nats.URL}, args...)...)
	child.WaitOutput(r.t, patience, "ready "+strconv.Itoa(agents))
}

// fits checks that a role stayed within the memory of its container, and that the
// load was large enough for the check.
func fits(t *testing.T, child *testenv.Child, offered int64) {
	t.Helper()
	t.Logf("load of %d MiB", offered>>20)
	bounded(t, "it", child)
	if offered < 2*containerMemory {
		t.Errorf("load of only %d MiB", offered>>20)
	}
}

// bounded checks that a role stayed within the memory of its container.
func bounded(t *testing.T, role string, child *testenv.Child) {
	t.Helper()
	most := child.PeakMemory(t)
	t.Logf("%s: peak memory %d MiB", role, most>>20)
	if most > containerMemory {
		t.Errorf("%s: peak memory %d MiB, limit %d MiB", role, most>>20, containerMemory>>20)
	}
}

// counter returns the sum of the series of a metric with a label's value.
func counter(t *testing.T, url, name, label string) (sum int) {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		return 0 // the role is busy, and the caller reads again
	}
	defer func() { _ = resp.Body.Close() }() // the text is already read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if strings.HasPrefix(series, name+"{") && strings.Contains(series, label) {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			sum += int(n)
		}
	}
	return sum
}

// answer is a response of a dispatcher. If there was none, its status is 0, and its body
// says why.
type answer struct {
	status int
	retry  string // Retry-After
	body   []byte
}

// post sends a body unchanged, with headers of a name and a value each.
func post(url string, body []byte, headers ...[2]string) answer {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	for _, h := range headers {
		req.Header.Set(h[0], h[1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	return answer{resp.StatusCode, resp.Header.Get("Retry-After"), text}
}

type task struct {
	ID     string         `json:"id"`
	State  string         `json:"state"`
	Items  int            `json:"items"`
	Counts map[string]int `json:"counts"`
}

// readTask reads one task.
func readTask(t *testing.T, url, id string) (found task) {
	t.Helper()
	resp, err := http.Get(url + "/v1/tasks/" + id)
	if err != nil {
		return task{}
	}
	defer func() { _ = resp.Body.Close() }()
	_ = json.NewDecoder(resp.Body).Decode(&found) // after an error the caller reads again
	return found
}

// succeeds waits for the end of a task, of which every item must have succeeded.
func succeeds(t *testing.T, url, id string, items int) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { return readTask(t, url, id).State == "finished" }, "task "+id+" ends")
	if end := readTask(t, url, id); end.Counts["succeeded"] != items {
		t.Errorf("task %s: %v, want %d succeeded; failures first: %s", id, end.Counts, items, results(t, url, id))
	}
}

// results returns the first results of a task, failures first.
func results(t *testing.T, url, id string) (text []byte) {
	t.Helper()
	resp, err := http.Get(url + "/v1/tasks/" + id + "/results?limit=2")
	if err != nil {
		return fmt.Append(nil, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ = io.ReadAll(resp.Body) // shows the text that was read
	return text
}

// address returns the address of a simulated host.
func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255) }

// operation returns a status request for the first n simulated hosts, padded with
// spaces to a size.
func operation(n, size int) []byte {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = "0:" + address(i)
	}
	body, err := json.Marshal(map[string]any{
		"action": "status", "hosts": hosts,
		"process": map[string]any{"namespace": "pressure", "name": "sim", "proc_name": "sim", "setup_path": "/opt/sim"},
	})
	if err != nil {
		panic(err)
	}
	return padded(body, size)
}

// padded pads a body with spaces.
func padded(body []byte, size int) []byte {
	return append(body, bytes.Repeat([]byte(" "), max(size-len(body), 0))...)
}
