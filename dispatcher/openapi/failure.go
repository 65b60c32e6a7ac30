package openapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// failureKind is a kind of failure with its meaning and an example.
type failureKind struct {
	name    string
	meaning string
	example dialect.Error
	// of reports whether a call can have this failure.
	of func(f *dialect.Family, call *dialect.Call, body bool) bool
}

// failureKinds are all failures that a call can have. It excludes unknown paths and
// methods, which belong to no call.
var failureKinds = []failureKind{
	{"malformed", "the body cannot be parsed", dialect.Error{Kind: dialect.Malformed, Problem: "unexpected end of JSON input"}, withBody},
	{"bad_header", "X-Bkapi-Authorization is not JSON", dialect.Error{Kind: dialect.BadHeader, Problem: "Parameters error, request header X-Bkapi-Authorization is not a valid JSON format string"}, everyCall},
	{"invalid_field", "a parameter is missing, of the wrong type or out of range", dialect.Error{Kind: dialect.InvalidField, Field: "name", Problem: "This field is required."}, everyCall},
	{"too_large", "the body or the number of items exceeds its limit", dialect.Error{Kind: dialect.TooLarge, Field: "body", Problem: "is larger than 41943040 bytes; divide the request"}, mayBeLarge},
	{"not_found", "there is no such task, or it has expired", dialect.Error{Kind: dialect.NotFound, Problem: "there is no such task, or it has expired"}, aboutATask},
	{"no_output", "the agent has no output of the process", dialect.Error{Kind: dialect.NotFound, Problem: "the agent of host 0:10.0.0.1 has no output of process shop:web"}, usedFor[dialect.ShowOutput]},
	{"conflict", "the Idempotency-Key was used for another request", dialect.Error{Kind: dialect.Conflict, Field: "Idempotency-Key", Problem: "was used for another request"}, makesATask},
	{"outside_window", "maintenance windows deny the operation now", dialect.Error{Kind: dialect.OutsideWindow, Problem: "2 of 20 hosts are outside of the maintenance windows of 2, 0:10.0.0.1 for example: window nights is closed until 2026-11-21T22:00:00Z"}, makesATask},
	{"task_ended", "the task has ended, or has another `seq` than `if_seq`", dialect.Error{Kind: dialect.Conflict, Task: exampleTask, Problem: "the task is finished: only an open task can be controlled"}, usedFor[dialect.ControlTask]},
	{"expired", "the events after `last_event_id` are no longer stored", dialect.Error{Kind: dialect.Expired, Field: "last_event_id", Problem: "the events after this one are no longer stored: list the tasks, then follow without last_event_id"}, usedFor[dialect.FollowTasks]},
	{"no_webhook", "the application has no such webhook", dialect.Error{Kind: dialect.NotFound, Field: "name", Problem: `there is no webhook "alerts"`}, usedFor[dialect.ListDead]},
	{"no_dead", "there is no such webhook, or it has no dead delivery of the event", dialect.Error{Kind: dialect.NotFound, Field: "event", Problem: `webhook alerts has no dead delivery of event "GSETASK:20261121053522:123456/3"`}, usedFor[dialect.Redeliver]},
	{"no_module", "the topology has no such set and module", dialect.Error{Kind: dialect.NotFound, Field: "module", Problem: "there is no such set and module in the topology of the business"}, usedFor[dialect.EditTopology]},
	{"other_version", "the topology has another version", dialect.Error{Kind: dialect.Conflict, Field: "version", Problem: "the topology has version 5 now, not 4: read it again"}, usedFor[dialect.SetTopology]},
	{"no_process", "the catalog has no such process", dialect.Error{Kind: dialect.NotFound, Problem: "process 44: there is no such process in the business"}, aboutAProcess},
	{"catalog_conflict", "the change conflicts with the catalog, for example with another process of the same name or with a binding", dialect.Error{Kind: dialect.Conflict, Problem: "process 44: process 7 has the same name"}, changesProcesses},
	{"no_application", "the request names no application", dialect.Error{Kind: dialect.NoApplication}, everyCall},
	{"no_secret", "the request has neither a secret nor a signature", dialect.Error{Kind: dialect.NoSecret, Application: "shop"}, everyCall},
	{"unknown_application", "the application does not exist", dialect.Error{Kind: dialect.UnknownApplication, Application: "shop"}, everyCall},
	{"wrong_secret", "the secret is wrong", dialect.Error{Kind: dialect.WrongSecret, Application: "shop"}, everyCall},
	{"bad_signature", "the signature is invalid, has expired, or was used before", dialect.Error{Kind: dialect.BadSignature, Application: "shop"}, forAUser},
	{"no_user", "the application names no user, or the user is not authenticated", dialect.Error{Kind: dialect.NoUser, Application: "shop"}, forAUser},
	{"bad_token", "the user's bk_token is invalid", dialect.Error{Kind: dialect.BadToken, Application: "shop"}, forAUser},
	{"forbidden", "the application lacks the permission for an action or for the business", dialect.Error{
		Kind: dialect.Forbidden, Problem: "application shop lacks the action stop", Application: "shop", Denied: dialect.Denied{Actions: []string{"stop"}},
	}, everyCall},
	{"unavailable", "nothing was done; retry after the seconds in Retry-After", dialect.Error{Kind: dialect.Unavailable, Problem: "the task store is unavailable; try again later"}, everyCall},
	{"store_full", "nothing was done, because the task store is full; retry after the seconds in Retry-After", dialect.Error{Kind: dialect.StoreFull, Problem: "the task store is full; nothing was accepted, try again later"}, makesATask},
	{"outcome_unknown", "a task may have been accepted: query it, or repeat the request with the same Idempotency-Key", dialect.Error{
		Kind: dialect.OutcomeUnknown, Problem: "whether task " + exampleTask + " was accepted is unknown: query it, or repeat the request with the same Idempotency-Key", Task: exampleTask,
	}, makesATask},
	{"internal", "internal error; the message contains the request id", dialect.Error{Kind: dialect.Internal, Problem: "internal error, request 0123456789abcdef0123456789abcdef"}, everyCall},
}

const (
	exampleTask      = "GSETASK:20261121053522:123456"
	exampleRequestID = "0123456789abcdef0123456789abcdef"
)

func everyCall(*dialect.Family, *dialect.Call, bool) bool         { return true }
func withBody(_ *dialect.Family, _ *dialect.Call, body bool) bool { return body }
func forAUser(f *dialect.Family, _ *dialect.Call, _ bool) bool    { return f.NeedsUser }
func makesATask(_ *dialect.Family, c *dialect.Call, _ bool) bool {
	return is[dialect.Accept](c.Endpoint)
}

func usedFor[T dialect.Endpoint](_ *dialect.Family, c *dialect.Call, _ bool) bool {
	return is[T](c.Endpoint)
}

func aboutATask(_ *dialect.Family, c *dialect.Call, _ bool) bool {
	return is[dialect.Outcomes](c.Endpoint) || is[dialect.ShowTask](c.Endpoint) || is[dialect.ControlTask](c.Endpoint) || is[dialect.Watch](c.Endpoint) || is[dialect.ListResults](c.Endpoint)
}

func aboutAProcess(_ *dialect.Family, c *dialect.Call, _ bool) bool {
	return is[dialect.EditTemplates](c.Endpoint) || is[dialect.ShowTemplate](c.Endpoint) || is[dialect.ShowDrift](c.Endpoint)
}

func changesProcesses(_ *dialect.Family, c *dialect.Call, _ bool) bool {
	return is[dialect.EditTemplates](c.Endpoint) || is[dialect.DeleteTemplate](c.Endpoint) || is[dialect.SaveTemplates](c.Endpoint)
}

// mayBeLarge reports whether a call has a body, or concerns many hosts without a body.
func mayBeLarge(_ *dialect.Family, c *dialect.Call, body bool) bool {
	return body || is[dialect.ShowDrift](c.Endpoint)
}

func is[T dialect.Endpoint](endpoint dialect.Endpoint) bool {
	_, ok := endpoint.(T)
	return ok
}

// Failure is one failure of a call.
type Failure struct {
	Status  int
	Code    string // the code as text
	Meaning string
	kind    string
	code    any
	body    any
}

// failures returns the failures of a call, with the codes of the family of paths.
func failures(f *dialect.Family, text *familyText, call *dialect.Call, body bool) ([]Failure, error) {
	var all []Failure
	for _, k := range failureKinds {
		if !k.of(f, call, body) {
			continue
		}
		k.example.Call = call.Name
		reply := f.Fail(&k.example, exampleRequestID)
		body, err := fromJSON(reply.Body)
		if err != nil {
			return nil, err
		}
		code := body
		for _, name := range text.Code {
			o, _ := code.(*object)
			code = o.get(name)
		}
		all = append(all, Failure{Status: reply.Status, Code: written(code), Meaning: k.meaning, kind: k.name, code: code, body: body})
	}
	return all, nil
}

func written(code any) string {
	switch code := code.(type) {
	case string:
		return code
	case int:
		return strconv.Itoa(code)
	}
	return ""
}

// failureSchema returns the schema of all failures with one status.
func failureSchema(text *familyText, status int, of []Failure) *object {
	base := text.Failure
	if status != http.StatusOK && text.OtherFailure != nil {
		base = text.OtherFailure
	}
	var lines []string
	var codes, examples []any
	for _, f := range of {
		lines = append(lines, "* "+f.Code+": "+f.Meaning)
		if f.code != nil && !slices.Contains(codes, f.code) {
			codes = append(codes, f.code)
		}
		if f.body != nil {
			examples = append(examples, f.body)
		}
	}
	schema := &object{}
	if base != nil {
		schema.set("allOf", []any{base})
	}
	if len(codes) > 0 {
		below := members("enum", codes)
		for _, name := range slices.Backward(text.Code) {
			below = members("properties", members(name, below))
		}
		schema.set("properties", below.get("properties"))
	}
	schema.set("description", strings.Join(lines, "\n"))
	schema.set("examples", examples)
	return schema
}
