//go:build linux

package transport

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// lists are the lists that the commands read from responses.
var lists = []string{"tasks", "results", "hosts", "events"}

// listsOf returns a response in which every list is the given one.
func listsOf(list string) string {
	var all []string
	for _, name := range lists {
		all = append(all, fmt.Sprintf("%q:%s", name, list))
	}
	return "{" + strings.Join(all, ",") + "}"
}

// TestHostileServer checks that a command ends with an
// error message and uses little memory, regardless of the server's response.
func TestHostileServer(t *testing.T) {
	t.Parallel()
	const task = "GSETASK:20260101000000:000001"
	many := func(element string) string {
		const room = 50 << 20
		return "[" + strings.Repeat(element+",", room/(len(element)+1)/len(lists)) + element + "]"
	}
	commands := [][]string{
		{"task", "list"},
		{"task", "get", task},
		{"task", "results", task},
		{"task", "watch", task},
		{"events"},
		{"op", "status", "--host", "0:10.0.0.1", "-f", someSpec(t), "--wait"},
	}
	for name, body := range map[string]string{
		"depth":            strings.Repeat("[", 8<<20),
		"depth of objects": strings.Repeat(`{"tasks":`, 1<<20),
		"objects":          listsOf(many("{}")),
		"nulls":            listsOf(many("null")),
		"no end":           "",
		"a huge number":    strings.ReplaceAll(`{"id":HUGE,`+listsOf(`[{"item":HUGE,"items":HUGE,"host":HUGE}]`)[1:], "HUGE", strings.Repeat("9", 1<<20)),
		"a refusal":        `{"error":{"code":"` + strings.Repeat("c", 8<<20) + `","message":"response not from procfleet` + strings.Repeat("m", 8<<20) + `"}}`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if name == "a refusal" {
				w.WriteHeader(http.StatusBadRequest)
			}
			for _, err := io.WriteString(w, body); err == nil && body == ""; {
				_, err = w.Write(bytes.Repeat([]byte(" "), 1<<20))
			}
		}))
		t.Cleanup(server.Close)
		for _, args := range commands {
			t.Run(name+" "+strings.Join(args[:min(2, len(args))], " "), func(t *testing.T) {
				t.Parallel()
				// A response has three gigabytes, and most of the memory is for the
				// race detector. The kernel's figure is at least the memory of this
				// process.
				limited := []string{"-c", `ulimit -d 3145728 && exec "$0" "$@"`, program(t)}
				cmd := exec.CommandContext(t.Context(), "sh", join(limited, args, []string{"--server", server.URL})...)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				err := cmd.Run()
				if cmd.ProcessState == nil {
					t.Fatal(err)
				}
				if code := cmd.ProcessState.ExitCode(); code <= 0 || len(stderr.String()) > 32<<10 || !strings.Contains(stderr.String(), "response not from procfleet") {
					t.Errorf("exit %d: %.1000s", code, &stderr)
				}
			})
		}
	}
}

// TestServerThatSendsSingleBytes checks that a command gives up an endless
// response of single bytes after its timeout, and that Ctrl-C ends a watch.
func TestServerThatSendsSingleBytes(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "event-stream") {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		drip := time.NewTicker(10 * time.Millisecond)
		defer drip.Stop()
		for n := 0; ; n++ {
			if _, err := io.WriteString(w, ":"); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			if n == 1 {
				begun <- struct{}{}
			}
			select {
			case <-drip.C:
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	if got := run(t, "task", "list", "--server", server.URL); got.code != 1 || !strings.Contains(got.err, "no answer within") {
		t.Errorf("task list: %+v", got)
	}
	for len(begun) > 0 {
		<-begun
	}
	watch := testenv.StartChild(t, nil, program(t), "task", "watch", "GSETASK:20260101000000:000001", "--server", server.URL)
	<-begun
	watch.Signal(syscall.SIGINT)
	if code := watch.Wait(t, patience); code <= 0 {
		t.Errorf("task watch: exit %d after Ctrl-C", code)
	}
}
