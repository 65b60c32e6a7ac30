package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/procfleet/procfleet"
)

// native is procfleet's own API: the vocabulary as it is, checked strictly
// before anything is accepted, with HTTP statuses that mean what they say.
func native() Dialect {
	get, post, put, remove := []string{http.MethodGet}, []string{http.MethodPost}, []string{http.MethodPut}, []string{http.MethodDelete}
	patch := []string{http.MethodPatch}
	return Dialect{
		Name:        "native",
		Prefixes:    []string{"/"},
		Credentials: nativeCredentials,
		Fail:        nativeFail,
		Calls: []Call{
			{Name: "native", Paths: []string{"/v1/tasks"}, Methods: post, Use: Accept{Decode: decodeNativeTask, Encode: nativeAccepted, Plan: nativePlan}},
			{Name: "native.tasks", Paths: []string{"/v1/tasks"}, Methods: get, Use: ListTasks{decodeTaskPage, nativeTasks}},
			{Name: "native.task", Paths: []string{"/v1/tasks/{id}"}, Methods: get, Use: ShowTask{decodeNativeTaskID, nativeShowTask}},
			{Name: "native.events", Paths: []string{"/v1/tasks/{id}/events"}, Methods: get, Use: Watch{decodeNativeWatch, nativeShowTask}},
			{Name: "native.results", Paths: []string{"/v1/tasks/{id}/results"}, Methods: get, Use: ListResults{decodeResultPage, nativeResults}},
			{Name: "native.hosts", Paths: []string{"/v1/hosts"}, Methods: get, Use: ListHosts{decodeHostPage, nativeHosts}},
			{Name: "native.register", Paths: []string{"/v1/registrations"}, Methods: put, Use: Register{decodeNativeRegister(RegisterAny), nativeRegistered}},
			{Name: "native.register_new", Paths: []string{"/v1/registrations"}, Methods: post, Use: Register{decodeNativeRegister(RegisterNew), nativeRegistered}},
			{Name: "native.unregister", Paths: []string{"/v1/registrations/remove"}, Methods: post, Use: Register{decodeNativeUnregister, nativeRegistered}},
			{Name: "native.processes", Paths: []string{"/v1/processes"}, Methods: get, Use: ListProcesses{decodeProcessPage, nativeProcessPage}},
			{Name: "native.process", Paths: []string{"/v1/processes/query"}, Methods: post, Use: ShowProcesses{decodeProcessQuery, nativeShowProcesses}},
			{Name: "native.set_groups", Paths: []string{"/v1/groups"}, Methods: put, Use: SetGroups{decodeNativeGroups, nativeGrouped}},
			{Name: "native.groups", Paths: []string{"/v1/groups/query"}, Methods: post, Use: ShowGroups{decodeGroupQuery, nativeShowGroups}},
			{Name: "native.agents", Paths: []string{"/v1/agents/query"}, Methods: post, Use: ShowAgents{decodeAgentQuery, nativeShowAgents}},
			{Name: "native.bind_agents", Paths: []string{"/v1/agents/bindings"}, Methods: post, Use: BindAgents{decodeAgentBinding, nativeBound}},
			{Name: "native.freeze", Paths: []string{"/v1/freezes"}, Methods: put, Use: Freeze{decodeNativeFreeze, nativeFrozen}},
			{Name: "native.lift", Paths: []string{"/v1/freezes"}, Methods: remove, Use: Freeze{decodeNativeLift, nativeLifted}},
			{Name: "native.freezes", Paths: []string{"/v1/freezes"}, Methods: get, Use: ListFreezes{decodeFreezePage, nativeFreezes}},
			{Name: "native.catalogue", Paths: []string{"/v1/catalogue/{biz}"}, Methods: get, Use: SearchTemplates{Decode: decodeCatalogueSearch, Encode: nativeTemplates}},
			{Name: "native.save_catalogue", Paths: []string{"/v1/catalogue/{biz}"}, Methods: put, Use: SaveTemplates{decodeNamedTemplates, nativeTemplatesSaved}},
			{Name: "native.drift", Paths: []string{"/v1/processes/{biz}/{id}/status"}, Methods: get, Use: ShowDrift{decodeDriftQuery, nativeDrift}},
			{Name: "native.host_events", Paths: []string{"/v1/events"}, Methods: get, Use: ListEvents{decodeEventPage, nativeEvents}},
			{Name: "native.set_topology", Paths: []string{"/v1/topology/{biz}"}, Methods: put, Use: SetTopology{decodeTopology, nativeTopologySet}},
			{Name: "native.edit_topology", Paths: []string{"/v1/topology/{biz}"}, Methods: patch, Use: EditTopology{decodeTopologyEdit, nativeTopologyEdited}},
			{Name: "native.topology", Paths: []string{"/v1/topology/{biz}"}, Methods: get, Use: ShowTopology{decodeTopologyQuery, nativeShowTopology}},
		},
	}
}

// nativeError is the member "error" of every native failure.
type nativeError struct {
	Code    string           `json:"code"`
	Message string           `json:"message"`
	Field   string           `json:"field,omitempty"`
	Task    procfleet.TaskID `json:"task,omitempty"`
}

// nativeKind is the status and the code word of one kind of failure.
type nativeKind struct {
	status int
	code   string
}

var nativeKinds = map[Kind]nativeKind{
	Internal:       {http.StatusInternalServerError, "internal"},
	Malformed:      {http.StatusBadRequest, "invalid_request"},
	BadHeader:      {http.StatusBadRequest, "invalid_request"},
	InvalidField:   {http.StatusBadRequest, "invalid_request"},
	TooLarge:       {http.StatusRequestEntityTooLarge, "too_large"},
	NotFound:       {http.StatusNotFound, "not_found"},
	NoRoute:        {http.StatusNotFound, "not_found"},
	BadMethod:      {http.StatusMethodNotAllowed, "method_not_allowed"},
	Conflict:       {http.StatusConflict, "conflict"},
	Expired:        {http.StatusGone, "expired"},
	Unavailable:    {http.StatusServiceUnavailable, "unavailable"},
	StoreFull:      {http.StatusServiceUnavailable, "store_full"},
	OutcomeUnknown: {http.StatusServiceUnavailable, "unknown"},

	NoApplication:      nativeUnauthenticated,
	NoSecret:           nativeUnauthenticated,
	UnknownApplication: nativeUnauthenticated,
	WrongSecret:        nativeUnauthenticated,
	BadSignature:       nativeUnauthenticated,
	NoUser:             nativeUnauthenticated,
	BadToken:           nativeUnauthenticated,
	Forbidden:          {http.StatusForbidden, "forbidden"},
}

var nativeUnauthenticated = nativeKind{http.StatusUnauthorized, "unauthenticated"}

// nativeCallers is what is said to callers who are not known.
var nativeCallers = map[Kind]string{ //nolint:gosec // words about secrets, not secrets
	NoApplication:      "no application is named; send Authorization: Bearer <code>.<secret>",
	NoSecret:           "there is no secret; send Authorization: Bearer <code>.<secret>",
	UnknownApplication: "there is no application {app}",
	WrongSecret:        "the secret is not that of application {app}",
	BadSignature:       "the signature is not one of application {app}",
	NoUser:             "no user is named",
	BadToken:           "the bk_token does not count",
}

func nativeKindOf(k Kind) nativeKind {
	if known, ok := nativeKinds[k]; ok {
		return known
	}
	return nativeKinds[Internal]
}

func nativeFail(f *Error, _ string) Reply {
	k := nativeKindOf(f.Kind)
	reply := Reply{Status: k.status, Body: map[string]nativeError{
		"error": {Code: k.code, Message: f.after(nativeCallers[f.Kind]), Field: f.Field, Task: f.Task},
	}}
	if k.status == http.StatusUnauthorized {
		reply.Authenticate = `Bearer realm="procfleet"`
		if f.Kind != NoApplication { // something was given, and does not count
			reply.Authenticate += `, error="invalid_token"`
		}
	}
	return reply
}

// nativeOperation is one operation as callers write it. Process is decoded
// later, over the defaults, and so is Select.
type nativeOperation struct {
	nativeTargets
	Action     procfleet.Action `json:"action"`
	Process    json.RawMessage  `json:"process"`
	Registered bool             `json:"registered"`
	Select     json.RawMessage  `json:"select"`
}

// nativeSubmission is one operation by itself, or several under operations.
type nativeSubmission struct {
	nativeOperation
	Operations []nativeOperation `json:"operations"`
	Strict     *bool             `json:"strict"` // nil is true
	Timeout    json.RawMessage   `json:"timeout"`
	Business   string            `json:"business"`
	Callback   string            `json:"callback"`
}

func decodeNativeTask(r *Request) (procfleet.Submission, error) {
	var params nativeSubmission
	if err := decodeNativeBody(r, &params); err != nil {
		return procfleet.Submission{}, err
	}
	s := procfleet.Submission{Business: params.Business, Callback: params.Callback}
	var err error
	if err = params.operations(&s); err != nil {
		return procfleet.Submission{}, err
	}
	if params.Timeout != nil {
		var timeout procfleet.Duration
		if err := timeout.UnmarshalJSON(params.Timeout); err != nil {
			return procfleet.Submission{}, invalid("timeout", "%s", err.Error())
		}
		s.Timeout = timeout.Std()
	}
	err = errors.Join(s.Validate(), tooLong("business", s.Business, procfleet.MaxKey), tooLong("callback", s.Callback, procfleet.MaxPath))
	if err != nil {
		return procfleet.Submission{}, refused(err, same)
	}
	return s, nil
}

// decodeNativeBody reads a body that must be a JSON object.
func decodeNativeBody(r *Request, into any) error {
	if !isObject(r.Body) {
		return &Error{Kind: Malformed, Field: "body", Problem: "is not a JSON object"}
	}
	return decodeObject(r.Body, into, r.MaxItems)
}

// tooLong is the problem with a text above its limit in bytes, or nil.
func tooLong(field, text string, limit int) error {
	if len(text) <= limit {
		return nil
	}
	return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("is longer than %d bytes", limit)}
}

// same is the name function of a dialect that uses the vocabulary's own words.
func same(field string) string { return field }

// operations reads all of them, and with them whose catalogue they are about.
func (p *nativeSubmission) operations(s *procfleet.Submission) error {
	written, single := p.Operations, p.Operations == nil
	switch {
	case single:
		written = []nativeOperation{p.nativeOperation}
	case p.Action != "" || p.Process != nil || p.Registered || p.Select != nil || p.Hosts != nil || p.Agents != nil:
		return invalid("operations", "stands beside a single operation; give one or the other")
	}
	check := (*procfleet.Operation).Validate
	if !strict(p.Strict) {
		check = (*procfleet.Operation).ValidateBounds
	}
	s.Operations = make([]procfleet.Operation, 0, len(written))
	var accounts []string
	for i := range written {
		prefix := "operations[" + strconv.Itoa(i) + "]."
		if single {
			prefix = ""
		}
		o, account, err := written[i].operation(prefix, check)
		if err != nil {
			return err
		}
		if o.Selection != nil {
			accounts = append(accounts, account)
		}
		s.Operations = append(s.Operations, o)
	}
	if accounts == nil {
		return nil
	}
	var err error
	s.Business, err = selecting(p.Business, accounts)
	return err
}

// strict reports whether a request is refused for what concerns one process
// only, and not left to fail on its hosts.
func strict(given *bool) bool { return given == nil || *given }

// operation reads what stands at prefix and checks it. The account is that of
// its selection.
func (p *nativeOperation) operation(prefix string, check func(*procfleet.Operation) error) (o procfleet.Operation, account string, err error) {
	o = procfleet.Operation{Action: p.Action, Registered: p.Registered}
	selected, err := selection(p.Select, prefix+"select")
	switch {
	case err != nil:
		return o, "", err
	case selected != nil:
		o.Selection, account = &selected.Selection, selected.Account
	case !p.Registered:
		o.Process = procfleet.DefaultSpec()
	}
	if err = decodeProcess(p.Process, &o.Process, prefix+"process"); err != nil {
		return o, "", err
	}
	if o.Targets, err = p.targets(prefix); err != nil {
		return o, "", err
	}
	if err := check(&o); err != nil {
		return o, "", refused(err, func(field string) string { return prefix + field })
	}
	return o, account, nil
}

// nativeTargets is how a body names hosts.
type nativeTargets struct {
	Hosts  []string `json:"hosts"`
	Agents []string `json:"agents"`
}

// targets reads what stands at prefix, hosts before agents.
func (p *nativeTargets) targets(prefix string) ([]procfleet.Target, error) {
	targets := slices.Grow([]procfleet.Target(nil), len(p.Hosts)+len(p.Agents))
	for i, text := range p.Hosts {
		host, err := procfleet.ParseHost(text)
		if err != nil {
			return nil, invalid(prefix+"hosts["+strconv.Itoa(i)+"]", "%s", err.Error())
		}
		targets = append(targets, procfleet.Target{Host: host})
	}
	for i, id := range p.Agents {
		if id == "" {
			return nil, invalid(prefix+"agents["+strconv.Itoa(i)+"]", "is empty")
		}
	}
	agents, err := agentTargets(p.Agents, prefix+"agents")
	return append(targets, agents...), err
}

// some is targets of a call that needs at least one, and takes at most limit;
// 0 is no limit.
func (p *nativeTargets) some(limit int) ([]procfleet.Target, error) {
	targets, err := p.targets("")
	switch {
	case err != nil:
		return nil, err
	case len(targets) == 0:
		return nil, invalid("hosts", "is empty; name at least one host as <cloud>:<ip>, for example 0:10.0.0.1")
	case limit > 0 && len(targets) > limit:
		return nil, invalid("hosts", "are %d together with agents, at most %d may be asked for at a time", len(targets), limit)
	}
	return targets, nil
}

// decodeProcess reads a process over what is there; raw is nil if the body
// has none.
func decodeProcess(raw json.RawMessage, into *procfleet.ProcessSpec, field string) error {
	if raw == nil {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return processError(err, raw, field)
	}
	return nil
}

// processError names the field of a process spec that could not be decoded.
// Durations decode themselves, and encoding/json does not say where such a
// value stood, so they are tried one by one.
func processError(err error, process []byte, field string) error {
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return decodeError(err, field)
	}
	var parts struct {
		Alive map[string]json.RawMessage `json:"alive"`
	}
	if json.Unmarshal(process, &parts) == nil {
		for _, name := range []string{
			"op_timeout", "start_check_begin", "start_check_end", "stop_check", "start_interval", "cycle_time",
		} {
			var d procfleet.Duration
			if value, there := parts.Alive[name]; there && d.UnmarshalJSON(value) != nil {
				return decodeError(err, field+".alive."+name)
			}
		}
	}
	return decodeError(err, field)
}

func nativeAccepted(id procfleet.TaskID, _ string) Reply {
	return Reply{
		Status:   http.StatusCreated,
		Location: "/v1/tasks/" + string(id),
		Body: struct {
			ID procfleet.TaskID `json:"id"`
		}{id},
	}
}
