package dialect

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// gse is BlueKing GSE's process API: operations that contain their process spec, and a
// result map that callers poll. It has three families of paths: the paths of the ESB,
// the paths at which an ESB in front of the dispatcher calls GSE, and the paths of the
// API gateway.
func gse() Dialect {
	d := Dialect{Name: "gse", Family: Family{
		Prefixes: esbPrefixes, Credentials: esbCredentials, CredentialsInBody: true, NeedsUser: true, Fail: esbFail(gseErrors, "task_id"),
	}}
	own, gateway := gseBackend(), gseGateway()
	for _, c := range gseCalls() {
		call := Call{Name: "gse." + c.name, Endpoint: c.endpoint}
		if c.esb != "" {
			d.Calls = append(d.Calls, call.at(esbMethods, esbPaths("v2/gse/"+c.esb, "gse/"+c.esb)))
		}
		if method, path, ok := strings.Cut(c.backend, " "); ok {
			own.Calls = append(own.Calls, call.at([]string{method}, bothSlashes(backendPrefix+path)))
		}
		if c.gateway != "" {
			gateway.Calls = append(gateway.Calls, call.at([]string{http.MethodPost}, gatewayPaths(c.gateway)))
		}
	}
	d.Families = []Family{own, gateway}
	return d
}

// gseCall is a call and its path in each family; "" means that the family does not have
// the call.
type gseCall struct {
	name     string
	esb      string // GET and POST, below v2/gse/ and gse/
	backend  string // method and path, below /procapi/
	gateway  string // POST, below api/v2/
	endpoint Endpoint
}

// gseCalls returns all calls. A new call is a new line here.
func gseCalls() []gseCall {
	return []gseCall{
		{"operate_proc_multi", "operate_proc_multi", "POST v2/proc/multioperate", "proc/operate_proc_multi", Accept{Decode: esb(decodeOperateMulti), Encode: gseAccepted}},
		{"operate_proc_v2", "operate_proc_v2", "POST v2/proc/operate", "proc/operate_proc_v2", Accept{Decode: esb(decodeOperateV2), Encode: gseAccepted}},
		{"operate_proc", "operate_proc", "POST v1/proc/operate", "", Accept{Decode: esb(decodeOperate), Encode: gseAccepted, Label: gseRegisteredHost}},
		{"get_proc_operate_result", "get_proc_operate_result", "GET v1/proc/operate", "", Outcomes{esb(decodeGSETaskID), gseOutcomes(gseEntryBothNames)}},
		{"get_proc_operate_result_v2", "get_proc_operate_result_v2", "GET v2/proc/operate", "proc/get_proc_operate_result_v2", Outcomes{esb(decodeGSETaskID), gseOutcomes(gseEntry)}},
		{"get_proc_status", "get_proc_status", "GET v1/proc/status", "", gseStatus(gseAddressAndSupplier, true)},
		{"get_proc_status_v2", "get_proc_status_v2", "GET v2/proc/status", "proc/get_proc_status_v2", gseStatus(gseAddress, false)},
		{"sync_proc_status", "sync_proc_status", "GET v1/proc/syncstatus", "proc/sync_proc_status", ListProcesses{esb(decodeSyncStatus), gseSyncStatus}},
		{"register_proc_info", "register_proc_info", "POST v1/proc/procinfo", "", Register{esb(decodeRegister), gseRegistered}},
		{"update_proc_info", "update_proc_info", "PUT v1/proc/procinfo", "proc/update_proc_info", Register{esb(decodeUpdate), gseRegistered}},
		{"unregister_proc_info", "unregister_proc_info", "DELETE v1/proc/procinfo", "", Register{esb(decodeUnregister), gseRegistered}},
		{"set_process_group_info", "set_process_group_info", "POST v1/proc/groupinfo", "", SetGroups{esb(decodeSetGroups), gseGroupsSet}},
		{"get_process_group_info", "get_process_group_info", "GET v1/proc/groupinfo", "", ShowGroups{esb(decodeGetGroups), gseGroups}},
		{"get_agent_status", "get_agent_status", "", "", ShowAgents{esb(decodeAgentHosts), gseAgentStatus}},
		{"get_agent_info", "get_agent_info", "", "", ShowAgents{esb(decodeAgentHosts), gseAgentInfo}},
		{"list_agent_state", "", "", "cluster/list_agent_state", ShowAgents{esb(decodeAgentIDs), gseAgentStates}},
		{"list_agent_info", "", "", "cluster/list_agent_info", ShowAgents{esb(decodeAgentIDs), gseAgentInfos}},
		{"upgrade_to_agent_id", "", "", "proc/upgrade_to_agent_id", BindAgents{esb(decodeUpgrade), gseUpgraded}},
	}
}

func (c Call) at(methods, paths []string) Call {
	c.Methods, c.Paths = methods, paths
	return c
}

var gseErrors = map[Kind]esbError{
	Internal:       {http.StatusInternalServerError, esbAbnormal, "Request is abnormal, "},
	Malformed:      {http.StatusOK, esbAbnormal, ""},
	BadHeader:      {http.StatusOK, esbParameters, ""},
	InvalidField:   {http.StatusOK, esbParameters, "Parameters error, "},
	TooLarge:       {http.StatusOK, esbParameters, "Parameters error, "},
	NotFound:       {http.StatusOK, esbParameters, "Parameters error, "},
	Conflict:       {http.StatusOK, esbParameters, "Parameters error, "},
	OutsideWindow:  {http.StatusOK, esbParameters, "Parameters error, "},
	Expired:        {http.StatusOK, esbParameters, "Parameters error, "},
	Unavailable:    {http.StatusServiceUnavailable, esbBackend, "Component request third-party system [GSE] error: "},
	StoreFull:      {http.StatusServiceUnavailable, esbBackend, "Component request third-party system [GSE] error: "},
	OutcomeUnknown: {http.StatusServiceUnavailable, esbBackend, "Component request third-party system [GSE] error: "},
}

// opActions are the actions by their published op_type.
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

// opAction returns the action of an op_type. An unknown number becomes an unknown
// action, for which every host reports code 832.
func opAction(op int) procfleet.Action {
	if a, ok := opActions[op]; ok {
		return a
	}
	return procfleet.Action(strconv.Itoa(op))
}

// autoTypes are the process types by their published number.
var autoTypes = map[int]procfleet.ProcessType{
	0: procfleet.Periodic,
	1: procfleet.Resident,
	2: procfleet.Once,
}

func gseAccepted(id procfleet.TaskID, requestID string) Reply {
	return gseAnswer(struct {
		TaskID procfleet.TaskID `json:"task_id"`
	}{id}, requestID)
}

func gseAnswer(data any, requestID string) Reply {
	return Reply{Status: http.StatusOK, Body: envelope{Result: true, Message: "success", Data: data, RequestID: requestID}}
}

type gseTask struct {
	TaskID string `json:"task_id"`
}

func decodeGSETaskID(params *gseTask) (procfleet.TaskID, error) {
	return knownTaskID(params.TaskID, "task_id")
}

// knownTaskID parses a task id. An empty id is an [InvalidField] error, a malformed id
// is [NotFound], because no task can have it.
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
