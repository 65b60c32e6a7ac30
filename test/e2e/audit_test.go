//go:build linux

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// auditRecord has the fields of an audit record that these tests read.
type auditRecord struct {
	ID, Event, Task, Request, Address, State string
	Items                                    int
	Counts                                   map[string]int
}

// auditRecords reads the files of a folder. The last line may be incomplete.
func auditRecords(t *testing.T, folder string) map[string]auditRecord {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	records := map[string]auditRecord{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var r auditRecord
			if json.Unmarshal([]byte(line), &r) == nil {
				records[r.ID] = r
			}
		}
	}
	return records
}

// TestNoTaskWithoutItsRecord kills dispatchers after they stored a task and before
// they queued it, before and after they wrote its record, and kills a worker before
// it notified the end. With --audit-required every task that ran must have a record
// of its acceptance with the caller, and a record of its end.
func TestNoTaskWithoutItsRecord(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	logs := t.TempDir()
	required := func(name string) []string {
		return []string{"--audit-required", "--audit-stream=false", "--audit-log", filepath.Join(logs, name+".jsonl")}
	}
	f.worker("worker.before-notify", required("dying")...)
	_, c := f.dispatcher("", required("last")...)
	f.waitListed(c, 1)
	all := f.procs.grid(f.hosts(1), 3, "audited")
	id := c.submit(operation("start", all))
	c.wait(id)
	f.worker("", required("worker")...)
	for i, point := range []string{"dispatcher.stored", "dispatcher.audited"} {
		dying, first := f.dispatcher(point, required(point)...)
		if status, data, ok := first.call(http.MethodPost, "/v1/tasks", "", operation("status", all[i:i+1])); ok {
			t.Fatalf("response %d %s, but the dispatcher should have died at %s", status, data, point)
		}
		dying.Wait(t, startTimeout)
	}
	tasks := c.tasks()
	if len(tasks) != 3 {
		t.Fatalf("%d tasks, want 3", len(tasks))
	}
	for _, at := range tasks {
		c.wait(at.ID)
		testenv.Eventually(t, finishTimeout, func() bool { return auditRecords(t, logs)[at.ID+"/finished"].ID != "" }, "the end of "+at.ID+" is recorded")
		records := auditRecords(t, logs)
		accepted, finished := records[at.ID+"/accepted"], records[at.ID+"/finished"]
		if accepted.Task != at.ID || accepted.Items != at.Items || len(accepted.Request) != 32 || accepted.Address != "127.0.0.1" {
			t.Errorf("task %s was accepted as %+v", at.ID, accepted)
		}
		if finished.State != "finished" || finished.Request != accepted.Request || finished.Counts["succeeded"]+finished.Counts["unchanged"] != at.Items {
			t.Errorf("task %s ended as %+v", at.ID, finished)
		}
	}
	f.killAll(c, all)
}

// TestAFullDiskUnderTheAuditLog fills the disk. With --audit-required the
// dispatcher accepts nothing; without it, the dispatcher continues and metrics
// count the loss.
func TestAFullDiskUnderTheAuditLog(t *testing.T) {
	t.Parallel()
	const body = `{"action":"status","process":{"namespace":"ns","name":"web","proc_name":"nginx"},"hosts":["0:10.0.0.1"]}`
	for _, required := range []bool{true, false} {
		args := []string{"--audit-stream=false", "--audit-log", "/dev/full", "--agent=false"}
		want := http.StatusCreated
		if required {
			args, want = append(args, "--audit-required"), http.StatusServiceUnavailable
		}
		u := newUp(t, args...)
		u.start()
		status, header, text := u.c.send("POST /v1/tasks", body)
		if status != want || required && header.Get("Retry-After") == "" {
			t.Errorf("required %v: %d %s", required, status, text)
		}
		testenv.Eventually(t, finishTimeout, func() bool {
			_, _, text := u.c.send("GET /metrics", "")
			return strings.Contains(text, "\nprocfleet_audit_lost_records_total ")
		}, "the loss is counted")
	}
}

// TestAuditReadsTheStream reads the audit log with the command for operators.
func TestAuditReadsTheStream(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	f.worker("")
	_, c := f.dispatcher("")
	f.waitListed(c, 1)
	all := f.procs.grid(f.hosts(1), 1, "shown")
	id := c.submit(operation("status", all))
	c.wait(id)
	c.send("POST /v1/tasks", `{"action":"dance"}`)
	follow := exec.CommandContext(t.Context(), f.programs.procfleet, "audit", "--follow", "--json", "--nats", f.broker.URL)
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = follow.Process.Kill(); _ = follow.Wait() }()
	got := map[string]auditRecord{}
	for lines := json.NewDecoder(out); len(got) < 3; {
		var r auditRecord
		if err := lines.Decode(&r); err != nil {
			t.Fatalf("%v after %v", err, got)
		}
		got[r.Event] = r
	}
	if got["accepted"].Task != id || got["finished"].Task != id || got["refused"].Address != "127.0.0.1" {
		t.Errorf("records %+v", got)
	}
	cmd := exec.CommandContext(t.Context(), f.programs.procfleet, "audit", "--nats", f.broker.URL, "--task", id, "--since", "1h")
	text, err := cmd.Output()
	if err != nil || strings.Count(string(text), "\n") != 2 || !strings.Contains(string(text), "on "+f.hosts(1)[0]) {
		t.Errorf("%q, %v", text, err)
	}
	file := exec.CommandContext(t.Context(), f.programs.procfleet, "audit", "--file", "-", "--event", "accepted", "--json")
	file.Stdin = io.MultiReader(strings.NewReader("{\"id\":\"half a li"), strings.NewReader("\n{\"id\":\"x\",\"event\":\"accepted\"}\n{\"id\":\"y\",\"event\":\"refused\"}\n"))
	if text, err = file.Output(); err != nil || string(text) != "{\"id\":\"x\",\"event\":\"accepted\"}\n" {
		t.Errorf("%q, %v", text, err)
	}
}
