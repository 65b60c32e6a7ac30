//go:build linux

package pressure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.CleanUp()
	os.Exit(code)
}

// patience is for what must happen in the end, on a busy machine.
const patience = 4 * time.Minute

// The memory of a dispatcher or a worker in deploy/kubernetes, and the GOMEMLIMIT
// that goes with it.
const (
	containerMemory = 512 << 20
	memoryLimit     = "GOMEMLIMIT=460MiB"
)

// program is the built procfleet, bench the built procfleet-bench. Both are
// without the race detector, under which memory says nothing.
func program(t *testing.T) string {
	t.Helper()
	return built(t, "./cmd/procfleet")
}

func bench(t *testing.T) string {
	t.Helper()
	return built(t, "./cmd/procfleet-bench")
}

func built(t *testing.T, pkg string) string {
	t.Helper()
	path, err := testenv.BuildPlain(pkg)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// rig is NATS, Redis and what a test starts of procfleet, as processes of their
// own but for NATS.
type rig struct {
	t     *testing.T
	nats  *testenv.NATS
	redis *redistest.Server
	store string // the URL at which Redis is reached
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, nats: testenv.StartNATS(t), redis: redistest.Start(t, "--appendonly", "no")}
	r.store = r.redis.URL()
	return r
}

// role starts a dispatcher or a worker with the memory of its container and
// returns it with the URL of its metrics, which for a dispatcher is its own.
func (r *rig) role(name string, args ...string) (child *testenv.Child, url string) {
	r.t.Helper()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(r.t)))
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

// peak is the most memory that a process ever had.
func peak(t *testing.T, child *testenv.Child) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", child.PID()))
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if err != nil || found == nil {
		t.Fatalf("memory of %d: %v", child.PID(), err)
	}
	kb, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// fits fails the test if a role ever needed more memory than its container has,
// or was offered too little for that to mean anything.
func fits(t *testing.T, child *testenv.Child, offered int64) {
	t.Helper()
	t.Logf("offered %d MiB", offered>>20)
	bounded(t, "it", child)
	if offered < 2*containerMemory {
		t.Errorf("only %d MiB were offered", offered>>20)
	}
}

// bounded fails the test if a role ever needed more memory than its container has.
func bounded(t *testing.T, role string, child *testenv.Child) {
	t.Helper()
	most := peak(t, child)
	t.Logf("%s had %d MiB of memory at the peak", role, most>>20)
	if most > containerMemory {
		t.Errorf("%s had %d MiB of memory at the peak, a container has %d", role, most>>20, containerMemory>>20)
	}
}

// counter is the sum of the series of a metric that have a label's value.
func counter(t *testing.T, url, name, label string) (sum int) {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		return 0 // it is busy: asked again
	}
	defer func() { _ = resp.Body.Close() }() // what was read is all that counts
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

// answer is what a dispatcher said; its status is 0 where nobody answered.
type answer struct {
	status int
	retry  string // Retry-After
	body   []byte
}

// post sends a body as it is, with headers, each a name and a value.
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
		return answer{}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}
	}
	return answer{resp.StatusCode, resp.Header.Get("Retry-After"), text}
}

type task struct {
	ID     string         `json:"id"`
	State  string         `json:"state"`
	Items  int            `json:"items"`
	Counts map[string]int `json:"counts"`
}

// look reads one task.
func look(t *testing.T, url, id string) (found task) {
	t.Helper()
	resp, err := http.Get(url + "/v1/tasks/" + id)
	if err != nil {
		return task{}
	}
	defer func() { _ = resp.Body.Close() }()
	_ = json.NewDecoder(resp.Body).Decode(&found) // else it is asked again
	return found
}

// succeeds waits until every item of a task has.
func succeeds(t *testing.T, url, id string, items int) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { return look(t, url, id).State == "finished" }, "task "+id+" ends")
	if end := look(t, url, id); end.Counts["succeeded"] != items {
		t.Errorf("task %s: %v, want %d succeeded; failures first: %s", id, end.Counts, items, results(t, url, id))
	}
}

// results shows how the first items of a task ended, which are those that failed.
func results(t *testing.T, url, id string) (text []byte) {
	t.Helper()
	resp, err := http.Get(url + "/v1/tasks/" + id + "/results?limit=2")
	if err != nil {
		return fmt.Append(nil, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ = io.ReadAll(resp.Body) // what was read is all that is shown
	return text
}

// address of a simulated host.
func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255) }

// operation is a request for the status of a process on the first n simulated
// hosts, made longer by spaces to the given size.
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

// padded makes a body longer by spaces.
func padded(body []byte, size int) []byte {
	return append(body, bytes.Repeat([]byte(" "), max(size-len(body), 0))...)
}
