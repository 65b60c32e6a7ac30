package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// native is procfleet's own API. Its bodies are the types of package v1. The dispatcher
// validates a request before it stores anything, and the HTTP status is the class of a
// failure.
func native() Dialect {
	get, post, put, remove := []string{http.MethodGet}, []string{http.MethodPost}, []string{http.MethodPut}, []string{http.MethodDelete}
	patch := []string{http.MethodPatch}
	return Dialect{
		Name: "native",
		Family: Family{Prefixes: []string{"/"}, Credentials: nativeCredentials, Fail: nativeFail, Calls: []Call{
			{Name: "native", Paths: []string{"/v1/tasks"}, Methods: post, Endpoint: Accept{Decode: strictly[v1.TaskRequest](decoded(decodeNativeBody, decodeNativeTask), "plan"), Encode: nativeAccepted, Plan: nativePlan}},
			{Name: "native.tasks", Paths: []string{"/v1/tasks"}, Methods: get, Endpoint: ListTasks{strictly[noBody](decodeTaskPage, append([]string{"limit", "cursor"}, taskFilters...)...), nativeTasks}},
			{Name: "native.task", Paths: []string{"/v1/tasks/{id}"}, Methods: get, Endpoint: ShowTask{strictly[noBody](decodeNativeTaskID), nativeShowTask}},
			{Name: "native.pause", Paths: []string{"/v1/tasks/{id}/pause"}, Methods: post, Endpoint: ControlTask{strictly[v1.TaskControl](decodeTaskPause), nativeControlled}},
			{Name: "native.resume", Paths: []string{"/v1/tasks/{id}/resume"}, Methods: post, Endpoint: ControlTask{strictly[v1.TaskResume](decodeTaskResume), nativeControlled}},
			{Name: "native.approve", Paths: []string{"/v1/tasks/{id}/approve"}, Methods: post, Endpoint: ControlTask{strictly[v1.TaskApproval](decodeTaskApproval), nativeControlled}},
			{Name: "native.cancel", Paths: []string{"/v1/tasks/{id}/cancel"}, Methods: post, Endpoint: ControlTask{strictly[v1.TaskCancel](decodeTaskCancel), nativeControlled}},
			{Name: "native.retry", Paths: []string{"/v1/tasks/{id}/retry"}, Methods: post, Endpoint: ControlTask{strictly[v1.TaskRetry](decodeTaskRetry, "plan"), nativeControlled}},
			{Name: "native.undo", Paths: []string{"/v1/tasks/{id}/undo"}, Methods: post, Endpoint: ControlTask{strictly[v1.TaskUndo](decodeTaskUndo), nativeControlled}},
			{Name: "native.task_events", Paths: []string{"/v1/tasks/events"}, Methods: get, Endpoint: FollowTasks{strictly[noBody](decodeTaskFeed, "last_event_id", "business", "task"), nativeTaskEvent}},
			{Name: "native.events", Paths: []string{"/v1/tasks/{id}/events"}, Methods: get, Endpoint: Watch{strictly[noBody](decodeNativeWatch, "last_event_id"), nativeEvent}},
			{Name: "native.results", Paths: []string{"/v1/tasks/{id}/results"}, Methods: get, Endpoint: ListResults{strictly[noBody](decodeResultPage, "limit", "state", "cursor"), nativeResults}},
			{Name: "native.hosts", Paths: []string{"/v1/hosts"}, Methods: get, Endpoint: ListHosts{strictly[noBody](decodeHostPage, append([]string{"limit", "after", "processes", "business", "module", "missing"}, hostFilters...)...), nativeHosts}},
			{Name: "native.fleet", Paths: []string{"/v1/hosts/processes"}, Methods: get, Endpoint: ListFleet{strictly[noBody](decodeFleetPage, append([]string{"limit", "after", "host", "business", "module", "drift", "drifted"}, slices.Concat(hostFilters, processFilters)...)...), nativeFleet}},
			{Name: "native.register", Paths: []string{"/v1/registrations"}, Methods: put, Endpoint: Register{strictly[v1.RegisterRequest](decodeNativeRegister(RegisterAny)), nativeOutcomes[Registering]}},
			{Name: "native.register_new", Paths: []string{"/v1/registrations"}, Methods: post, Endpoint: Register{strictly[v1.RegisterRequest](decodeNativeRegister(RegisterNew)), nativeOutcomes[Registering]}},
			{Name: "native.unregister", Paths: []string{"/v1/registrations/remove"}, Methods: post, Endpoint: Register{strictly[v1.ProcessRequest](decodeNativeUnregister), nativeOutcomes[Registering]}},
			{Name: "native.processes", Paths: []string{"/v1/processes"}, Methods: get, Endpoint: ListProcesses{strictly[noBody](decodeProcessPage, "namespace", "business", "limit", "start"), nativeProcessPage}},
			{Name: "native.output", Paths: []string{"/v1/processes/output"}, Methods: get, Endpoint: ShowOutput{strictly[noBody](decodeOutputQuery, "host", "process", "business", "tail", "since", "log_path", "cursor", "follow"), nativeOutput}},
			{Name: "native.process", Paths: []string{"/v1/processes/query"}, Methods: post, Endpoint: ShowProcesses{strictly[v1.ProcessRequest](decoded(decodeNativeBody, decodeProcessQuery)), nativeShowProcesses}},
			{Name: "native.set_groups", Paths: []string{"/v1/groups"}, Methods: put, Endpoint: SetGroups{strictly[v1.GroupsRequest](decoded(decodeNativeBody, decodeNativeGroups)), nativeOutcomes[Grouping]}},
			{Name: "native.groups", Paths: []string{"/v1/groups/query"}, Methods: post, Endpoint: ShowGroups{strictly[v1.GroupsQuery](decoded(decodeNativeBody, decodeGroupQuery)), nativeShowGroups}},
			{Name: "native.label_hosts", Paths: []string{"/v1/labels"}, Methods: put, Endpoint: LabelHosts{strictly[v1.LabelsRequest](decoded(decodeNativeBody, decodeLabelChange)), nativeOutcomes[LabelChange]}},
			{Name: "native.agents", Paths: []string{"/v1/agents/query"}, Methods: post, Endpoint: ShowAgents{strictly[v1.Targets](decoded(decodeNativeBody, decodeAgentQuery)), nativeShowAgents}},
			{Name: "native.bind_agents", Paths: []string{"/v1/agents/bindings"}, Methods: post, Endpoint: BindAgents{strictly[v1.BindRequest](decoded(decodeNativeBody, decodeAgentBinding)), nativeBound}},
			{Name: "native.freeze", Paths: []string{"/v1/freezes"}, Methods: put, Endpoint: Freeze{strictly[v1.FreezeRequest](decodeNativeFreeze), nativeFrozen}},
			{Name: "native.lift", Paths: []string{"/v1/freezes"}, Methods: remove, Endpoint: Freeze{strictly[v1.LiftRequest](decodeNativeLift), nativeLifted}},
			{Name: "native.freezes", Paths: []string{"/v1/freezes"}, Methods: get, Endpoint: ListFreezes{strictly[noBody](decodeFreezePage, "limit", "cursor"), nativeFreezes}},
			{Name: "native.catalogue", Paths: []string{"/v1/catalogue/{biz}"}, Methods: get, Endpoint: SearchTemplates{Decode: strictly[noBody](decodeCatalogSearch, "name", "exact", "module", "limit", "start", "account"), Encode: nativeTemplates}},
			{Name: "native.save_catalogue", Paths: []string{"/v1/catalogue/{biz}"}, Methods: put, Endpoint: SaveTemplates{strictly[v1.CatalogRequest](decodeNamedTemplates, "plan", "account"), nativeTemplatesSaved}},
			{Name: "native.delete_catalogue", Paths: []string{"/v1/catalogue/{biz}/{id}"}, Methods: remove, Endpoint: DeleteTemplate{strictly[noBody](decodeCatalogID, "account"), nativeTemplateDeleted}},
			{Name: "native.drift", Paths: []string{"/v1/processes/{biz}/{id}/status"}, Methods: get, Endpoint: ShowDrift{strictly[noBody](decodeDriftQuery, "module", "limit", "account"), nativeDrift}},
			{Name: "native.host_events", Paths: []string{"/v1/events"}, Methods: get, Endpoint: ListEvents{strictly[noBody](decodeEventPage, "host", "namespace", "kind", "since", "after", "limit"), nativeEvents}},
			{Name: "native.health", Paths: []string{"/v1/health"}, Methods: get, Endpoint: ShowHealth{strictly[noBody](decodeHealthQuery), nativeHealth}},
			{Name: "native.audit", Paths: []string{"/v1/audit"}, Methods: get, Endpoint: ListAudit{strictly[noBody](decodeAuditQuery, "limit", "after", "since", "event", "application", "business", "task"), nativeAudit}},
			{Name: "native.set_rollouts", Paths: []string{"/v1/rollouts/{biz}"}, Methods: put, Endpoint: SetPolicies{strictly[v1.RolloutPolicies](decodePolicyChange), nativePolicies[PolicyChange]}},
			{Name: "native.rollouts", Paths: []string{"/v1/rollouts/{biz}"}, Methods: get, Endpoint: ShowPolicies{strictly[noBody](decodePolicyQuery), nativePolicies[PolicyQuery]}},
			{Name: "native.set_schedule", Paths: []string{"/v1/schedules/{biz}/{name}"}, Methods: put, Endpoint: SetSchedule{strictly[v1.ScheduleRequest](decodeScheduleChange), nativeScheduleSet}},
			{Name: "native.remove_schedule", Paths: []string{"/v1/schedules/{biz}/{name}"}, Methods: remove, Endpoint: RemoveSchedule{strictly[noBody](decodeScheduleRemoval), nativeScheduleRemoved}},
			{Name: "native.schedules", Paths: []string{"/v1/schedules/{biz}"}, Methods: get, Endpoint: ListSchedules{strictly[noBody](decodeScheduleQuery), nativeSchedules}},
			{Name: "native.set_webhook", Paths: []string{"/v1/webhooks/{name}"}, Methods: put, Endpoint: SetWebhook{strictly[v1.WebhookRequest](decodeWebhookChange), nativeWebhookSet}},
			{Name: "native.remove_webhook", Paths: []string{"/v1/webhooks/{name}"}, Methods: remove, Endpoint: RemoveWebhook{strictly[noBody](decodeWebhookRemoval), nativeWebhookRemoved}},
			{Name: "native.webhooks", Paths: []string{"/v1/webhooks"}, Methods: get, Endpoint: ListWebhooks{strictly[noBody](decodeWebhookQuery), nativeWebhooks}},
			{Name: "native.dead", Paths: []string{"/v1/webhooks/{name}/dead"}, Methods: get, Endpoint: ListDead{strictly[noBody](decodeDeadQuery), nativeDead}},
			{Name: "native.redeliver", Paths: []string{"/v1/webhooks/{name}/redeliver"}, Methods: post, Endpoint: Redeliver{strictly[v1.RedeliverRequest](decodeRedelivery), nativeRedelivered}},
			{Name: "native.set_topology", Paths: []string{"/v1/topology/{biz}"}, Methods: put, Endpoint: SetTopology{strictly[noBody](decodeTopology, "account", "auto_register", "plan"), nativeTopologySet}},
			{Name: "native.edit_topology", Paths: []string{"/v1/topology/{biz}"}, Methods: patch, Endpoint: EditTopology{strictly[v1.TopologyEdit](decodeTopologyEdit, "account"), nativeTopologyVersion[TopologyEdit]}},
			{Name: "native.topology", Paths: []string{"/v1/topology/{biz}"}, Methods: get, Endpoint: ShowTopology{strictly[noBody](decodeTopologyQuery, "account", "agents"), nativeShowTopology}},
		}},
	}
}

// nativeKind is the HTTP status and the error code of one kind of failure.
type nativeKind struct {
	status int
	code   v1.ErrorCode
}

var nativeKinds = map[Kind]nativeKind{
	Internal:       {http.StatusInternalServerError, v1.CodeInternal},
	Malformed:      {http.StatusBadRequest, v1.CodeInvalidRequest},
	BadHeader:      {http.StatusBadRequest, v1.CodeInvalidRequest},
	InvalidField:   {http.StatusBadRequest, v1.CodeInvalidRequest},
	TooLarge:       {http.StatusRequestEntityTooLarge, v1.CodeTooLarge},
	NotFound:       {http.StatusNotFound, v1.CodeNotFound},
	NoRoute:        {http.StatusNotFound, v1.CodeNotFound},
	BadMethod:      {http.StatusMethodNotAllowed, v1.CodeMethodNotAllowed},
	Conflict:       {http.StatusConflict, v1.CodeConflict},
	OutsideWindow:  {http.StatusConflict, v1.CodeOutsideWindow},
	Expired:        {http.StatusGone, v1.CodeExpired},
	Unavailable:    {http.StatusServiceUnavailable, v1.CodeUnavailable},
	StoreFull:      {http.StatusServiceUnavailable, v1.CodeStoreFull},
	OutcomeUnknown: {http.StatusServiceUnavailable, v1.CodeUnknown},

	Forbidden: {http.StatusForbidden, v1.CodeForbidden},
}

// nativeCallers are the messages for failed authentication.
var nativeCallers = map[Kind]string{ //nolint:gosec // messages about secrets, not secrets
	NoApplication:      "the request names no application; send Authorization: Bearer <code>.<secret>",
	NoSecret:           "the request has no secret; send Authorization: Bearer <code>.<secret>",
	UnknownApplication: "application {app} does not exist",
	WrongSecret:        "the secret of application {app} is wrong",
	BadSignature:       "the signature of application {app} is invalid",
	NoUser:             "the request names no user",
	BadToken:           "the bk_token is invalid",
}

func nativeKindOf(k Kind) nativeKind {
	if k.unauthenticated() {
		return nativeKind{http.StatusUnauthorized, v1.CodeUnauthenticated}
	}
	if known, ok := nativeKinds[k]; ok {
		return known
	}
	return nativeKinds[Internal]
}

func nativeFail(f *Error, _ string) Reply {
	k := nativeKindOf(f.Kind)
	reply := Reply{Status: k.status, Body: v1.Failure{
		Error: v1.Error{Code: k.code, Message: f.after(nativeCallers[f.Kind]), Field: f.Field, Task: f.Task},
	}}
	if k.status == http.StatusUnauthorized {
		reply.Authenticate = `Bearer realm="procfleet"`
		if f.Kind != NoApplication { // credentials were sent, and are invalid
			reply.Authenticate += `, error="invalid_token"`
		}
	}
	return reply
}

// The decoders of this dialect embed a request type of package v1 and replace some of
// its members. Hosts are decoded as text, so that an error names the invalid element.
// Processes and durations are decoded as raw JSON, so that absent members keep their
// defaults and an error names the member.

func decodeNativeBody(r *Request, into any) error {
	if !isObject(r.Body) {
		return &Error{Kind: Malformed, Field: "body", Problem: "is not a JSON object"}
	}
	return decodeObject(r.Body, into, r.MaxItems)
}

// tooLong returns an error for a text of more than limit bytes, otherwise nil.
func tooLong(field, text string, limit int) error {
	if len(text) <= limit {
		return nil
	}
	return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("is longer than %d bytes", limit)}
}

// Page sizes of the native lists.
const (
	defaultPage = 100
	maxPage     = 1000
)

// maxStart is the maximum start of a page.
const maxStart = 1_000_000_000

// queryReader reads the parameters of a query string. If err is not nil, it has all
// invalid parameters, and the values are meaningless.
type queryReader struct {
	*Request
	err error
}

func (q *queryReader) fail(field, format string, args ...any) {
	q.err = errors.Join(q.err, invalid(field, format, args...))
}

// number reads a number from least to most; byDefault is its value if it is absent.
func (q *queryReader) number(name string, byDefault, least, most int) int {
	text := q.Query.Get(name)
	if text == "" {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		q.fail(name, "is not a number from %d to %d", least, most)
	}
	return n
}

func (q *queryReader) limit() int { return q.number("limit", defaultPage, 1, maxPage) }

func (q *queryReader) start() int { return q.number("start", 0, 0, maxStart) }

// truth reads a boolean; nil if it is absent.
func (q *queryReader) truth(name string) *bool {
	switch text := q.Query.Get(name); text {
	case "":
		return nil
	case "true", "false":
		is := text == "true"
		return &is
	}
	q.fail(name, "is neither true nor false")
	return nil
}

// host reads a host; the zero host if it is absent.
func (q *queryReader) host(name string) (host procfleet.Host) {
	if text := q.Query.Get(name); text != "" {
		var err error
		if host, err = procfleet.ParseHost(text); err != nil {
			q.fail(name, "%s", err.Error())
		}
	}
	return host
}

// business reads the business from the path wildcard {biz} and the parameter account,
// which is [catalog.DefaultAccount] if absent.
func (q *queryReader) business() catalog.Business {
	b := catalog.Business{Account: cmp.Or(q.Query.Get("account"), catalog.DefaultAccount)}
	var err error
	if b.ID, err = strconv.ParseInt(q.Wildcards["biz"], 10, 64); err != nil {
		q.fail("biz", "is not the id of a business, a number of 1 or more")
		b.ID = 1 // to validate the account only
	}
	if err := b.Validate(); err != nil {
		q.err = errors.Join(q.err, refused(err, func(field string) string {
			if field == "business" {
				return "biz"
			}
			return field
		}))
	}
	return b
}

// nextStart returns the start of the next page, "" after the last page. It is text, like
// the cursors of the other lists.
func nextStart(start, page, total int) string {
	if next := start + page; page > 0 && next < total && next <= maxStart {
		return strconv.Itoa(next)
	}
	return ""
}

func ok(body any) Reply { return Reply{Status: http.StatusOK, Body: body} }
