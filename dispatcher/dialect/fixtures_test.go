package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect/dialecttest"
)

var update = flag.Bool("update", false, "rewrite what the fixtures expect")

const (
	testTask      = procfleet.TaskID("GSETASK:20261121053522:123456")
	testRequestID = "0123456789abcdef0123456789abcdef"
)

// A fixture is a case of a file testdata/<dialect>/<call>.txtar, as package dialecttest reads it. Its
// input is the request, and one of these sections:
//
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
// These sections are the expected output, which -update rewrites:
//
//	decoded.json   the submission or query; absent if it must be refused
//	response.http  status, headers and body
type fixture struct{ *dialecttest.Case }

// request returns the request as the dispatcher passes it to the call of the place.
func (f *fixture) request(at place) *Request {
	header := f.Request.Header
	return &Request{
		Method: f.Request.Method, ID: at.wildcards["id"], Wildcards: at.wildcards, Query: f.Request.URL.Query(), Body: f.Body,
		Authorization: header.Get("Authorization"), BkapiAuthorization: header.Get("X-Bkapi-Authorization"),
		LastEventID: header.Get("Last-Event-ID"), ContentType: header.Get("Content-Type"), IfMatch: header.Get("If-Match"),
		CMDBUser: header.Get("BK_USER"), CMDBSupplier: header.Get("HTTP_BLUEKING_SUPPLIER_ID"),
	}
}

func TestEveryDialectDoesWhatItsFixturesSay(t *testing.T) {
	t.Parallel()
	for _, d := range All() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			used := make(map[string]bool)
			families := make(map[int]bool)
			routes := newRoutes(&d)
			for _, file := range fixtures(t, &d) {
				t.Run(file.Call, func(t *testing.T) {
					for _, c := range file.Cases {
						at := routes.place(t, c.Request)
						used[at.call.Name], families[at.family] = true, true
						t.Run(c.Name, func(t *testing.T) {
							if belongs := fileOf(&d, &at.call); file.Call != belongs {
								t.Errorf("the request is in %s.txtar, and reaches the call of %s.txtar", file.Call, belongs)
							}
							(&fixture{c}).check(t, at)
						})
					}
					if *update {
						if err := file.Write(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for i, family := range d.Reached() {
				if !families[i] {
					t.Errorf("no fixture uses the paths of %v: add one in testdata/%s", family.Prefixes, d.Name)
				}
				for _, call := range family.Calls {
					if !used[call.Name] {
						t.Errorf("no fixture uses %s: add testdata/%s/%s.txtar", call.Name, d.Name, fileOf(&d, &call))
					}
				}
			}
		})
	}
}

func fixtures(t *testing.T, d *Dialect) []*dialecttest.File {
	t.Helper()
	return dialecttest.Read(t, filepath.Join("testdata", d.Name))
}

// fileOf returns the name of the file with the fixtures of a call.
func fileOf(d *Dialect, call *Call) string {
	if call.Name == "" {
		return "no_call"
	}
	return strings.TrimPrefix(call.Name, d.Name+".")
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

// routes finds the places of a dialect.
type routes struct {
	mux   *http.ServeMux
	found *place // of the last request
}

func newRoutes(d *Dialect) *routes {
	to := &routes{mux: http.NewServeMux()}
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
			to.lead(path, byMethod, place{family: i, fail: family.Fail, missing: BadMethod})
		}
		for _, prefix := range family.Prefixes {
			to.lead(prefix, nil, place{family: i, fail: family.Fail, missing: NoRoute})
		}
	}
	return to
}

// lead sets the places of the requests that match a pattern.
func (to *routes) lead(pattern string, byMethod map[string]place, otherwise place) {
	to.mux.HandleFunc(pattern, func(_ http.ResponseWriter, r *http.Request) {
		there, ok := byMethod[r.Method]
		if !ok {
			there = otherwise
		}
		there.wildcards = wildcards(r)
		to.found = &there
	})
}

// place returns the destination of a request.
func (to *routes) place(t *testing.T, r *http.Request) place {
	t.Helper()
	to.found = nil
	to.mux.ServeHTTP(httptest.NewRecorder(), r)
	if to.found == nil {
		t.Fatalf("no family has the path %s", r.URL.Path)
	}
	return *to.found
}

var wildcardNames = regexp.MustCompile(`\{(\w+)\}`)

// wildcards returns the values of the pattern's wildcards in the request's path.
func wildcards(r *http.Request) map[string]string {
	found := make(map[string]string)
	for _, name := range wildcardNames.FindAllStringSubmatch(r.Pattern, -1) {
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
	var query []byte
	if decoded != nil {
		query = appendReadable(t, nil, decoded)
	}
	response := fmt.Appendf(nil, "HTTP/1.1 %d %s\n", reply.Status, http.StatusText(reply.Status))
	for _, header := range [][2]string{{"Location", reply.Location}, {"WWW-Authenticate", reply.Authenticate}, {"ETag", reply.ETag}} {
		if header[1] != "" {
			response = fmt.Appendf(response, "%s: %s\n", header[0], header[1])
		}
	}
	response = appendReadable(t, append(response, '\n'), reply.Body)
	if *update {
		f.Expect(query, response)
		return
	}
	for name, got := range map[string][]byte{dialecttest.Decoded: query, dialecttest.Response: response} {
		if diff := cmp.Diff(string(f.Section(name)), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func appendReadable(t *testing.T, dst []byte, value any) []byte {
	t.Helper()
	text, err := appendJSON(nil, value)
	if err != nil {
		t.Fatal(err)
	}
	if dst, err = dialecttest.AppendJSON(dst, text); err != nil {
		t.Fatal(err)
	}
	return dst
}

// run decodes the request and encodes the answer to it.
func (f *fixture) run(t *testing.T, at place) (decoded any, reply Reply, err error) {
	t.Helper()
	r := f.request(at)
	var who Credentials
	if at.credentials != nil {
		if who, err = at.credentials(r); err != nil {
			return nil, Reply{}, err
		}
	}
	switch use := at.call.Endpoint.(type) {
	case nil:
		return nil, Reply{}, &Error{
			Kind: at.missing, Problem: "there is no " + f.Request.URL.Path, Method: r.Method, Path: f.Request.URL.Path,
		}
	case Accept:
		submission, err := use.Decode(r)
		submission.Application = who.Application
		if planned, refused := f.planned(r, use); refused != nil {
			return nil, Reply{}, refused
		} else if planned && err == nil {
			var p v1.Plan
			f.Unmarshal(t, "plan.json", &p)
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
		f.Unmarshal(t, "tasks.json", &tasks)
		id, err := use.Decode(r)
		return id, use.Encode(&id, &tasks[0], testRequestID), err
	case Watch:
		var tasks []procfleet.Task
		f.Unmarshal(t, "tasks.json", &tasks)
		decoded, err = use.Decode(r)
		return decoded, use.Encode(&tasks[0]), err
	case FollowTasks:
		var event v1.TaskEvent
		f.Unmarshal(t, "event.json", &event)
		q, err := use.Decode(r)
		return q, use.Encode(&q, event, testRequestID), err
	case ControlTask:
		q, err := use.Decode(r)
		if q.Planned {
			var p v1.Plan
			f.Unmarshal(t, "plan.json", &p)
			return q, use.Encode(&q, Controlled{Plan: &p}, testRequestID), err
		}
		var tasks []procfleet.Task
		f.Unmarshal(t, "tasks.json", &tasks)
		return q, use.Encode(&q, Controlled{Task: &tasks[0]}, testRequestID), err
	case ListTasks:
		var tasks []procfleet.Task
		f.Unmarshal(t, "tasks.json", &tasks)
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
		f.Unmarshal(t, "hosts.json", &agents)
		page, err := use.Decode(r)
		found := Hosts{Agents: agents}
		if len(agents) > 0 && len(agents) == page.Limit {
			found.Next = agents[len(agents)-1].Host
		}
		return page, use.Encode(&page, found, testRequestID), err
	case ListAudit:
		var found v1.AuditPage
		f.Unmarshal(t, "audit.json", &found)
		q, err := use.Decode(r)
		return q, use.Encode(&q, found, testRequestID), err
	case ShowOutput:
		var page v1.OutputPage
		f.Unmarshal(t, "output.json", &page)
		q, err := use.Decode(r)
		return q, use.Encode(&q, page, testRequestID), err
	case ListFleet:
		var found FleetProcesses
		f.Unmarshal(t, "fleet.json", &found)
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
		f.Unmarshal(t, "freezes.json", &freezes)
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
		f.Unmarshal(t, "events.json", &found)
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
	f.Unmarshal(t, "results.json", &from)
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
