package dialect

import (
	"errors"
	"net/http"

	"github.com/procfleet/procfleet"
)

// The ESB is the gateway through which the published GSE and Job calls are
// reached. It gives them their paths, their envelope, their credentials and
// the answers to what never gets as far as a component.

// esbPrefixes are where the ESB's components live: behind its usual front,
// and at its own root.
func esbPrefixes() []string { return []string{"/api/c/compapi/", "/c/compapi/"} }

// esbPaths returns every path of one component call; the ESB does not
// distinguish a trailing slash.
func esbPaths(calls ...string) []string {
	var paths []string
	for _, prefix := range esbPrefixes() {
		for _, call := range calls {
			paths = append(paths, bothSlashes(prefix+call)...)
		}
	}
	return paths
}

// bothSlashes returns the patterns of a path without and with a trailing slash.
func bothSlashes(path string) []string { return []string{path, path + "/{$}"} }

func esbMethods() []string { return []string{http.MethodGet, http.MethodPost} }

// envelope is around every answer.
type envelope struct {
	Result    bool   `json:"result"`
	Code      int    `json:"code"`
	Message   string `json:"message"`
	Data      any    `json:"data"`
	RequestID string `json:"request_id,omitempty"`
	// JobRequestID is the second id that answers of the Job calls carry.
	JobRequestID string `json:"job_request_id,omitempty"`
	// Permission is what the caller would need, where a call says that.
	Permission any `json:"permission,omitempty"`
}

// notFoundBody is the one ESB answer that has no code.
type notFoundBody struct {
	Result  bool   `json:"result"`
	Data    any    `json:"data"`
	Message string `json:"message"`
}

// Codes of the ESB itself.
const (
	esbAbnormal   = 1306000 // what is wrong is none of the cases below; also who calls
	esbForbidden  = 1306403
	esbBackend    = 1306201 // the system behind the ESB does not answer
	esbNotFound   = 1306404
	esbParameters = 1306406
)

// esbError is how a dialect behind the ESB words one kind of failure.
type esbError struct {
	status int
	code   int
	prefix string // comes before the field and the problem; see [Error.after]
}

// esbCallerErrors is what the ESB itself says to callers whom it does not know.
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

// esbFail answers a failure from a dialect's table; idField is the member of
// data that carries a task id. Paths and methods that do not exist need no
// entry: the ESB itself answers them, and callers whom it does not know.
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
			body.RequestID = "" // the ESB fails on this header before it gives a request its id
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

// decodeESB reads a call's parameters.
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
