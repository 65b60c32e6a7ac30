package dialect

import (
	"errors"
	"net/http"

	"github.com/procfleet/procfleet"
)

// The ESB is BlueKing's gateway for the published GSE and Job calls. It defines their
// paths, their envelope and their credentials. It also rejects requests that never reach
// a component, in a form of its own: unknown paths, and callers that it cannot
// authenticate.

// esbPrefixes are the path prefixes of the ESB's components: behind its usual proxy,
// and at the ESB itself.
var esbPrefixes = []string{"/api/c/compapi/", "/c/compapi/"}

// esbPaths returns every path of component calls. The ESB ignores a trailing slash.
func esbPaths(calls ...string) []string {
	var paths []string
	for _, prefix := range esbPrefixes {
		for _, call := range calls {
			paths = append(paths, bothSlashes(prefix+call)...)
		}
	}
	return paths
}

// bothSlashes returns the patterns of a path without and with a trailing slash.
func bothSlashes(path string) []string { return []string{path, path + "/{$}"} }

var esbMethods = []string{http.MethodGet, http.MethodPost}

// envelope is the body of every response.
type envelope struct {
	Result    bool   `json:"result"`
	Code      int    `json:"code"`
	Message   string `json:"message"`
	Data      any    `json:"data"`
	RequestID string `json:"request_id,omitempty"`
	// JobRequestID repeats RequestID in responses of the Job calls.
	JobRequestID string `json:"job_request_id,omitempty"`
	// Permission describes the rights that the caller lacks; nil in calls that do not
	// describe them.
	Permission any `json:"permission,omitempty"`
}

// notFoundBody is the ESB's response for an unknown path, the only one without a code.
type notFoundBody struct {
	Result  bool   `json:"result"`
	Data    any    `json:"data"`
	Message string `json:"message"`
}

// Error codes of the ESB.
const (
	esbAbnormal   = 1306000 // any failure without a code of its own, including failed authentication
	esbForbidden  = 1306403
	esbBackend    = 1306201 // the system behind the ESB does not respond
	esbNotFound   = 1306404
	esbParameters = 1306406
)

// esbError is the text and the code that a dialect behind the ESB has for one kind of
// failure.
type esbError struct {
	status int
	code   int
	prefix string // precedes the field and the problem, see [Error.after]
}

// esbCallerErrors are the ESB's own failures for callers that it cannot authenticate or
// that lack rights.
var esbCallerErrors = map[Kind]esbError{
	NoApplication:      {http.StatusOK, esbAbnormal, "APP Code [bk_app_code] cannot be empty"},
	NoSecret:           {http.StatusOK, esbAbnormal, "Signature and APP Secret cannot be empty at the same time"},
	UnknownApplication: {http.StatusOK, esbAbnormal, "Invalid APP Code [bk_app_code={app}], please confirm if the APP Code has been registered"},
	WrongSecret:        {http.StatusOK, esbAbnormal, "APP Secret verification failed, please confirm if the APP Secret and APP Code [bk_app_code={app}] match"},
	BadSignature:       {http.StatusOK, esbAbnormal, "Signature [bk_signature] verification failed, please provide valid parameters and signature"},
	NoUser:             {http.StatusOK, esbAbnormal, "User authentication failed, please provide a valid user identity, such as bk_token, bk_username"},
	BadToken:           {http.StatusOK, esbAbnormal, "User authentication failed, please check if the bk_token is valid"},
	Forbidden:          {http.StatusOK, esbForbidden, "APP permission is insufficient, "},
}

// esbFail returns a [Dialect.Fail] that encodes failures by a dialect's table; idField
// is the member of data that has a task id. The table needs no entries for unknown paths
// and methods and for failed authentication, because the ESB itself rejects such
// requests.
func esbFail(table map[Kind]esbError, idField string) func(*Error, string) Reply {
	return func(f *Error, requestID string) Reply {
		e, ok := table[f.Kind]
		if !ok {
			e, ok = esbCallerErrors[f.Kind]
		}
		switch {
		case ok:
		case f.Kind == NoRoute, f.Kind == BadMethod:
			return Reply{Status: http.StatusNotFound, Body: notFoundBody{Message: "The content does not exist"}}
		default:
			e = table[Internal]
		}
		body := envelope{Code: e.code, Message: f.after(e.prefix), RequestID: requestID}
		if f.Kind == BadHeader {
			body.RequestID = "" // the ESB rejects this header before it assigns a request id
		}
		if f.Kind == OutcomeUnknown && f.Task != "" {
			body.Data = map[string]procfleet.TaskID{idField: f.Task}
		}
		if e.code == jobForbidden {
			body.Permission = permissionFor(&f.Denied)
		}
		return Reply{Status: e.status, Body: body}
	}
}

// esb returns the decoder of a call that converts the decoded parameters.
func esb[P, Q any](convert func(*P) (Q, error)) func(*Request) (Q, error) {
	return decoded(decodeESB, convert)
}

// decodeESB decodes the parameters of a call into a struct.
func decodeESB(r *Request, into any) error {
	body, err := parameters(r)
	if err != nil {
		return err
	}
	err = decodeObject(body, into, r.MaxItems)
	if f, ok := errors.AsType[*Error](err); ok && f.Kind == Malformed {
		f.Problem = "Request JSON string is wrong in format, which cannot be analyzed. " + f.Problem
	}
	return err
}
