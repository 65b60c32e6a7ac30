package dialect

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// gse is BlueKing GSE's process API behind the ESB: operations that carry
// their process spec, and the result map that is polled.
func gse() Dialect {
	d := Dialect{
		Name:     "gse",
		Prefixes: esbPrefixes(),
		Fail:     esbFail(gseErrors, "task_id"),
	}
	accept := func(name string, decode func(*Request) (procfleet.Submission, error)) {
		d.Calls = append(d.Calls, Call{
			Name: "gse." + name, Paths: esbPaths("v2/gse/" + name), Methods: esbMethods(),
			Use: Accept{Decode: decode, Encode: gseAccepted},
		})
	}
	outcomes := func(name string, entry renderEntry) {
		d.Calls = append(d.Calls, Call{
			Name: "gse." + name, Paths: esbPaths("v2/gse/" + name), Methods: esbMethods(),
			Use: Outcomes{Decode: decodeGSETaskID, Encode: gseOutcomes(entry)},
		})
	}
	accept("operate_proc_multi", decodeOperateMulti)
	accept("operate_proc_v2", decodeOperateV2)
	outcomes("get_proc_operate_result", gseEntryBothNames)
	outcomes("get_proc_operate_result_v2", gseEntry)
	return d
}

var gseErrors = map[Kind]esbError{
	Internal:       {http.StatusInternalServerError, esbAbnormal, "Request is abnormal, "},
	Malformed:      {http.StatusOK, esbAbnormal, ""},
	BadHeader:      {http.StatusOK, esbParameters, ""},
	InvalidField:   {http.StatusOK, esbParameters, "Parameters error, "},
	TooLarge:       {http.StatusOK, esbParameters, "Parameters error, "},
	NotFound:       {http.StatusOK, esbParameters, "Parameters error, "},
	Conflict:       {http.StatusOK, esbParameters, "Parameters error, "},
	Expired:        {http.StatusOK, esbParameters, "Parameters error, "},
	Unavailable:    {http.StatusServiceUnavailable, esbBackend, "Component request third-party system [GSE] error: "},
	OutcomeUnknown: {http.StatusServiceUnavailable, esbBackend, "Component request third-party system [GSE] error: "},
}

// opActions are the published numbers of the actions.
var opActions = map[int]procfleet.Action{
	0: procfleet.ActionStart,
	1: procfleet.ActionStop,
	2: procfleet.ActionStatus,
	3: procfleet.ActionSupervise,
	4: procfleet.ActionRelease,
	7: procfleet.ActionRestart,
	8: procfleet.ActionReload,
	9: procfleet.ActionKill,
}

// opAction returns the action of an op_type. A number that means nothing
// becomes an unknown action, which every host answers with code 832.
func opAction(op int) procfleet.Action {
	if a, ok := opActions[op]; ok {
		return a
	}
	return procfleet.Action(strconv.Itoa(op))
}

// autoTypes are the published numbers of the process types.
var autoTypes = map[int]procfleet.ProcessType{
	0: procfleet.Periodic,
	1: procfleet.Resident,
	2: procfleet.Once,
}

func gseAccepted(id procfleet.TaskID, requestID string) Reply {
	return Reply{Status: http.StatusOK, Body: envelope{
		Result: true, Message: "success", RequestID: requestID,
		Data: struct {
			TaskID procfleet.TaskID `json:"task_id"`
		}{id},
	}}
}

func decodeGSETaskID(r *Request) (procfleet.TaskID, error) {
	var params struct {
		credentials
		TaskID string `json:"task_id"`
	}
	if _, err := decodeESB(r, &params); err != nil {
		return "", err
	}
	return knownTaskID(params.TaskID, "task_id")
}

// knownTaskID tells a task id that is not there from one that no task has.
func knownTaskID(text, field string) (procfleet.TaskID, error) {
	if strings.TrimSpace(text) == "" {
		return "", required(field)
	}
	id, err := procfleet.ParseTaskID(text)
	if err != nil {
		return "", &Error{Kind: NotFound, Field: field, Problem: err.Error()}
	}
	return id, nil
}
