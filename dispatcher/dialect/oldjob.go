package dialect

import (
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"

	"github.com/procfleet/procfleet"
)

// oldJob is Job's API for the ESB's components of the second generation. The parameters
// of a call are nested in the member params, beside the caller, and responses have
// bk_error_code and a bk_error_msg by language. The ESB's toolkit reads no other form
// (legacy-bk-paas, components/bk/apisv2/job/toolkit/tools.py).
func oldJob() Dialect {
	d := Dialect{Name: "oldjob", Family: Family{Credentials: oldJobCredentials, CredentialsInBody: true, Fail: oldJobFail}}
	for _, c := range []jobCall{
		{"get_proc_result", Outcomes{Decode: insideParams(esb(decodeJobTaskID)), Encode: oldJobOutcomes}},
		{"manage_proc", Accept{Decode: insideParams(decodeJob[jobManaged](manageActions)), Encode: oldJobAccepted}},
		{"operate_proc", Accept{Decode: insideParams(decodeJob[jobScript](opActions)), Encode: oldJobAccepted}},
		{"operate_process", Accept{Decode: insideParams(decodeJob[jobProcess](opActions)), Encode: oldJobAccepted}},
	} {
		d.Calls = append(d.Calls, Call{Name: "oldjob." + c.name, Paths: bothSlashes("/api/v2/" + c.name), Methods: []string{http.MethodPost}, Endpoint: c.endpoint})
	}
	return d
}

// insideParams returns a decoder that decodes the members of params as if they were
// beside bk_biz_id.
func insideParams[T any](decode func(*Request) (T, error)) func(*Request) (T, error) {
	return func(r *Request) (decoded T, err error) {
		var outer struct {
			BizID  json.RawMessage            `json:"bk_biz_id"`
			Params map[string]json.RawMessage `json:"params"`
		}
		if err := decodeESB(r, &outer); err != nil {
			return decoded, err
		}
		if outer.Params == nil {
			return decoded, required("params")
		}
		outer.Params["bk_biz_id"] = outer.BizID
		inner := *r
		if inner.Body, err = json.Marshal(outer.Params); err != nil {
			return decoded, err
		}
		decoded, err = decode(&inner)
		if f, ok := errors.AsType[*Error](err); ok && f.Field != "" && f.Field != "bk_biz_id" {
			f.Field = "params." + f.Field
		}
		return decoded, err
	}
}

// oldJobCredentials returns the credentials of the request's headers, or the application
// and the operator that an ESB in front of the dispatcher writes into the body. The ESB
// has authenticated the caller, and does not forward the secret.
func oldJobCredentials(r *Request) (Credentials, error) {
	if r.BkapiAuthorization != "" || r.BkAppCode != "" {
		return backendCredentials(r)
	}
	var said struct {
		Application json.RawMessage `json:"bk_app_code"`
		Operator    json.RawMessage `json:"operator"`
	}
	if decodeESB(r, &said) != nil {
		return Credentials{}, nil //nolint:nilerr // the body's error is reported after authentication
	}
	c := Credentials{Application: firstText(said.Application), User: firstText(said.Operator)}
	c.FromESB = c.Application != ""
	return checkedCode(c, "bk_app_code")
}

// oldJobEnvelope is the body of every response. Message is by language; callers fall
// back to English.
type oldJobEnvelope struct {
	Result     bool              `json:"result"`
	Code       int               `json:"bk_error_code"`
	Message    map[string]string `json:"bk_error_msg"`
	Data       any               `json:"data"`
	RequestID  string            `json:"request_id,omitempty"`
	Permission any               `json:"permission,omitempty"`
}

// oldJobFail encodes a failure like jobBackend, in the older envelope.
func oldJobFail(f *Error, requestID string) Reply {
	reply := jobBackend().Fail(f, requestID)
	if e, ok := reply.Body.(envelope); ok {
		reply.Body = oldJobEnvelope{
			Code: e.Code, Message: map[string]string{"en": e.Message}, Data: e.Data, RequestID: e.RequestID, Permission: e.Permission,
		}
	}
	return reply
}

func oldJobAccepted(id procfleet.TaskID, requestID string) Reply {
	return Reply{Status: http.StatusOK, Body: oldJobEnvelope{
		Result: true, Message: map[string]string{"en": ""}, RequestID: requestID, Data: jobTask{id},
	}}
}

// oldJobOutcomes writes the response to a poll. The content of an entry is an object, as
// in the newer form: the ESB forwards a content unchanged if it is not JSON in a string.
func oldJobOutcomes(w io.Writer, requestID string, chunks iter.Seq2[[]procfleet.ItemResult, error]) error {
	if _, err := io.WriteString(w, `{"result":true,"bk_error_code":0,"bk_error_msg":{"en":""},"data":`); err != nil {
		return err
	}
	if err := jobOutcomeData(w, chunks); err != nil {
		return err
	}
	id, err := appendJSON([]byte(`,"request_id":`), requestID)
	if err != nil {
		return err
	}
	_, err = w.Write(append(id, '}'))
	return err
}
