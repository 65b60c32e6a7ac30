package dispatcher

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

// audited sets cfg.Audit to a log that writes to the given sinks, or to a file if there are
// none. records waits until the file contains all records so far, and returns them.
func audited(t *testing.T, cfg *Config, places ...audit.Sink) (records func() []audit.Record) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	required := len(places) > 0
	if !required {
		file, err := audit.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, file)
	}
	log, err := audit.New(audit.Config{Sinks: places, Required: required, Log: testenv.Log(t), Meter: metricnoop.Meter{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	cfg.Outputs = oneLine{}
	cfg.Audit = log
	return func() (all []audit.Record) {
		log.Note(audit.Record{ID: "end"})
		testenv.Eventually(t, patience, func() bool {
			all = nil
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			lines := bufio.NewScanner(f)
			for lines.Scan() {
				var r audit.Record
				if json.Unmarshal(lines.Bytes(), &r) != nil {
					return false // it is just being written
				}
				if r.ID == "end" {
					return true
				}
				all = append(all, r)
			}
			return false
		}, "the audit log is written")
		return all
	}
}

// gonePlace is a sink whose writes fail.
type gonePlace struct{}

func (gonePlace) HasTaskEvents() bool { return false }

func (gonePlace) Name() string { return "gone" }
func (gonePlace) Keep(context.Context, []audit.Line, bool) error {
	return errors.New("no space left on device")
}

// changing contains a call for each endpoint that changes something.
var changing = map[string]struct{ method, path, body string }{
	"native": {http.MethodPost, "/v1/tasks", `{"action":"start","process":{"namespace":"shop","name":"web","proc_name":"nginx","control":{"start":"./start.sh --password=hunter2"},
		"labels":{"l":"hunter2"}},"hosts":["0:10.0.0.1","0:10.0.0.2"],"business":"2"}`},
	"native.cancel":           {http.MethodPost, "/v1/tasks/TASK/cancel", `{"reason":"release"}`},
	"native.retry":            {http.MethodPost, "/v1/tasks/FAILED/retry", `{"reason":"release"}`},
	"native.output":           {http.MethodGet, "/v1/processes/output?host=0:10.0.0.9&process=shop/web", ``},
	"native.pause":            {http.MethodPost, "/v1/tasks/TASK/pause", `{"reason":"release"}`},
	"native.register":         {http.MethodPut, "/v1/registrations", `{"process":{"namespace":"shop","name":"web","proc_name":"nginx","control":{"start":"./start.sh hunter2"}},"hosts":["0:10.0.0.1"]}`},
	"native.label_hosts":      {http.MethodPut, "/v1/labels", `{"set":{"zone":"a"},"hosts":["0:10.0.0.1"]}`},
	"native.set_groups":       {http.MethodPut, "/v1/groups", `{"namespace":"shop","groups":[],"hosts":["0:10.0.0.1"]}`},
	"native.bind_agents":      {http.MethodPost, "/v1/agents/bindings", `{"bindings":[{"host":"0:10.0.0.9","agent_id":"a-1"}]}`},
	"native.freeze":           {http.MethodPut, "/v1/freezes", `{"hosts":["0:10.0.0.1"],"ttl":"2h","reason":"hunter2"}`},
	"native.lift":             {http.MethodDelete, "/v1/freezes", `{"hosts":["0:10.0.0.1"]}`},
	"native.save_catalogue":   {http.MethodPut, "/v1/catalogue/2", `{"processes":[{"name":"nginx","start_cmd":"./start.sh hunter2"}]}`},
	"native.delete_catalogue": {http.MethodDelete, "/v1/catalogue/2/45", ``},
	"native.set_schedule":     {http.MethodPut, "/v1/schedules/2/nightly", scheduleBody},
	"native.remove_schedule":  {http.MethodDelete, "/v1/schedules/2/nightly", ""},
	"native.set_webhook":      {http.MethodPut, "/v1/webhooks/other", webhookRequest},
	"native.remove_webhook":   {http.MethodDelete, "/v1/webhooks/other", ""},
	"native.redeliver":        {http.MethodPost, "/v1/webhooks/hook/redeliver", `{"event":"DEAD"}`},
	"native.set_rollouts":     {http.MethodPut, "/v1/rollouts/2", `{"policies":[]}`},
	"native.set_topology":     {http.MethodPut, "/v1/topology/2", `{"sets":[{"name":"s1","modules":[{"name":"web","default":0,"hosts":["0:10.0.0.1"]}]}]}`},
	"native.edit_topology":    {http.MethodPatch, "/v1/topology/2", `{"auto_register":true}`},
	"cmdb.create_process":     {http.MethodPost, "/api/v3/proc/0/2", `{"bk_process_name":"other","start_cmd":"hunter2"}`},
	"cmdb.delete_process":     {http.MethodDelete, "/api/v3/proc/0/2/44", ``},
}

// withAgent stores the presence of an agent, so that ids can be bound to its host.
func withAgent(t *testing.T, store taskstore.Store) {
	t.Helper()
	host, err := procfleet.ParseHost("0:10.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Announce(t.Context(), []taskstore.Announcement{{Host: host, Instance: "i"}}); err != nil {
		t.Fatal(err)
	}
}

func TestWhateverChangesSomethingIsAudited(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.TaskFeed = noTaskEvents{}
	records := audited(t, &cfg)
	store := openStore(t)
	withAgent(t, store)
	withWebhooks(t, store)
	d := startServer(t, cfg, store, &fakeQueue{})
	d.described = nil
	uses := make(map[string]bool)
	var open []string // a task for each control call, which may end it
	for range 3 {
		made := d.call(http.MethodPost, "/v1/tasks", `{"action":"status","process":{"namespace":"shop","name":"web","proc_name":"nginx"},"hosts":["0:10.0.0.1"]}`, bkapi("bk_app_code", "free", "bk_app_secret", "s3cret")...)
		id, _ := made.body["id"].(string)
		open = append(open, id)
	}
	ended := open[2]
	failed := procfleet.Result{Code: procfleet.CodeFailed, Reason: procfleet.ReasonCommandFailed, Rank: procfleet.RankAgent}
	if _, err := store.Record(t.Context(), []taskstore.Batch{{Task: procfleet.TaskID(ended), Results: []procfleet.Result{failed}}}); err != nil {
		t.Fatal(err)
	}
	for _, at := range changing {
		if strings.Contains(at.path, "/TASK/") {
			at.path = strings.ReplaceAll(at.path, "TASK", open[0])
			open = open[1:]
		}
		at.path = strings.ReplaceAll(at.path, "FAILED", ended)
		header := append(bkapi("bk_app_code", "free", "bk_app_secret", "s3cret", "bk_username", "ann"), cmdbHeaders()...)
		a := d.call(at.method, at.path, at.body, header...)
		if a.status/100 != 2 {
			t.Errorf("%s %s: %d %s", at.method, at.path, a.status, a.text)
		}
	}
	told := make(map[string]audit.Record)
	for _, r := range records() {
		if text, _ := json.Marshal(r); strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "s3cret") {
			t.Errorf("a secret is in %s", text)
		}
		if r.Application != "free" || r.Address != "127.0.0.1" || r.Request == "" || r.At.IsZero() || r.ID == "" {
			t.Errorf("who is missing in %+v", r)
		}
		told[r.Call] = r
	}
	for _, dia := range dialect.All() {
		for _, call := range dia.Calls {
			if actionOf(t, call.Endpoint) == "status" {
				continue
			}
			use := fmt.Sprintf("%T", call.Endpoint)
			if _, ok := told[call.Name]; ok {
				uses[use] = true
			} else if !uses[use] {
				uses[use] = false
			}
		}
	}
	for use, was := range uses {
		if !was {
			t.Errorf("no call that is a %s was audited; told were %v", use, slices.Sorted(maps.Keys(told)))
		}
	}
	task := told["native"]
	if task.Event != audit.Accepted || task.Task == "" || task.Hosts != 2 || task.Items != 2 || task.Business != "2" ||
		!slices.Equal(task.Processes, []string{"shop:web"}) || !slices.Equal(task.Targets, []string{"0:10.0.0.1", "0:10.0.0.2"}) ||
		!slices.Equal(task.Actions, []procfleet.Action{procfleet.ActionStart}) {
		t.Errorf("the task's record is %+v", task)
	}
	if e := told["native.edit_topology"]; e.Change != "switch auto_register on" {
		t.Errorf("%+v", e)
	}
}

func TestRefusalsAreAuditedWithTheirReasons(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	records := audited(t, &cfg)
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	body := strings.Replace(nativeBody("0:10.0.0.1"), "status", "stop", 1)
	for _, call := range []struct {
		path, body string
		header     []string
	}{
		{"/v1/tasks", body, nil},
		{"/v1/tasks", body, bearer("free.wrong-s3cret")},
		{"/v1/tasks", body, bearer("reader.s3cret")},
		{"/v1/tasks", strings.Replace(body, "stop", "dance", 1), bearer("free.s3cret")},
		{"/v1/hosts", "", nil},                                            // unauthenticated read
		{"/v1/tasks/GSETASK:20260102030405:6", "", bearer("free.s3cret")}, // a missing task is no rejection of the caller
		{"/v1/nothing", "", nil},
	} {
		method := http.MethodGet
		if call.body != "" {
			method = http.MethodPost
		}
		d.call(method, call.path, call.body, call.header...)
	}
	var got []string
	for _, r := range records() {
		if r.Event != audit.Refused || r.Request == "" || r.ID != r.Request+"/refused" || r.Address != "127.0.0.1" {
			t.Errorf("%+v", r)
		}
		var actions []string
		for _, a := range r.Actions {
			actions = append(actions, string(a))
		}
		got = append(got, strings.Join([]string{r.Call, r.Application, r.Claimed, r.Reason, r.Field, strings.Join(actions, ",")}, "|"))
	}
	want := []string{
		"native|||no_application||", "native||free|wrong_secret||", "native|reader||forbidden||stop",
		"native|free||invalid_request|action|", "native.hosts|||no_application||",
	}
	if !slices.Equal(got, want) {
		t.Errorf("records\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A repeated submission adds no audit record for its task, except if the first dispatcher died
// before it stored that the task is queued: then the record of the first submission may be
// missing.
func TestARepeatLeavesNoSecondRecordOfItsTask(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ died bool }{"the first was whole": {false}, "the first dispatcher died": {true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			records := audited(t, &cfg)
			store := openStore(t)
			s := newSubmitter(store, &fakeQueue{}, cfg.WithDefaults())
			sub := submission(t, procfleet.ActionStart, 2)
			var first procfleet.Task
			if c.died {
				draft, err := s.draft(t.Context(), sub, terms{key: "key"})
				if err != nil {
					t.Fatal(err)
				}
				if first, _, err = store.Create(t.Context(), draft.Draft); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				task, err := s.submit(t.Context(), sub, terms{key: "key"})
				if err != nil || first.ID != "" && task.ID != first.ID {
					t.Fatalf("task %s, %v; the first was %s", task.ID, err, first.ID)
				}
				first = task
			}
			all := records()
			if len(all) != 1 || all[0].Event != audit.Accepted || all[0].Task != first.ID || len(all[0].Targets) != 2 || len(all[0].Processes) != 1 {
				t.Errorf("%d records, want one of task %s: %+v", len(all), first.ID, all)
			}
		})
	}
}

// TestNothingIsDoneWithoutItsRecord verifies that, while the audit log cannot be written, each
// call that changes something fails with a request to retry, and changes nothing.
func TestNothingIsDoneWithoutItsRecord(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	audited(t, &cfg, gonePlace{})
	cfg.TaskFeed = noTaskEvents{}
	store, queue := openStore(t), &fakeQueue{}
	withAgent(t, store)
	withWebhooks(t, store)
	d := startServer(t, cfg, store, queue)
	open, err := newSubmitter(store, queue, testConfig(t).WithDefaults()).draft(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
	if err != nil {
		t.Fatal(err)
	}
	stored, _, err := store.Create(t.Context(), open.Draft)
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range changing {
		path := strings.NewReplacer("TASK", string(stored.ID), "FAILED", string(stored.ID)).Replace(at.path)
		a := d.call(at.method, path, at.body, cmdbHeaders()...)
		if strings.HasPrefix(at.path, "/v1") && (a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "") {
			t.Errorf("%s: %d %s, Retry-After %q", name, a.status, a.text, a.header.Get("Retry-After"))
		}
		if a.body["result"] == true {
			t.Errorf("%s: %s", name, a.text)
		}
	}
	if n := len(queue.rounds()); n != 0 {
		t.Errorf("%d publications", n)
	}
	tasks, err := store.Tasks(t.Context(), taskstore.TaskQuery{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if task.ID == stored.ID && task.Held() || task.ID != stored.ID && task.State != procfleet.TaskRejected {
			t.Errorf("%s is %s", task.ID, task.State)
		}
	}
	b := catalog.Business{Account: "0", ID: 2}
	topology, err := store.Topology(t.Context(), b)
	if err != nil || len(topology.Sets) != 0 || topology.AutoRegister {
		t.Errorf("topology %+v, %v", topology, err)
	}
	_, templates, err := store.SearchTemplates(t.Context(), b, catalog.Search{Limit: 10})
	if err != nil || templates != 0 {
		t.Errorf("%d processes, %v", templates, err)
	}
	freezes, err := store.FreezePage(t.Context(), catalog.Scope{}, 10)
	if err != nil || len(freezes) != 0 {
		t.Errorf("freezes %v, %v", freezes, err)
	}
	_, total, err := store.EntryPage(t.Context(), "shop", 0, 10)
	if err != nil || total != 0 {
		t.Errorf("%d registrations, %v", total, err)
	}
}
