package dialect

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/procfleet/procfleet/catalog"
)

// Codes of the CMDB's common errors. Their HTTP status is 400, except 500 for
// cmdbNoHeader and 403 for cmdbForbidden.
const (
	cmdbNotJSON    = 1199000
	cmdbBadPath    = 1199003
	cmdbInvalid    = 1199006
	cmdbNotText    = 1199007
	cmdbNotNumber  = 1199009
	cmdbUnassigned = 1199010
	cmdbUnknown    = 1199011
	cmdbDuplicate  = 1199014
	cmdbOverLimit  = 1199015
	cmdbNoMatch    = 1199016
	cmdbNotFound   = 1199019
	cmdbNotTruth   = 1199025
	cmdbNoHeader   = 1199027
	cmdbBadValue   = 1199028
	cmdbBadEdit    = 1199041
	cmdbForbidden  = 9900403
)

// Codes of the CMDB's process server. Their HTTP status is 500, except 400 for
// cmdbNoIDs.
const (
	cmdbNoIDs        = 1108009
	cmdbBound        = 1108013
	cmdbCreateFailed = 1108008
	cmdbDetailFailed = 1108001
)

// cmdbWords are the texts by code with which the message of a failure begins. The
// details follow them.
var cmdbWords = map[int]string{
	cmdbNotJSON:      "JSON deserialization failed",
	cmdbBadPath:      "invalid input",
	cmdbInvalid:      "invalid parameter",
	cmdbNotNumber:    "the parameter must be an integer",
	cmdbOverLimit:    "over the limit",
	cmdbNotFound:     "not found",
	cmdbNoHeader:     "authorization information is missing",
	cmdbBadValue:     "Field value check does not pass",
	cmdbBadEdit:      "the processes were not updated",
	cmdbForbidden:    "no permission",
	cmdbNoIDs:        "bk_process_id must be a string of process ids joined by commas",
	cmdbBound:        "the process bind with module",
	cmdbCreateFailed: "create process failed",
	cmdbDetailFailed: "get process detail failed",
	1108002:          "bind process to module failed",
	1108003:          "unbind process from module failed",
	1108004:          "search process bound modules failed",
	1108005:          "update process failed",
	1108006:          "search process failed",
	1108007:          "delete process failed",
}

// cmdbCodes are the error codes of one call.
type cmdbCodes struct {
	failed  int // the server or its task store failed
	invalid int // a field of the request is invalid
	missing int // the process does not exist
	refused int // the request conflicts with stored data
}

var cmdbCalls = map[string]cmdbCodes{
	"cmdb.create_process":                {cmdbCreateFailed, cmdbBadValue, cmdbBadValue, cmdbBadValue},
	"cmdb.search_process":                {1108006, cmdbInvalid, cmdbNotFound, cmdbInvalid},
	"cmdb.get_process_detail":            {cmdbDetailFailed, cmdbInvalid, cmdbDetailFailed, cmdbInvalid},
	"cmdb.delete_process":                {1108007, cmdbInvalid, cmdbNotFound, cmdbBound},
	"cmdb.update_process":                {1108005, cmdbBadValue, cmdbBadValue, cmdbBadValue},
	"cmdb.batch_update_process":          {1108005, cmdbBadEdit, cmdbBadEdit, cmdbBadEdit},
	"cmdb.get_process_bind_module":       {1108004, cmdbInvalid, cmdbNotFound, cmdbInvalid},
	"cmdb.bind_process_module":           {1108002, cmdbInvalid, 1108002, cmdbInvalid},
	"cmdb.delete_process_module_binding": {1108003, cmdbInvalid, 1108003, cmdbInvalid},
}

// cmdbFailure is the body of every failure. If a header is missing, the members code and
// message repeat the code and the message, because the published server has only these
// two members in that case.
type cmdbFailure struct {
	cmdbEnvelope
	OtherCode    int    `json:"code,omitempty"`
	OtherMessage string `json:"message,omitempty"`
}

func cmdbFail(f *Error, _ string) Reply {
	code := cmdbCode(f)
	details := *f
	if f.Edit != nil {
		details.Field, details.Problem = "", cmdbEditProblem(f.Edit)
	}
	if f.Task != "" {
		details.Problem += " (task " + string(f.Task) + ")"
	}
	words := cmdbWords[code]
	if said, ok := gatewayReasons[f.Kind]; ok {
		words += ": " + said
	}
	body := cmdbFailure{cmdbEnvelope: cmdbEnvelope{Code: code, Message: details.after(words)}}
	if code == cmdbNoHeader {
		body.OtherCode, body.OtherMessage = body.Code, body.Message
	}
	return Reply{Status: cmdbStatus(f, code), Body: body}
}

// cmdbCode returns f.Code if it is set, otherwise the code that the call has for the
// kind of failure.
func cmdbCode(f *Error) int {
	call, known := cmdbCalls[f.Call]
	if !known {
		call = cmdbCodes{cmdbDetailFailed, cmdbInvalid, cmdbNotFound, cmdbInvalid}
	}
	switch {
	case f.Code != 0:
		return f.Code
	case f.Kind == InvalidField && f.Field == "body":
		return cmdbNotJSON
	}
	switch f.Kind {
	case Malformed:
		return cmdbNotJSON
	case BadHeader, Expired:
		return cmdbInvalid
	case InvalidField:
		return call.invalid
	case TooLarge:
		return cmdbOverLimit
	case NotFound:
		return call.missing
	case Conflict, OutsideWindow:
		return call.refused
	case NoRoute, BadMethod:
		return cmdbNotFound
	case NoApplication, NoSecret, UnknownApplication, WrongSecret, BadSignature, NoUser, BadToken, Forbidden:
		return cmdbForbidden
	case Internal, Unavailable, StoreFull, OutcomeUnknown:
	}
	return call.failed
}

func cmdbStatus(f *Error, code int) int {
	switch {
	case f.Kind == NoRoute, f.Kind == BadMethod:
		return http.StatusNotFound
	case f.Kind == TooLarge:
		return http.StatusRequestEntityTooLarge
	case code == cmdbForbidden:
		return http.StatusForbidden
	case code == cmdbNoIDs, code/1000 == cmdbNotJSON/1000 && code != cmdbNoHeader:
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// cmdbEditProblem describes in the terms of the CMDB which process was rejected, and
// why.
func cmdbEditProblem(e *catalog.EditError) string {
	problem := e.Err.Error()
	if wrong, ok := errors.AsType[*catalog.ValueError](e.Err); ok {
		problem = cmdbValueProblem(wrong)
	} else if twice, ok := errors.AsType[*catalog.DuplicateError](e.Err); ok {
		problem = cmdbDuplicateProblem(twice)
	} else if errors.Is(e.Err, catalog.ErrNoTemplate) {
		problem = withCode(problem, cmdbNotFound)
	}
	if e.ID == 0 {
		return problem
	}
	return fmt.Sprintf("process %d: %s", e.ID, problem)
}

// withCode appends the code that later releases of the CMDB have for a problem.
func withCode(problem string, code int) string { return fmt.Sprintf("%s [%d]", problem, code) }

func cmdbDuplicateProblem(e *catalog.DuplicateError) string {
	renamed := catalog.DuplicateError{Of: e.Of}
	for _, a := range e.Attributes {
		renamed.Attributes = append(renamed.Attributes, catalog.Attribute(cmdbProperty(a)))
	}
	return withCode(renamed.Error(), cmdbDuplicate)
}

// cmdbFaults are the codes that later releases of the CMDB have for invalid values.
// Older releases only log them.
var cmdbFaults = map[catalog.Fault]int{
	catalog.FaultUnknown:   cmdbUnknown,
	catalog.FaultMissing:   cmdbUnassigned,
	catalog.FaultNotText:   cmdbNotText,
	catalog.FaultNotNumber: cmdbNotNumber,
	catalog.FaultNotTruth:  cmdbNotTruth,
	catalog.FaultLimit:     cmdbOverLimit,
	catalog.FaultPorts:     cmdbNoMatch,
	catalog.FaultInvalid:   cmdbInvalid,
}

func cmdbValueProblem(e *catalog.ValueError) string {
	return withCode(cmdbProperty(e.Attribute)+": "+e.Problem, cmdbFaults[e.Fault])
}
