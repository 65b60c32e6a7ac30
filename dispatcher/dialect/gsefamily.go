package dialect

import (
	"maps"
	"net/http"
	"strings"

	"github.com/procfleet/procfleet"
)

const backendPrefix = "/procapi/"

// gseBackend returns the family of paths at which an ESB in front of the dispatcher
// calls GSE. Its GET requests have a JSON body.
func gseBackend() Family {
	return backend([]string{backendPrefix}, gseErrors, esbError{http.StatusOK, esbParameters, "Parameters error, "},
		esbError{http.StatusNotFound, esbNotFound, "Not found, "}, "task_id")
}

// backend returns a family of paths at which an ESB in front of the dispatcher calls the
// system of a dialect. The ESB reports any status but 200 as a failure of the system,
// without details. Failures that its caller can correct therefore have the status 200.
func backend(prefixes []string, own map[Kind]esbError, malformed, notFound esbError, idField string) Family {
	table := maps.Clone(own)
	table[Malformed], table[NoRoute] = malformed, notFound
	notFound.status = http.StatusMethodNotAllowed
	table[BadMethod] = notFound
	return Family{Prefixes: prefixes, Credentials: backendCredentials, Fail: esbFail(table, idField)}
}

// gseGateway returns the family of paths of BlueKing's API gateway. The gateway itself
// rejects requests that do not reach GSE, with an HTTP status and a body of its own
// form.
func gseGateway() Family {
	f := Family{Prefixes: []string{"/api/bk-gse/"}, Credentials: gatewayCredentials, CredentialsInBody: true, NeedsUser: true, Fail: gatewayFail}
	for _, base := range gatewayBases() {
		if !strings.Contains(base, "{") {
			f.Prefixes = append(f.Prefixes, base+"api/v2/proc/", base+"api/v2/cluster/")
		}
	}
	return f
}

// gatewayBases returns the base paths that clients configure as the address of the
// gateway: GSE's stages at the gateway, the dispatcher itself, and, for clients without
// a gateway, GSE's path at the ESB.
func gatewayBases() []string {
	bases := []string{"/api/bk-gse/{stage}/", "/"}
	for _, esb := range esbPrefixes {
		bases = append(bases, esb+"v2/gse/")
	}
	return bases
}

func gatewayPaths(path string) []string {
	var paths []string
	for _, base := range gatewayBases() {
		paths = append(paths, bothSlashes(base+"api/v2/"+path)...)
	}
	return paths
}

// gatewayBody is the body of the gateway's own failures.
type gatewayBody struct {
	Code     int    `json:"code"`
	CodeName string `json:"code_name"`
	Message  string `json:"message"`
	Result   bool   `json:"result"`
	Data     any    `json:"data"`
}

// gatewayError is the text and the code that the gateway has for one kind of failure.
type gatewayError struct {
	status  int
	code    int
	name    string
	message string
}

// gatewayErrors are the failures of requests that do not reach GSE. All other failures
// have the form of GSE's responses.
var gatewayErrors = map[Kind]gatewayError{
	Internal:       {http.StatusInternalServerError, 1650001, "INTERNAL_SERVER_ERROR", "Internal Server Error"},
	BadHeader:      gatewayInvalid,
	TooLarge:       {http.StatusRequestEntityTooLarge, 1641301, "BODY_SIZE_LIMIT_EXCEED", "Request body size too large."},
	NoRoute:        {http.StatusNotFound, 1640401, "API_NOT_FOUND", "API not found"},
	BadMethod:      {http.StatusNotFound, 1640401, "API_NOT_FOUND", "API not found"},
	Unavailable:    {http.StatusServiceUnavailable, 1650300, "SERVICE_UNAVAILABLE", "Service Unavailable"},
	StoreFull:      {http.StatusServiceUnavailable, 1650300, "SERVICE_UNAVAILABLE", "Service Unavailable"},
	OutcomeUnknown: {http.StatusServiceUnavailable, 1650300, "SERVICE_UNAVAILABLE", "Service Unavailable"},

	Forbidden: {http.StatusForbidden, 1640301, "APP_NO_PERMISSION", "App has no permission to the resource"},
}

var gatewayInvalid = gatewayError{http.StatusBadRequest, 1640001, "INVALID_ARGS", "Parameters error"}

// gatewayReasons are the texts that the gateway has for failed authentication.
var gatewayReasons = map[Kind]string{ //nolint:gosec // messages about secrets, not secrets
	NoApplication:      "app code cannot be empty",
	NoSecret:           "please provide bk_app_secret or bk_signature to verify app",
	UnknownApplication: "bk_app_code or bk_app_secret is incorrect",
	WrongSecret:        "bk_app_code or bk_app_secret is incorrect",
	BadSignature:       "bk_app_code or bk_app_secret is incorrect",
	NoUser:             "user authentication failed, please provide a valid user identity, such as bk_username, bk_token, access_token",
	BadToken:           "user authentication failed, please check if the bk_token is valid",
}

func gatewayFail(f *Error, requestID string) Reply {
	e, own := gatewayErrors[f.Kind]
	if f.Kind.unauthenticated() {
		e, own = gatewayInvalid, true
	}
	if !own {
		return Reply{Status: http.StatusOK, Body: envelope{
			Code: esbParameters, Message: "Parameters error, " + f.Error(), RequestID: requestID,
		}}
	}
	body := gatewayBody{Code: e.code, CodeName: e.name, Message: e.message + " [" + gatewayReason(f) + "]"}
	if f.Kind == OutcomeUnknown && f.Task != "" {
		body.Data = map[string]procfleet.TaskID{"task_id": f.Task}
	}
	return Reply{Status: e.status, Body: body}
}

// gatewayReason returns the text that the gateway adds to a message in brackets.
func gatewayReason(f *Error) string {
	if f.Kind == NoRoute || f.Kind == BadMethod {
		return `method="` + f.Method + `" path="` + f.Path + `"`
	}
	return `reason="` + strings.TrimPrefix(f.after(gatewayReasons[f.Kind]), "Parameters error, ") + `"`
}
