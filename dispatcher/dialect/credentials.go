package dialect

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/procfleet/procfleet"
)

// Credentials are what a request says of who calls. Nothing of it is verified.
type Credentials struct {
	Application string // its code; "" if the request names none
}

// parameters returns a call's parameters as a JSON object. A GET has them in
// its query string; with none, as the ESB itself asks the systems behind it,
// they are in the body like those of any other method. What is no JSON object
// there is form data to the ESB; what is no form has no parameters.
func parameters(r *Request) ([]byte, error) {
	switch {
	case r.Method == http.MethodGet && (len(r.Query) > 0 || !isObject(r.Body)):
		return formObject(r.Query)
	case isObject(r.Body):
		return r.Body, nil
	}
	form, _ := url.ParseQuery(string(r.Body))
	return formObject(form)
}

// formObject writes a form as a JSON object of strings.
func formObject(form url.Values) ([]byte, error) {
	flat := make(map[string]string, len(form))
	for name := range form {
		flat[name] = form.Get(name)
	}
	return json.Marshal(flat)
}

// esbCredentials are the header's, if there is one, even if they name nobody,
// else those among the parameters. Parameters that cannot be read name nobody:
// the call itself says what is wrong with them.
func esbCredentials(r *Request) (Credentials, error) {
	if r.BkapiAuthorization != "" {
		return bkapiCredentials(r)
	}
	given := struct {
		BkAppCode json.RawMessage `json:"bk_app_code"`
		AppCode   json.RawMessage `json:"app_code"`
	}{}
	body, err := parameters(r)
	if err != nil || decodeObject(body, &given) != nil {
		return Credentials{}, nil //nolint:nilerr // see above
	}
	return applicationOf(given.BkAppCode, given.AppCode)
}

// bkapiCredentials are those of the header X-Bkapi-Authorization.
func bkapiCredentials(r *Request) (Credentials, error) {
	given := struct {
		BkAppCode json.RawMessage `json:"bk_app_code"`
		AppCode   json.RawMessage `json:"app_code"`
	}{}
	if r.BkapiAuthorization == "" {
		return Credentials{}, nil
	}
	if err := json.Unmarshal([]byte(r.BkapiAuthorization), &given); err != nil {
		return Credentials{}, &Error{
			Kind:    BadHeader,
			Problem: "Parameters error, request header X-Bkapi-Authorization is not a valid JSON format string",
		}
	}
	return applicationOf(given.BkAppCode, given.AppCode)
}

func applicationOf(codes ...json.RawMessage) (Credentials, error) {
	for _, code := range codes {
		var text string
		if json.Unmarshal(code, &text) != nil || text == "" {
			continue
		}
		if len(text) > procfleet.MaxKey {
			return Credentials{}, invalid("bk_app_code", "is longer than %d bytes", procfleet.MaxKey)
		}
		return Credentials{Application: text}, nil
	}
	return Credentials{}, nil
}

// nativeCredentials are the code before the first dot of a bearer token, or
// what the gateway's header says.
func nativeCredentials(r *Request) (Credentials, error) {
	token, ok := strings.CutPrefix(r.Authorization, "Bearer ")
	if !ok {
		return bkapiCredentials(r)
	}
	code, _, _ := strings.Cut(strings.TrimSpace(token), ".")
	if len(code) > procfleet.MaxKey {
		return Credentials{}, invalid("Authorization", "names an application of more than %d bytes", procfleet.MaxKey)
	}
	return Credentials{Application: code}, nil
}
