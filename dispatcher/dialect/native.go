package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/procfleet/procfleet"
)

// native is procfleet's own API: the vocabulary as it is, checked strictly
// before anything is accepted, with HTTP statuses that mean what they say.
func native() Dialect {
	get, post := []string{http.MethodGet}, []string{http.MethodPost}
	return Dialect{
		Name:        "native",
		Prefixes:    []string{"/"},
		Credentials: nativeCredentials,
		Fail:        nativeFail,
		Calls: []Call{
			{Name: "native", Paths: []string{"/v1/tasks"}, Methods: post, Use: Accept{decodeNativeTask, nativeAccepted}},
			{Name: "native.tasks", Paths: []string{"/v1/tasks"}, Methods: get, Use: ListTasks{decodeTaskPage, nativeTasks}},
			{Name: "native.task", Paths: []string{"/v1/tasks/{id}"}, Methods: get, Use: ShowTask{decodeNativeTaskID, nativeShowTask}},
			{Name: "native.events", Paths: []string{"/v1/tasks/{id}/events"}, Methods: get, Use: Watch{decodeNativeWatch, nativeShowTask}},
			{Name: "native.results", Paths: []string{"/v1/tasks/{id}/results"}, Methods: get, Use: ListResults{decodeResultPage, nativeResults}},
			{Name: "native.hosts", Paths: []string{"/v1/hosts"}, Methods: get, Use: ListHosts{decodeHostPage, nativeHosts}},
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
	OutcomeUnknown: {http.StatusServiceUnavailable, "unknown"},
}

func nativeKindOf(k Kind) nativeKind {
	if known, ok := nativeKinds[k]; ok {
		return known
	}
	return nativeKinds[Internal]
}

func nativeFail(f *Error, _ string) Reply {
	k := nativeKindOf(f.Kind)
	return Reply{Status: k.status, Body: map[string]nativeError{
		"error": {Code: k.code, Message: f.Error(), Field: f.Field, Task: f.Task},
	}}
}

// nativeOperation is one operation as callers write it. Process is decoded
// later, over the defaults.
type nativeOperation struct {
	Action  procfleet.Action `json:"action"`
	Process json.RawMessage  `json:"process"`
	Hosts   []string         `json:"hosts"`
	Agents  []string         `json:"agents"`
}

// nativeSubmission is one operation by itself, or several under operations.
type nativeSubmission struct {
	nativeOperation
	Operations []nativeOperation `json:"operations"`
	Timeout    json.RawMessage   `json:"timeout"`
	Business   string            `json:"business"`
	Callback   string            `json:"callback"`
}

func decodeNativeTask(r *Request) (procfleet.Submission, error) {
	var params nativeSubmission
	if !isObject(r.Body) {
		return procfleet.Submission{}, &Error{Kind: Malformed, Field: "body", Problem: "is not a JSON object"}
	}
	if err := decodeObject(r.Body, &params); err != nil {
		return procfleet.Submission{}, err
	}
	s := procfleet.Submission{Business: params.Business, Callback: params.Callback}
	var err error
	if s.Operations, err = params.operations(); err != nil {
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

// tooLong is the problem with a text above its limit in bytes, or nil.
func tooLong(field, text string, limit int) error {
	if len(text) <= limit {
		return nil
	}
	return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("is longer than %d bytes", limit)}
}

// same is the name function of a dialect that uses the vocabulary's own words.
func same(field string) string { return field }

func (p *nativeSubmission) operations() ([]procfleet.Operation, error) {
	if p.Operations == nil {
		o, err := p.operation("")
		return []procfleet.Operation{o}, err
	}
	if p.Action != "" || p.Process != nil || p.Hosts != nil || p.Agents != nil {
		return nil, invalid("operations", "stands beside a single operation; give one or the other")
	}
	ops := make([]procfleet.Operation, 0, len(p.Operations))
	for i := range p.Operations {
		o, err := p.Operations[i].operation("operations[" + strconv.Itoa(i) + "].")
		if err != nil {
			return nil, err
		}
		ops = append(ops, o)
	}
	return ops, nil
}

func (p *nativeOperation) operation(prefix string) (procfleet.Operation, error) {
	o := procfleet.Operation{Action: p.Action, Process: procfleet.DefaultSpec()}
	if p.Process != nil {
		if err := json.Unmarshal(p.Process, &o.Process); err != nil {
			return o, processError(err, p.Process, prefix+"process")
		}
	}
	for i, text := range p.Hosts {
		host, err := procfleet.ParseHost(text)
		if err != nil {
			return o, invalid(prefix+"hosts["+strconv.Itoa(i)+"]", "%s", err.Error())
		}
		o.Targets = append(o.Targets, procfleet.Target{Host: host})
	}
	for i, id := range p.Agents {
		if id == "" {
			return o, invalid(prefix+"agents["+strconv.Itoa(i)+"]", "is empty")
		}
	}
	agents, err := agentTargets(p.Agents, prefix+"agents")
	if err != nil {
		return o, err
	}
	o.Targets = append(o.Targets, agents...)
	if err := o.Validate(); err != nil {
		return o, refused(err, func(field string) string { return prefix + field })
	}
	return o, nil
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
