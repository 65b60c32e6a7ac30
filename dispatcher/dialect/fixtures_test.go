package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

var update = flag.Bool("update", false, "rewrite what the fixtures expect")

const (
	testTask      = procfleet.TaskID("GSETASK:20261121053522:123456")
	testRequestID = "0123456789abcdef0123456789abcdef"
)

// A fixture is a folder testdata/<dialect>/<case> with these input files:
//
//	request.json   the call or path, method, query, headers and body; the path
//	               for calls whose path has wildcards
//	results.json   items, for calls that answer with results
//	tasks.json     tasks, for calls that answer with tasks
//	hosts.json     agents, for calls that answer with hosts
//	outcomes.json  code and message per target, for calls that register or group
//	groups.json    the groups per target
//	entries.json   entries, per target or of a page, and the page's total
//	agents.json    the agent per target, null for none
//	bound.json     whether each agent id was bound
//	frozen.json    the outcome of freezing or lifting
//	freezes.json   the current freezes
//	events.json    events of agents
//	health.json    the state of the parts
//	edited.json    the outcomes of edits of processes in the catalog
//	existed.json   whether the deleted process existed
//	template.json  the process of the catalog, null for none
//	plan.json      the plan, for requests with plan=true
//	topology.json  a topology, or its new version
//	templates.json a page of the catalog, and its total
//	saved.json     the outcomes of processes that were saved by name
//	drift.json     the state of a process of the catalog on hosts
//
// A result without a target has the target of the query at the same position.
//
// The folder also has the expected output, which -update rewrites:
//
//	decoded.json   the submission or query; absent if it must be refused
//	response.json  status, location and body
type fixture struct {
	dir     string
	request fixtureRequest
}

type fixtureRequest struct {
	Call               string          `json:"call"` // under the dialect's own paths
	Path               string          `json:"path"` // instead of the call
	Method             string          `json:"method"`
	ID                 string          `json:"id"`
	Query              string          `json:"query"`
	Authorization      string          `json:"authorization"`
	BkapiAuthorization string          `json:"bkapi_authorization"`
	LastEventID        string          `json:"last_event_id"`
	ContentType        string          `json:"content_type"`
	IfMatch            string          `json:"if_match"`
	CMDBUser           string          `json:"cmdb_user"`
	CMDBSupplier       string          `json:"cmdb_supplier"`
	Body               json.RawMessage `json:"body"`
	Text               string          `json:"text"` // instead of a body that is JSON
}

// request returns the request as the dispatcher passes it to the call of the place.
func (f *fixtureRequest) request(t *testing.T, at place) *Request {
	t.Helper()
	query, err := url.ParseQuery(f.Query)
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(f.Body)
	if f.Text != "" {
		body = []byte(f.Text)
	}
	return &Request{
		Method: f.Method, ID: f.ID, Wildcards: at.wildcards, Query: query, Body: body,
		Authorization: f.Authorization, BkapiAuthorization: f.BkapiAuthorization, LastEventID: f.LastEventID,
		ContentType: f.ContentType, IfMatch: f.IfMatch,
		CMDBUser: f.CMDBUser, CMDBSupplier: f.CMDBSupplier,
	}
}

func TestEveryDialectDoesWhatItsFixturesSay(t *testing.T) {
	t.Parallel()
	for _, d := range All() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			used := make(map[string]bool)
			families := make(map[int]bool)
			for _, f := range fixtures(t, d.Name) {
				at := f.request.place(t, &d)
				used[at.call.Name], families[at.family] = true, true
				t.Run(filepath.Base(f.dir), func(t *testing.T) { f.check(t, at) })
			}
			for i, family := range d.Reached() {
				if !families[i] {
					t.Errorf("no fixture uses the paths of %v: add one in testdata/%s", family.Prefixes, d.Name)
				}
				for _, call := range family.Calls {
					if !used[call.Name] {
						t.Errorf("no fixture uses %s: add one in testdata/%s", call.Name, d.Name)
					}
				}
			}
		})
	}
}

func fixtures(t *testing.T, name string) []fixture {
	t.Helper()
	requests, err := filepath.Glob(filepath.Join("testdata", name, "*", "request.json"))
	if err != nil {
		t.Fatal(err)
	}
	var found []fixture
	for _, path := range requests {
		f := fixture{dir: filepath.Dir(path)}
		f.read(t, "request.json", &f.request)
		found = append(found, f)
	}
	return found
}

func (f *fixture) read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s/%s: %v", f.dir, name, err)
	}
}

// place is the destination of a request: a family of the dialect's paths, and the call. If there
// is no call, missing says whether the path or the method is unknown.
type place struct {
	family      int
	credentials func(*Request) (Credentials, error)
	fail        func(*Error, string) Reply
	call        Call
	wildcards   map[string]string
	missing     Kind
}

// place returns the destination of the request, found by the call's name or by the path.
func (f *fixtureRequest) place(t *testing.T, d *Dialect) place {
	t.Helper()
	if f.Path == "" {
		for _, call := range d.Calls {
			if call.Name == f.Call {
				return place{credentials: d.Credentials, fail: d.Fail, call: call}
			}
		}
		t.Fatalf("there is no call %q", f.Call)
	}
	mux := http.NewServeMux()
	var found *place
	lead := func(pattern string, byMethod map[string]place, otherwise place) {
		mux.HandleFunc(pattern, func(_ http.ResponseWriter, r *http.Request) {
			there, ok := byMethod[r.Method]
			if !ok {
				there = otherwise
			}
			there.wildcards = wildcards(r)
			found = &there
		})
	}
	for i, family := range d.Reached() {
		calls := make(map[string]map[string]place) // by path and method
		for _, call := range family.Calls {
			for _, path := range call.Paths {
				for _, method := range call.Methods {
					if calls[path] == nil {
						calls[path] = make(map[string]place)
					}
					calls[path][method] = place{family: i, credentials: family.Credentials, fail: family.Fail, call: call}
				}
			}
		}
		for path, byMethod := range calls {
			lead(path, byMethod, place{family: i, fail: family.Fail, missing: BadMethod})
		}
		for _, prefix := range family.Prefixes {
			lead(prefix, nil, place{family: i, fail: family.Fail, missing: NoRoute})
		}
	}
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), f.Method, f.Path, http.NoBody))
	if found == nil {
		t.Fatalf("no family has the path %s", f.Path)
	}
	return *found
}

// wildcards returns the values of the pattern's wildcards in the request's path.
func wildcards(r *http.Request) map[string]string {
	found := make(map[string]string)
	for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(r.Pattern, -1) {
		found[name[1]] = r.PathValue(name[1])
	}
	return found
}

func (f *fixture) check(t *testing.T, at place) {
	t.Helper()
	decoded, reply, err := f.run(t, at)
	if err != nil {
		failure, ok := errors.AsType[*Error](err)
		if !ok {
			t.Fatalf("refused with %T, want *Error: %v", err, err)
		}
		failure.Call = at.call.Name
		decoded, reply = nil, at.fail(failure, testRequestID)
	}
	f.compare(t, "decoded.json", decoded)
	f.compare(t, "response.json", map[string]any{"status": reply.Status, "location": reply.Location, "body": reply.Body})
}

// run decodes the request and encodes the answer to it.
func (f *fixture) run(t *testing.T, at place) (decoded any, reply Reply, err error) {
	t.Helper()
	r := f.request.request(t, at)
	var who Credentials
	if at.credentials != nil {
		if who, err = at.credentials(r); err != nil {
			return nil, Reply{}, err
		}
	}
	switch use := at.call.Endpoint.(type) {
	case nil:
		return nil, Reply{}, &Error{
			Kind: at.missing, Problem: "there is no " + f.request.Path, Method: f.request.Method, Path: f.request.Path,
		}
	case Accept:
		submission, err := use.Decode(r)
		submission.Application = who.Application
		if planned, refused := f.planned(r, use); refused != nil {
			return nil, Reply{}, refused
		} else if planned && err == nil {
			var p v1.Plan
			f.read(t, "plan.json", &p)
			return submission, use.Plan(&p, testRequestID), nil
		}
		return submission, use.Encode(testTask, testRequestID), err
	case Outcomes:
		if decoded, err = use.Decode(r); err != nil {
			return nil, Reply{}, err
		}
		var out bytes.Buffer
		if err := use.Encode(&out, testRequestID, f.items(t)); err != nil {
			t.Fatal(err)
		}
		return decoded, Reply{Status: 200, Body: json.RawMessage(out.Bytes())}, nil
	case ShowTask:
		var tasks []procfleet.Task
		f.read(t, "tasks.json", &tasks)
		id, err := use.Decode(r)
		return id, use.Encode(&id, &tasks[0], testRequestID), err
	case Watch:
		var tasks []procfleet.Task
		f.read(t, "tasks.json", &tasks)
		decoded, err = use.Decode(r)
		return decoded, use.Encode(&tasks[0]), err
	case FollowTasks:
		var event v1.TaskEvent
		f.read(t, "event.json", &event)
		q, err := use.Decode(r)
		return q, use.Encode(&q, event, testRequestID), err
	case ControlTask:
		q, err := use.Decode(r)
		if q.Planned {
			var p v1.Plan
			f.read(t, "plan.json", &p)
			return q, use.Encode(&q, Controlled{Plan: &p}, testRequestID), err
		}
		var tasks []procfleet.Task
		f.read(t, "tasks.json", &tasks)
		return q, use.Encode(&q, Controlled{Task: &tasks[0]}, testRequestID), err
	case ListTasks:
		var tasks []procfleet.Task
		f.read(t, "tasks.json", &tasks)
		page, err := use.Decode(r)
		return page, use.Encode(&page, Tasks{tasks, testTask}, testRequestID), err
	case ListResults:
		var all []procfleet.ItemResult
		for chunk, err := range f.items(t) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, chunk...)
		}
		page, err := use.Decode(r)
		return page, use.Encode(&page, Results{all, "more"}, testRequestID), err
	case ListHosts:
		var agents []v1.Agent
		f.read(t, "hosts.json", &agents)
		page, err := use.Decode(r)
		found := Hosts{Agents: agents}
		if len(agents) > 0 && len(agents) == page.Limit {
			found.Next = agents[len(agents)-1].Host
		}
		return page, use.Encode(&page, found, testRequestID), err
	case ListAudit:
		var found v1.AuditPage
		f.read(t, "audit.json", &found)
		q, err := use.Decode(r)
		return q, use.Encode(&q, found, testRequestID), err
	case ShowOutput:
		var page v1.OutputPage
		f.read(t, "output.json", &page)
		q, err := use.Decode(r)
		return q, use.Encode(&q, page, testRequestID), err
	case ListFleet:
		var found FleetProcesses
		f.read(t, "fleet.json", &found)
		page, err := use.Decode(r)
		return page, use.Encode(&page, found, testRequestID), err
	case Register:
		return answer(t, f, r, use.Decode, use.Encode, outcomesFile(func(q *Registering) []procfleet.Target { return q.Targets }))
	case SetGroups:
		return answer(t, f, r, use.Decode, use.Encode, outcomesFile(func(q *Grouping) []procfleet.Target { return q.Targets }))
	case LabelHosts:
		return answer(t, f, r, use.Decode, use.Encode, outcomesFile(func(q *LabelChange) []procfleet.Target { return q.Targets }))
	case ShowGroups:
		return answer(t, f, r, use.Decode, use.Encode, groupsFile)
	case ShowProcesses:
		return answer(t, f, r, use.Decode, use.Encode, entriesFile)
	case ListProcesses:
		return answer(t, f, r, use.Decode, use.Encode, entryPageFile)
	case ShowAgents:
		return answer(t, f, r, use.Decode, use.Encode, agentsFile)
	case BindAgents:
		return answer(t, f, r, use.Decode, use.Encode, boundFile)
	case Freeze:
		return answer(t, f, r, use.Decode, use.Encode, frozenFile)
	case ListFreezes:
		var freezes []catalog.Freeze
		f.read(t, "freezes.json", &freezes)
		page, err := use.Decode(r)
		return page, use.Encode(&page, freezes, testRequestID), err
	case SearchTemplates:
		return answer(t, f, r, use.Decode, func(q *TemplateSearch, p templatePage, id string) Reply {
			reply := use.Encode(q, p.Templates, p.Total, id)
			if q.Search.Limit == 0 {
				sameInParts(t, use, q, p, reply)
			}
			return reply
		}, file[TemplateSearch, templatePage]("templates.json"))
	case SaveTemplates:
		return answer(t, f, r, use.Decode, use.Encode, file[NamedTemplates, TemplatesSaved]("saved.json"))
	case ShowDrift:
		return answer(t, f, r, use.Decode, func(q *DriftQuery, d Drift, id string) Reply {
			return use.Encode(q, &d, id)
		}, file[DriftQuery, Drift]("drift.json"))
	case ListEvents:
		var found Events
		f.read(t, "events.json", &found)
		page, err := use.Decode(r)
		return page, use.Encode(&page, found, testRequestID), err
	case ShowHealth:
		return answer(t, f, r, use.Decode, use.Encode, file[HealthQuery, *Health]("health.json"))
	case SetPolicies:
		return answer(t, f, r, use.Decode, use.Encode, file[PolicyChange, catalog.RolloutPolicies]("policies.json"))
	case SetSchedule:
		return answer(t, f, r, use.Decode, use.Encode, file[ScheduleChange, PlannedSchedule]("schedule.json"))
	case ListSchedules:
		return answer(t, f, r, use.Decode, use.Encode, file[ScheduleQuery, []PlannedSchedule]("schedules.json"))
	case RemoveSchedule:
		return answer(t, f, r, use.Decode, use.Encode, file[ScheduleRemoval, bool]("existed.json"))
	case SetWebhook:
		return answer(t, f, r, use.Decode, use.Encode, file[WebhookChange, ShownWebhook]("webhook.json"))
	case ListWebhooks:
		return answer(t, f, r, use.Decode, use.Encode, file[WebhookQuery, []ShownWebhook]("webhooks.json"))
	case RemoveWebhook:
		return answer(t, f, r, use.Decode, use.Encode, file[WebhookRemoval, bool]("existed.json"))
	case ListDead:
		return answer(t, f, r, use.Decode, use.Encode, file[DeadQuery, []catalog.DeadDelivery]("dead.json"))
	case Redeliver:
		return answer(t, f, r, use.Decode, use.Encode, file[Redelivery, string]("problem.json"))
	case ShowPolicies:
		return answer(t, f, r, use.Decode, use.Encode, file[PolicyQuery, catalog.RolloutPolicies]("policies.json"))
	case SetTopology:
		return answer(t, f, r, use.Decode, use.Encode, file[TopologyChange, TopologyShown]("topology.json"))
	case EditTopology:
		return answer(t, f, r, use.Decode, use.Encode, file[TopologyEdit, int64]("topology.json"))
	case ShowTopology:
		return answer(t, f, r, use.Decode, use.Encode, file[TopologyQuery, TopologyShown]("topology.json"))
	case EditTemplates:
		return answer(t, f, r, use.Decode, use.Encode, file[TemplateEdits, TemplatesEdited]("edited.json"))
	case DeleteTemplate:
		return answer(t, f, r, use.Decode, use.Encode, file[TemplateQuery, bool]("existed.json"))
	case ShowTemplate:
		return orFailure(t, f, r, use.Decode, use.Encode, file[TemplateQuery, *catalog.Template]("template.json"))
	case ShowModules:
		return answer(t, f, r, use.Decode, use.Encode, func(t *testing.T, f *fixture, q *TemplateQuery) TemplateModules {
			t.Helper()
			return TemplateModules{file[TemplateQuery, *catalog.Template]("template.json")(t, f, q), file[TemplateQuery, *catalog.Topology]("topology.json")(t, f, q)}
		})
	}
	t.Fatalf("%s has an endpoint that fixtures do not know: %T", at.call.Name, at.call.Endpoint)
	return nil, Reply{}, nil
}

// sameInParts verifies that a response written in parts equals the response written at once.
func sameInParts(t *testing.T, use SearchTemplates, q *TemplateSearch, p templatePage, whole Reply) {
	t.Helper()
	var parts bytes.Buffer
	err := use.EncodeAll(&parts, q, p.Total, func(yield func([]catalog.Template, error) bool) {
		for some := range slices.Chunk(p.Templates, 1) {
			if !yield(nil, nil) || !yield(some, nil) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want, err := whole.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), parts.String()); diff != "" {
		t.Errorf("at once and in parts (-want +got):\n%s", diff)
	}
}

// planned reports whether the request is to be planned, as the server does.
func (*fixture) planned(r *Request, use Accept) (bool, error) {
	if use.Plan == nil {
		return false, nil
	}
	return Planned(r)
}

// items reads results.json: specs, and chunks of items that refer to them.
func (f *fixture) items(t *testing.T) iter.Seq2[[]procfleet.ItemResult, error] {
	t.Helper()
	var from struct {
		Specs  []procfleet.ProcessSpec `json:"specs"`
		Chunks [][]struct {
			procfleet.Item
			State  procfleet.State  `json:"state"`
			Result procfleet.Result `json:"result"`
		} `json:"chunks"`
	}
	f.read(t, "results.json", &from)
	return func(yield func([]procfleet.ItemResult, error) bool) {
		n := 0
		for _, chunk := range from.Chunks {
			var items []procfleet.ItemResult
			for _, it := range chunk {
				items = append(items, procfleet.ItemResult{
					Index: n, Item: it.Item, Spec: &from.Specs[it.Spec], State: it.State, Result: it.Result,
				})
				n++
			}
			if !yield(items, nil) {
				return
			}
		}
	}
}

// compare checks a value against a golden file, or writes it. A nil value has
// no file.
func (f *fixture) compare(t *testing.T, name string, value any) {
	t.Helper()
	path := filepath.Join(f.dir, name)
	var got []byte
	if value != nil {
		var err error
		if got, err = appendJSON(nil, value); err != nil {
			t.Fatal(err)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, got, "", "  "); err != nil {
			t.Fatal(err)
		}
		got = append(pretty.Bytes(), '\n')
	}
	if *update {
		f.rewrite(t, path, got)
		return
	}
	want, err := os.ReadFile(path)
	if err != nil && (value != nil || !errors.Is(err, os.ErrNotExist)) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func (f *fixture) rewrite(t *testing.T, path string, got []byte) {
	t.Helper()
	var err error
	if got == nil {
		if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	} else {
		err = os.WriteFile(path, got, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnEncoderStopsAtTheFirstErrorOfEitherSide(t *testing.T) {
	t.Parallel()
	away := errors.New("store is away")
	broken := func(yield func([]procfleet.ItemResult, error) bool) {
		if yield([]procfleet.ItemResult{{Spec: &procfleet.ProcessSpec{Name: "n"}}}, nil) {
			yield(nil, away)
		}
	}
	for _, d := range All() {
		for _, call := range d.Calls {
			use, ok := call.Endpoint.(Outcomes)
			if !ok {
				continue
			}
			if err := use.Encode(io.Discard, testRequestID, broken); !errors.Is(err, away) {
				t.Errorf("%s: store error became %v", call.Name, err)
			}
			if err := use.Encode(closedWriter{}, testRequestID, broken); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s: write error became %v", call.Name, err)
			}
		}
	}
}

type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
