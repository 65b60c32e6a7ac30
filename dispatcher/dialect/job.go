package dialect

import (
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// job is BlueKing Job's wrapper around the process operations.
func job() Dialect {
	return Dialect{
		Name:        "job",
		Credentials: esbCredentials,
		Fail:        esbFail(jobErrors, "bk_gse_taskid"),
		Calls: []Call{
			{
				Name: "job.operate_process", Paths: jobPaths("operate_process"), Methods: esbMethods(),
				Use: Accept{Decode: decodeOperateProcess, Encode: jobAccepted},
			},
			{
				Name: "job.get_proc_result", Paths: jobPaths("get_proc_result"), Methods: esbMethods(),
				Use: Outcomes{Decode: decodeJobTaskID, Encode: jobOutcomes},
			},
		},
	}
}

// jobPaths returns every path of a Job call: two generations of documents
// differ in the name of the system.
func jobPaths(name string) []string { return esbPaths("v2/job/"+name, "v2/jobv3/"+name) }

// Codes of Job.
const (
	jobParameters = 1241002
	jobGSEAway    = 1210001
	jobInternal   = 1240002
)

var jobErrors = map[Kind]esbError{
	Internal:       {http.StatusInternalServerError, jobInternal, "Internal error, "},
	Malformed:      {http.StatusOK, esbAbnormal, ""}, // the ESB's own answer
	BadHeader:      {http.StatusOK, esbParameters, ""},
	InvalidField:   {http.StatusOK, jobParameters, "Invalid request parameters: "},
	TooLarge:       {http.StatusOK, jobParameters, "Invalid request parameters: "},
	NotFound:       {http.StatusOK, jobParameters, "Invalid request parameters: "},
	Conflict:       {http.StatusOK, jobParameters, "Invalid request parameters: "},
	Expired:        {http.StatusOK, jobParameters, "Invalid request parameters: "},
	Unavailable:    {http.StatusServiceUnavailable, jobGSEAway, "GSE is not available: "},
	OutcomeUnknown: {http.StatusServiceUnavailable, jobGSEAway, "GSE is not available: "},
}

// jobScope says for which business a call is made, in the old form or the
// new one, which wins.
type jobScope struct {
	BizID     json.RawMessage `json:"bk_biz_id"`
	ScopeType string          `json:"bk_scope_type"`
	ScopeID   json.RawMessage `json:"bk_scope_id"`
}

// business returns the business's id, or "biz_set:" and the id of a set.
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
		Data: struct {
			TaskID procfleet.TaskID `json:"bk_gse_taskid"`
		}{id},
	}}
}

func decodeJobTaskID(r *Request) (procfleet.TaskID, error) {
	var params struct {
		jobScope
		TaskID string `json:"bk_gse_taskid"`
	}
	if err := decodeESB(r, &params); err != nil {
		return "", err
	}
	if _, err := params.business(); err != nil {
		return "", err
	}
	return knownTaskID(params.TaskID, "bk_gse_taskid")
}

// jobEntry appends an entry of Job's result map. Content is an object, or "".
func jobEntry(b rendered, o *outcome, c *content) rendered {
	b = append(b, '{')
	b = b.number("error_code", int64(o.code)).text("error_msg", o.message).name("content")
	if c == nil {
		return append(b, `""}`...)
	}
	return append(c.render(b), '}')
}

// jobOutcomes writes Job's answer to a poll. The status, which is known only
// after the last entry, comes behind the map.
func jobOutcomes(w io.Writer, requestID string, chunks iter.Seq2[[]procfleet.ItemResult, error]) error {
	if _, err := io.WriteString(w, `{"result":true,"code":0,"message":"","data":{"result":`); err != nil {
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
	tail := append([]byte(`,"status":`), strconv.Itoa(int(status))...)
	tail = append(tail, `},"job_request_id":`...)
	if tail, err = appendJSON(tail, requestID); err != nil {
		return err
	}
	tail = append(tail, `,"request_id":`...)
	if tail, err = appendJSON(tail, requestID); err != nil {
		return err
	}
	_, err = w.Write(append(tail, '}'))
	return err
}
