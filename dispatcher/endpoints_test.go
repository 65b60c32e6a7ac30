package dispatcher

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/webhook"
	"github.com/procfleet/procfleet/internal/bus"
)

// actionOf returns the action that an endpoint requires of every caller.
func actionOf(t *testing.T, d dialect.Endpoint) string {
	t.Helper()
	byKind, err := endpointsByKind(endpoints())
	if err != nil {
		t.Fatal(err)
	}
	return byKind[reflect.TypeOf(d)].action
}

// endpointRequest is a request that an endpoint answers if the caller may make it.
// In its path and body, TASK is a rejected task of the application free for business 1,
// OPEN an open one,
// and PROCESS a process in the catalog of business 2.
type endpointRequest struct {
	method, path, body string
	// elsewhere is the refusal of an application that may do everything, but
	// only for business 3.
	elsewhere string
	needsUser bool
}

const forbidden, hidden, allowed = "forbidden", "not_found", ""

// endpointRequests has a request for every endpoint of the dispatcher.
var endpointRequests = map[reflect.Type]endpointRequest{
	reflect.TypeFor[dialect.Accept]():          {http.MethodPost, "/v1/tasks", nativeBody("0:10.0.0.1"), forbidden, false},
	reflect.TypeFor[dialect.Outcomes]():        {http.MethodPost, resultPath, `{"task_id":"TASK"}`, hidden, true},
	reflect.TypeFor[dialect.Watch]():           {http.MethodGet, "/v1/tasks/TASK/events", "", hidden, false},
	reflect.TypeFor[dialect.FollowTasks]():     {http.MethodGet, "/v1/tasks/events", "", allowed, false},
	reflect.TypeFor[dialect.ShowTask]():        {http.MethodGet, "/v1/tasks/TASK", "", hidden, false},
	reflect.TypeFor[dialect.ControlTask]():     {http.MethodPost, "/v1/tasks/OPEN/pause", `{"reason":"maintenance"}`, hidden, false},
	reflect.TypeFor[dialect.ListTasks]():       {http.MethodGet, "/v1/tasks", "", allowed, false},
	reflect.TypeFor[dialect.ListResults]():     {http.MethodGet, "/v1/tasks/TASK/results", "", hidden, false},
	reflect.TypeFor[dialect.ListHosts]():       {http.MethodGet, "/v1/hosts", "", forbidden, false},
	reflect.TypeFor[dialect.ListFleet]():       {http.MethodGet, "/v1/hosts/processes", "", forbidden, false},
	reflect.TypeFor[dialect.ShowOutput]():      {http.MethodGet, "/v1/processes/output?host=0:10.0.0.1&process=shop/web&business=2", "", forbidden, false},
	reflect.TypeFor[dialect.ListAudit]():       {http.MethodGet, "/v1/audit", "", allowed, false},
	reflect.TypeFor[dialect.Register]():        {http.MethodPut, "/v1/registrations", `{"business":"2","process":{"namespace":"shop","name":"web","proc_name":"nginx"},"hosts":["0:10.0.0.1"]}`, forbidden, false},
	reflect.TypeFor[dialect.LabelHosts]():      {http.MethodPut, "/v1/labels", `{"business":"2","set":{"zone":"a"},"hosts":["0:10.0.0.1"]}`, forbidden, false},
	reflect.TypeFor[dialect.SetGroups]():       {http.MethodPut, "/v1/groups", `{"business":"2","namespace":"shop","groups":[],"hosts":["0:10.0.0.1"]}`, forbidden, false},
	reflect.TypeFor[dialect.ShowGroups]():      {http.MethodPost, "/v1/groups/query", `{"business":"2","namespace":"shop","hosts":["0:10.0.0.1"]}`, forbidden, false},
	reflect.TypeFor[dialect.ShowProcesses]():   {http.MethodPost, "/v1/processes/query", `{"business":"2","process":{"namespace":"shop","name":"web"},"hosts":["0:10.0.0.1"]}`, forbidden, false},
	reflect.TypeFor[dialect.ListProcesses]():   {http.MethodGet, "/v1/processes?business=2&namespace=shop", "", forbidden, false},
	reflect.TypeFor[dialect.ShowAgents]():      {http.MethodPost, "/v1/agents/query", `{"business":"2","hosts":["0:10.0.0.1"]}`, forbidden, false},
	reflect.TypeFor[dialect.BindAgents]():      {http.MethodPost, "/v1/agents/bindings", `{"business":"2","bindings":[{"host":"0:10.0.0.9","agent_id":"a-1"}]}`, forbidden, false},
	reflect.TypeFor[dialect.Freeze]():          {http.MethodPut, "/v1/freezes", `{"business":"2","hosts":["0:10.0.0.1"],"ttl":"2h"}`, forbidden, false},
	reflect.TypeFor[dialect.ListFreezes]():     {http.MethodGet, "/v1/freezes", "", forbidden, false},
	reflect.TypeFor[dialect.ListEvents]():      {http.MethodGet, "/v1/events", "", forbidden, false},
	reflect.TypeFor[dialect.ShowHealth]():      {http.MethodGet, "/v1/health", "", forbidden, false},
	reflect.TypeFor[dialect.EditTemplates]():   {http.MethodPut, "/api/v3/proc/0/2/PROCESS", `{"start_cmd":"./start"}`, forbidden, false},
	reflect.TypeFor[dialect.SaveTemplates]():   {http.MethodPut, "/v1/catalogue/2", `{"processes":[{"name":"saved"}]}`, forbidden, false},
	reflect.TypeFor[dialect.DeleteTemplate]():  {http.MethodDelete, "/api/v3/proc/0/2/9999", "", forbidden, false},
	reflect.TypeFor[dialect.ShowTemplate]():    {http.MethodGet, "/api/v3/proc/0/2/PROCESS", "", forbidden, false},
	reflect.TypeFor[dialect.SearchTemplates](): {http.MethodGet, "/v1/catalogue/2", "", forbidden, false},
	reflect.TypeFor[dialect.ShowModules]():     {http.MethodGet, "/api/v3/proc/module/0/2/PROCESS", "", forbidden, false},
	reflect.TypeFor[dialect.ShowDrift]():       {http.MethodGet, "/v1/processes/2/PROCESS/status", "", forbidden, false},
	reflect.TypeFor[dialect.SetPolicies]():     {http.MethodPut, "/v1/rollouts/2", `{"policies":[]}`, forbidden, false},
	reflect.TypeFor[dialect.SetSchedule]():     {http.MethodPut, "/v1/schedules/2/nightly", scheduleBody, forbidden, false},
	reflect.TypeFor[dialect.ListSchedules]():   {http.MethodGet, "/v1/schedules/2", "", forbidden, false},
	reflect.TypeFor[dialect.RemoveSchedule]():  {http.MethodDelete, "/v1/schedules/2/nightly", "", forbidden, false},
	reflect.TypeFor[dialect.SetWebhook]():      {http.MethodPut, "/v1/webhooks/hook", webhookRequest, allowed, false},
	reflect.TypeFor[dialect.ListWebhooks]():    {http.MethodGet, "/v1/webhooks", "", allowed, false},
	reflect.TypeFor[dialect.ListDead]():        {http.MethodGet, "/v1/webhooks/hook/dead", "", allowed, false},
	reflect.TypeFor[dialect.Redeliver]():       {http.MethodPost, "/v1/webhooks/hook/redeliver", `{"event":"DEAD"}`, allowed, false},
	reflect.TypeFor[dialect.RemoveWebhook]():   {http.MethodDelete, "/v1/webhooks/hook", "", allowed, false},
	reflect.TypeFor[dialect.ShowPolicies]():    {http.MethodGet, "/v1/rollouts/2", "", forbidden, false},
	reflect.TypeFor[dialect.SetTopology]():     {http.MethodPut, "/v1/topology/2", `{"sets":[]}`, forbidden, false},
	reflect.TypeFor[dialect.EditTopology]():    {http.MethodPatch, "/v1/topology/2", `{"auto_register":false}`, forbidden, false},
	reflect.TypeFor[dialect.ShowTopology]():    {http.MethodGet, "/v1/topology/2", "", forbidden, false},
}

// TestEveryEndpointRefusesEveryCallerWithoutTheRight calls every endpoint as
// every kind of caller. An endpoint without a request in the table fails it.
func TestEveryEndpointRefusesEveryCallerWithoutTheRight(t *testing.T) {
	t.Parallel()
	d, fill := startRefusingServer(t)
	header := func(members ...string) []string { return append(bkapi(members...), cmdbHeaders()...) }
	callers := []struct {
		name   string
		header []string
		want   func(action string, r endpointRequest) string
	}{
		{"no credentials", header(), func(string, endpointRequest) string { return "no_application" }},
		{"an application without a secret", header("bk_app_code", "free"), func(string, endpointRequest) string { return "no_secret" }},
		{"an unknown application", header("bk_app_code", "nobody", "bk_app_secret", "s3cret"), func(string, endpointRequest) string { return "unknown_application" }},
		{"a wrong secret", header("bk_app_code", "free", "bk_app_secret", "guess"), func(string, endpointRequest) string { return "wrong_secret" }},
		{"a user who is not authenticated", header("bk_app_code", "plain", "bk_app_secret", "s3cret", "bk_username", "ann"), func(_ string, r endpointRequest) string {
			if r.needsUser {
				return "no_user"
			}
			return allowed
		}},
		{"an application that may only start", header("bk_app_code", "starter", "bk_app_secret", "s3cret", "bk_username", "ann"), func(string, endpointRequest) string { return forbidden }},
		{"an application that may only read", header("bk_app_code", "reader", "bk_app_secret", "s3cret", "bk_username", "ann"), func(action string, _ endpointRequest) string {
			if action == apps.Registration || action == apps.Catalogue || action == apps.Output {
				return forbidden
			}
			return allowed
		}},
		{"an application of another business", header("bk_app_code", "elsewhere", "bk_app_secret", "s3cret", "bk_username", "ann"), func(_ string, r endpointRequest) string { return r.elsewhere }},
		{"an application with every right", header("bk_app_code", "free", "bk_app_secret", "s3cret", "bk_username", "ann"), func(string, endpointRequest) string { return allowed }},
	}
	calls := callsByKind()
	for _, e := range endpoints() {
		request, listed := endpointRequests[e.kind]
		if !listed {
			t.Errorf("endpointRequests has no request for %v", e.kind)
			continue
		}
		for _, c := range callers {
			a := d.call(request.method, fill.Replace(request.path), fill.Replace(request.body), c.header...)
			refusal, _ := a.body["refused"].(string)
			if want := c.want(e.action, request); refusal != want || (want == allowed) != (a.status/100 == 2) {
				t.Errorf("%v by %s: refused as %q, want %q: %d %s", e.kind, c.name, refusal, want, a.status, a.text)
			}
			if call, _ := a.body["call"].(string); refusal != "" && !slices.Contains(calls[e.kind], call) {
				t.Errorf("%s %s reaches %q, not one of the %v, %v", request.method, request.path, call, e.kind, calls[e.kind])
			}
		}
	}
}

// addElsewhere adds the application elsewhere, which may do everything, but only for business 3.
func addElsewhere(t *testing.T, appsFile string) {
	t.Helper()
	err := apps.Update(appsFile, func(f *apps.File) error {
		only, err := apps.ParseBusinesses([]string{"3"})
		f.Put(apps.Application{Code: "elsewhere", Secret: cheapHash("s3cret"), Businesses: only, Actions: apps.NoLimit(), SkipUserAuth: true})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

const webhookRequest = `{"url":"http://127.0.0.1:1/"}`

// withWebhooks stores a webhook with a dead delivery for each application.
func withWebhooks(t *testing.T, store Store) {
	t.Helper()
	for _, application := range []string{"", "plain", "reader", "elsewhere", "free"} {
		w := catalog.Webhook{Application: application, Name: "hook", URL: "http://127.0.0.1:1/", Secrets: []catalog.WebhookSecret{webhook.NewSecret()}}
		err := store.SetWebhook(t.Context(), w)
		if err == nil {
			err = store.RecordDelivery(t.Context(), application, w.Name, w.State, &catalog.DeadDelivery{Position: 1, Event: "DEAD", Body: []byte("{}")})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// startRefusingServer returns a dispatcher whose dialects encode an error as its reason and the
// name of the call. The replacer fills ids of the store's contents into paths and bodies.
func startRefusingServer(t *testing.T) (*testServer, *strings.Replacer) {
	t.Helper()
	cfg := guarded(t)
	cfg.TaskFeed = noTaskEvents{}
	cfg.Events, cfg.AuditLog, cfg.Outputs, cfg.Broker = noEvents{}, &fakeAuditLog{}, oneLine{}, fakeBroker{}
	addElsewhere(t, cfg.AppsFile)
	dialects := dialect.All()
	for i := range dialects {
		dialects[i].Fail = failWithReason
		for j := range dialects[i].Families {
			dialects[i].Families[j].Fail = failWithReason
		}
	}
	store := openStore(t)
	withAgent(t, store)
	withWebhooks(t, store)
	process := defined(t, store, catalog.Business{Account: "0", ID: 2}, "defined", nil)
	dispatcher, err := newWithDialects(dialects, cfg, store, &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(dispatcher.Handler())
	t.Cleanup(server.Close)
	d := &testServer{t: t, url: server.URL, store: store}
	sub := submission(t, procfleet.ActionStatus, 1)
	sub.Application, sub.Business = "free", "1"
	draft, err := newSubmitter(store, &fakeQueue{}, cfg.WithDefaults()).draft(t.Context(), sub, terms{})
	if err != nil {
		t.Fatal(err)
	}
	var tasks [2]procfleet.Task
	for i := range tasks {
		if tasks[i], _, err = store.Create(t.Context(), draft.Draft); err != nil {
			t.Fatal(err)
		}
	}
	task, open := tasks[0], tasks[1]
	if rejected, err := store.Reject(t.Context(), task.ID, "so that its events end"); !rejected || err != nil {
		t.Fatalf("task %s: rejected %t, %v", task.ID, rejected, err)
	}
	return d, strings.NewReplacer("TASK", string(task.ID), "OPEN", string(open.ID), "PROCESS", strconv.FormatInt(process, 10))
}

func failWithReason(f *dialect.Error, _ string) dialect.Reply {
	reason, is := auth.Refusals[f.Kind]
	if !is {
		reason = f.Kind.String()
	}
	return dialect.Reply{Status: http.StatusTeapot, Body: map[string]string{"refused": reason, "call": f.Call, "problem": f.Problem}}
}

// callsByKind returns the names of the calls of all dialects by the Go type of their endpoint.
func callsByKind() map[reflect.Type][]string {
	names := make(map[reflect.Type][]string)
	for _, d := range dialect.All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				kind := reflect.TypeOf(call.Endpoint)
				names[kind] = append(names[kind], call.Name)
			}
		}
	}
	return names
}

// noEvents is a broker without events.
type noEvents struct{}

func (noEvents) HostEvents(context.Context, bus.HostEventQuery) (bus.HostEventPage, error) {
	return bus.HostEventPage{}, nil
}

func TestADispatcherDoesNotStartWithACallThatItDoesNotServe(t *testing.T) {
	t.Parallel()
	for name, endpoint := range map[string]dialect.Endpoint{"no endpoint": nil, "an unknown one": dialect.Codec[int, int]{}} {
		unserved := plainDialect()
		unserved.Calls = append(unserved.Calls, dialect.Call{Name: "plain.unserved", Paths: []string{"/unserved"}, Methods: []string{http.MethodGet}, Endpoint: endpoint})
		_, err := newWithDialects([]dialect.Dialect{unserved}, testConfig(t), openStore(t), &fakeQueue{})
		if err == nil || !strings.Contains(err.Error(), "plain.unserved") {
			t.Errorf("%s: %v, want an error that names the call", name, err)
		}
	}
}

func TestAnEndpointNeedsAnAuthorizer(t *testing.T) {
	t.Parallel()
	showTask := func(authorize authorizer[procfleet.TaskID, *procfleet.Task]) endpoint {
		return replies(apps.Reading, authorize, (*exchange).showTask)
	}
	for problem, all := range map[string][]endpoint{
		"no authorizer": {showTask(nil)},
		"listed twice":  {showTask((*exchange).readableTask), showTask((*exchange).readableTask)},
	} {
		if _, err := endpointsByKind(all); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%v, want an error with %q", err, problem)
		}
	}
}

// oneLine is an agent whose processes have written one line.
type oneLine struct{}

func (oneLine) Output(context.Context, bus.OutputQuery) (bus.OutputPage, error) {
	return bus.OutputPage{File: "1", Data: []byte("ready\n"), Next: 6}, nil
}
