//go:build linux

package transport

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// hostileCollector handles each export request in a different harmful way. The last
// way is to hang forever.
type hostileCollector struct {
	elsewhere string // target of its redirects
	requests  atomic.Int64
	hanging   atomic.Int64
	released  chan struct{}
}

func (c *hostileCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the spans do not matter
	endless := func(status int, contentType string) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		for block := bytes.Repeat([]byte("no traces! "), 8<<10); ; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}
	switch c.requests.Add(1) {
	case 1:
		http.Redirect(w, r, c.elsewhere+"/temporary", http.StatusTemporaryRedirect)
	case 2:
		http.Redirect(w, r, c.elsewhere+"/permanent", http.StatusPermanentRedirect)
	case 3:
		endless(http.StatusInternalServerError, "text/plain")
	case 4:
		endless(http.StatusOK, "application/x-protobuf")
	case 5:
		w.Header().Set("Retry-After", "99999999")
		w.WriteHeader(http.StatusServiceUnavailable)
	case 6:
		panic(http.ErrAbortHandler) // closes the connection without a response
	default:
		c.hanging.Add(1)
		<-c.released
	}
}

// TestHostileCollectorCostsOnlySpans uses a hostile collector of traces.
// Meanwhile tasks must be accepted and end, pending spans must be limited, and no
// other server may receive the collector's keys.
func TestHostileCollectorCostsOnlySpans(t *testing.T) {
	t.Parallel()
	const key = "planted-collector-key-3b7d"
	var elsewhere receivedSpans
	strangers := atomic.Int64{}
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		strangers.Add(1)
		elsewhere.ServeHTTP(w, r)
	}))
	t.Cleanup(stranger.Close)
	hostile := &hostileCollector{elsewhere: stranger.URL, released: make(chan struct{})}
	collector := httptest.NewServer(hostile)
	t.Cleanup(collector.Close)
	t.Cleanup(func() { close(hostile.released) })

	dispatcher := testenv.FreeAddress(t)
	up := testenv.StartChild(t, []string{"OTEL_EXPORTER_OTLP_HEADERS=x-collector-key=" + key}, program(t),
		"up", "--agent=false", "--http", dispatcher, "--otlp", collector.URL, "--data", filepath.Join(t.TempDir(), "data"))
	up.WaitHTTP(t, patience, "http://"+dispatcher+"/readyz")
	testenv.Eventually(t, patience, func() bool {
		submitted(t, dispatcher, 1)
		return hostile.hanging.Load() > 0
	}, "the collector has done everything else, and hangs")
	var tasks []string
	for range 48 { // each with a span per host, in total more spans than may wait
		tasks = append(tasks, submitted(t, dispatcher, 256))
	}
	for _, id := range tasks {
		testenv.Eventually(t, patience, func() bool { return strings.Contains(getText(t, "http://"+dispatcher+"/v1/tasks/"+id), `"finished"`) }, "the task ends")
	}
	testenv.Eventually(t, patience, func() bool {
		return dropped(getText(t, "http://"+dispatcher+"/metrics"))
	}, "what finds no room is counted")
	if n := strangers.Load(); n > 0 {
		t.Errorf("the redirect target received %d requests", n)
	}
	if peak := up.PeakMemory(t); peak > 2<<30 {
		t.Errorf("peak memory %d MiB", peak>>20)
	}
	up.Signal(15)
	if code := up.Wait(t, patience); code != 0 {
		t.Errorf("exit code %d while the collector hangs", code)
	}
	out := up.WholeOutput(t, patience)
	if !strings.Contains(out, "trace export failed") || strings.Contains(out, key) {
		t.Error("the log lacks the collector, or contains its key")
	}
}

// dropped reports whether metrics count spans dropped because of a full buffer.
func dropped(metrics string) bool {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "procfleet_trace_dropped_spans_total{") && strings.Contains(line, `"full"`) {
			return !strings.HasSuffix(line, "} 0\n")
		}
	}
	return false
}

// submitted submits a task for hosts without agents, and returns its id.
func submitted(t *testing.T, dispatcher string, hosts int) (id string) {
	t.Helper()
	names := make([]string, hosts)
	for i := range names {
		names[i] = fmt.Sprintf("0:10.77.%d.%d", i>>8, i&255)
	}
	body, err := json.Marshal(map[string]any{"action": "status", "hosts": names, "process": map[string]any{
		"namespace": "n", "name": "p", "proc_name": "p", "setup_path": "/nonexistent",
	}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+dispatcher+"/v1/tasks", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var task struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&task); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("response to a task for %d hosts: %s: %v", hosts, resp.Status, err)
	}
	return task.ID
}

// getText returns the body of a response.
func getText(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
