//go:build linux

package pressure

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// accepts submits until the dispatcher accepts the task, and returns the task's id.
func accepts(t *testing.T, dispatcherURL string, body []byte) string {
	t.Helper()
	var made task
	testenv.Eventually(t, patience, func() bool {
		a := post(dispatcherURL+"/v1/tasks", body)
		return a.status == http.StatusCreated && json.Unmarshal(a.body, &made) == nil
	}, "a task is accepted")
	return made.ID
}

// tryAgain matches a response that says that nothing was done or that the outcome
// is unknown.
var tryAgain = regexp.MustCompile(`"code":"unavailable".*(try again later|repeat the request)|"code":"unknown".*repeat with the same Idempotency-Key`)

// TestSubmissionsWhileTheStoreHangs submits big tasks from many callers while Redis
// does not reply and keeps its connections open. All callers must get a 503 with
// Retry-After, the dispatcher must stay within its memory, and tasks accepted
// before must end.
func TestSubmissionsWhileTheStoreHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dispatcher, dispatcherURL := r.role("dispatcher", "--submissions=false", "--slack", "10m")
	r.simulate(100)
	var before []string
	for range 10 {
		before = append(before, accepts(t, dispatcherURL, operation(100, 0)))
	}

	r.redis.Freeze(t)
	var callers sync.WaitGroup
	var offered, offers atomic.Int64
	offer := func(body []byte) {
		a := post(dispatcherURL+"/v1/tasks", body)
		offered.Add(int64(len(body)))
		if a.status != http.StatusServiceUnavailable || a.retry == "" || !tryAgain.Match(a.body) {
			t.Errorf("response %d, Retry-After %q: %.300s", a.status, a.retry, a.body)
		}
	}
	small, big := operation(55_000, 0), operation(200_000, 16<<20)
	if len(small) > 1<<20 {
		t.Fatalf("a body of %d bytes counts as big", len(small))
	}
	for range 150 {
		callers.Go(func() {
			for offers.Add(1) < 1200 {
				offer(small)
			}
		})
	}
	for range 8 {
		callers.Go(func() { offer(big) })
	}
	callers.Wait()
	r.redis.Thaw(t)

	r.role("worker")
	for _, id := range append(before, accepts(t, dispatcherURL, operation(100, 0))) {
		succeeds(t, dispatcherURL, id, 100)
	}
	fits(t, dispatcher, offered.Load())
}

// TestSlowReaders opens many long responses and reads only a part of each.
// The dispatcher must encode no more than clients read, and a client that continues
// to read must get the whole response.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	const hosts, readers = 20_000, 120
	r := newRig(t)
	dispatcher, dispatcherURL := r.role("dispatcher", "--submissions=false", "--slack", "10m")
	r.role("worker")
	r.simulate(hosts)
	id := accepts(t, dispatcherURL, operation(hosts, 0))
	succeeds(t, dispatcherURL, id, hosts)

	const path = "/api/v2/proc/get_proc_operate_result_v2"
	question := []byte(`{"task_id":"` + id + `"}`)
	whole := post(dispatcherURL+path, question)
	if whole.status != http.StatusOK {
		t.Fatalf("%d %.300s", whole.status, whole.body)
	}
	var open []*bufio.Reader
	for range readers {
		conn, err := net.Dial("tcp", strings.TrimPrefix(dispatcherURL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the dispatcher may have closed it
		if err := conn.(*net.TCPConn).SetReadBuffer(16 << 10); err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequest(http.MethodPost, dispatcherURL+path, strings.NewReader(string(question)))
		if err != nil {
			t.Fatal(err)
		}
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
		open = append(open, bufio.NewReader(conn))
	}
	var reading sync.WaitGroup
	for i, reader := range open {
		resp, err := http.ReadResponse(reader, nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("reader %d: %v %v", i, resp, err)
		}
		if i > 2 {
			continue // this client reads no more, and closing the body would
		}
		reading.Go(func() { // at once, because the dispatcher disconnects clients that do not read for long
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close() // only the text that was read matters
			if err != nil || strings.Count(string(text), `"error_code"`) != hosts {
				t.Errorf("reader %d received %d of %d bytes, %.100q to %q: %v", i, len(text), len(whole.body), text, text[max(len(text)-200, 0):], err)
			}
		})
	}
	reading.Wait()
	succeeds(t, dispatcherURL, accepts(t, dispatcherURL, operation(100, 0)), 100)
	fits(t, dispatcher, int64(len(whole.body))*readers)
}
