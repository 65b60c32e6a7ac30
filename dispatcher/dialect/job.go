package dialect

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// job is BlueKing Job's API for process operations. It has two families of paths: the
// paths of the ESB, and the paths at which an ESB in front of the dispatcher calls Job.
func job() Dialect {
	d := Dialect{Name: "job", Family: Family{
		Credentials: esbCredentials, CredentialsInBody: true, NeedsUser: true, Fail: esbFail(jobErrors, "bk_gse_taskid"),
	}}
	own := jobBackend()
	// A new call is a new line here.
	for _, c := range []jobCall{
		{"operate_proc", Accept{Decode: decodeJob[jobScript](opActions), Encode: jobAccepted}},
		{"operate_process", Accept{Decode: decodeJob[jobProcess](opActions), Encode: jobAccepted}},
		{"manage_proc", Accept{Decode: decodeJob[jobManaged](manageActions), Encode: jobAccepted}},
		{"get_proc_result", Outcomes{Decode: esb(decodeJobTaskID), Encode: jobOutcomes}},
	} {
		call := Call{Name: "job." + c.name, Endpoint: c.endpoint}
		// Two generations of the documentation name the system job and jobv3.
		d.Calls = append(d.Calls, call.at(esbMethods, esbPaths("v2/job/"+c.name, "v2/jobv3/"+c.name)))
		var paths []string
		for _, prefix := range own.Prefixes {
			paths = append(paths, bothSlashes(prefix+c.name)...)
		}
		own.Calls = append(own.Calls, call.at([]string{http.MethodPost}, paths))
	}
	d.Families = []Family{own}
	return d
}

type jobCall struct {
	name     string
	endpoint Endpoint
}

// jobBackend returns the family of paths at Job: the path that an ESB in front of the
// dispatcher calls, and two paths of Job's own. An older ESB calls a path of another
// form, see [oldJob].
func jobBackend() Family {
	return backend([]string{"/api/job/v2/job-execute/", "/esb/api/v2/", "/esb/api/v3/"}, jobErrors,
		esbError{http.StatusOK, jobParameters, "Invalid request parameters: "}, esbError{http.StatusNotFound, jobParameters, "Not found: "}, "bk_gse_taskid")
}

// Error codes of Job.
const (
	jobParameters = 1241002
	jobGSEAway    = 1210001
	jobInternal   = 1240002
	jobForbidden  = 9900403
)

var jobErrors = map[Kind]esbError{
	Internal:       {http.StatusInternalServerError, jobInternal, "Internal error, "},
	Malformed:      {http.StatusOK, esbAbnormal, ""}, // the ESB itself rejects such a body
	BadHeader:      {http.StatusOK, esbParameters, ""},
	InvalidField:   {http.StatusOK, jobParameters, "Invalid request parameters: "},
	TooLarge:       {http.StatusOK, jobParameters, "Invalid request parameters: "},
	NotFound:       {http.StatusOK, jobParameters, "Invalid request parameters: "},
	Conflict:       {http.StatusOK, jobParameters, "Invalid request parameters: "},
	OutsideWindow:  {http.StatusOK, jobParameters, "Invalid request parameters: "},
	Expired:        {http.StatusOK, jobParameters, "Invalid request parameters: "},
	Unavailable:    {http.StatusServiceUnavailable, jobGSEAway, "GSE is not available: "},
	StoreFull:      {http.StatusServiceUnavailable, jobGSEAway, "GSE is not available: "},
	OutcomeUnknown: {http.StatusServiceUnavailable, jobGSEAway, "GSE is not available: "},
	Forbidden:      {http.StatusOK, jobForbidden, "Permission is insufficient, "},
}

// jobScope is the business of a request in the old form, bk_biz_id, or in the new form,
// which takes precedence.
type jobScope struct {
	BizID     json.RawMessage `json:"bk_biz_id"`
	ScopeType string          `json:"bk_scope_type"`
	ScopeID   json.RawMessage `json:"bk_scope_id"`
}

// business returns the id of the business, or "biz_set:" and the id of a set of
// businesses.
func (s *jobScope) business() (string, error) {
	switch s.ScopeType {
	case "":
		return positiveID(s.BizID, "bk_biz_id")
	case "biz":
		return positiveID(s.ScopeID, "bk_scope_id")
	case "biz_set":
		id, err := positiveID(s.ScopeID, "bk_scope_id")
		return "biz_set:" + id, err
	}
	return "", invalid("bk_scope_type", "is neither biz nor biz_set")
}

// positiveID reads an id that callers write as a number or as text.
func positiveID(raw json.RawMessage, field string) (string, error) {
	text := strings.Trim(string(raw), `"`)
	if text == "" || text == "null" {
		return "", required(field)
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return "", invalid(field, "is not a positive number")
	}
	return strconv.FormatInt(id, 10), nil
}

func jobAccepted(id procfleet.TaskID, requestID string) Reply {
	return Reply{Status: http.StatusOK, Body: envelope{
		Result: true, RequestID: requestID, JobRequestID: requestID,
		Data: jobTask{id},
	}}
}

// jobTask is the data of a response to a call that created a task.
type jobTask struct {
	TaskID procfleet.TaskID `json:"bk_gse_taskid"`
}

type jobPoll struct {
	jobScope
	TaskID string `json:"bk_gse_taskid"`
}

func decodeJobTaskID(params *jobPoll) (procfleet.TaskID, error) {
	if _, err := params.business(); err != nil {
		return "", err
	}
	return knownTaskID(params.TaskID, "bk_gse_taskid")
}

// jobEntry appends an entry of Job's result map. The content is an object.
func jobEntry(b rendered, o *outcome, d *describer) rendered {
	b = append(b, '{')
	b = b.number("error_code", int64(o.code)).text("error_msg", o.message).name("content")
	if !o.described() {
		return append(b, `""}`...)
	}
	return append(d.content(b, o.item, o.message), '}')
}

// jobOutcomes writes Job's response to a poll.
func jobOutcomes(w io.Writer, requestID string, chunks iter.Seq2[[]procfleet.ItemResult, error]) error {
	if _, err := io.WriteString(w, `{"result":true,"code":0,"message":"","data":`); err != nil {
		return err
	}
	if err := jobOutcomeData(w, chunks); err != nil {
		return err
	}
	id, err := appendJSON(nil, requestID)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, `,"job_request_id":%s,"request_id":%[1]s}`, id)
	return err
}

// jobOutcomeData writes the data of the response to a poll. The status follows the map,
// because it is known only after the last entry.
func jobOutcomeData(w io.Writer, chunks iter.Seq2[[]procfleet.ItemResult, error]) error {
	if _, err := io.WriteString(w, `{"result":`); err != nil {
		return err
	}
	open, err := writeOutcomes(w, chunks, jobEntry)
	if err != nil {
		return err
	}
	status := procfleet.CodeSuccess
	if open {
		status = procfleet.CodeRunning
	}
	_, err = fmt.Fprintf(w, `,"status":%d}`, int(status))
	return err
}

// permission lists the permissions that the caller lacks, in the form of BlueKing's
// permission center.
type permission struct {
	SystemID   string             `json:"system_id"`
	SystemName string             `json:"system_name"`
	Actions    []permissionAction `json:"actions"`
}

type permissionAction struct {
	ID        string               `json:"id"`
	Name      string               `json:"name"`
	Resources []permissionResource `json:"related_resource_types"`
}

type permissionResource struct {
	SystemID   string                 `json:"system_id"`
	SystemName string                 `json:"system_name"`
	Type       string                 `json:"type"`
	TypeName   string                 `json:"type_name"`
	Instances  [][]permissionInstance `json:"instances"`
}

type permissionInstance struct {
	Type     string `json:"type"`
	TypeName string `json:"type_name"`
	ID       string `json:"id"`
	Name     string `json:"name"`
}

// permissionFor returns the denied actions, each with the business if there is one.
func permissionFor(d *Denied) permission {
	p := permission{SystemID: "procfleet", SystemName: "procfleet", Actions: []permissionAction{}}
	for _, action := range d.Actions {
		a := permissionAction{ID: action, Name: action, Resources: []permissionResource{}}
		if d.Business != "" {
			a.Resources = append(a.Resources, permissionResource{
				SystemID: "bk_cmdb", SystemName: "bk_cmdb", Type: "biz", TypeName: "business",
				Instances: [][]permissionInstance{{{Type: "biz", TypeName: "business", ID: d.Business, Name: d.Business}}},
			})
		}
		p.Actions = append(p.Actions, a)
	}
	return p
}
