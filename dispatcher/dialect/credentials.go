package dialect

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
)

// Credentials are the unverified credentials of a request. Absent credentials are empty.
type Credentials struct {
	Application string // application code
	Secret      string
	Signature   *Signature // replaces the secret; nil if absent
	// Token, AccessToken and User identify the user on whose behalf the application
	// calls: a bk_token of the login server, an access token, or only a name.
	Token       string
	AccessToken string
	User        string
	// FromESB means that the request names Application and User as an ESB in front of
	// the dispatcher does, without a secret. The dispatcher accepts such credentials
	// only from the address of a trusted ESB, which has authenticated both.
	FromESB bool
}

// Signature authenticates an application that does not send its secret.
type Signature struct {
	Value     string // HMAC-SHA1 of Text, in base64
	Text      string
	Nonce     string // a positive number
	Timestamp string // seconds since the Unix epoch
	// Ambiguous is the reason why another request could have the same Text; "" if there
	// is none. A signature with a reason is rejected.
	Ambiguous string
}

// parameters returns the parameters of a call as a JSON object. A GET request has them
// in its query string. A GET request without a query string may have them as JSON in its
// body, because the ESB calls the systems behind it in this way. Other requests have
// them in the body: as JSON, or, as at the ESB, as form data. A body that is neither has
// no parameters.
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

// formObject converts a form to a JSON object of strings. Of a repeated name the first
// value counts.
func formObject(form url.Values) ([]byte, error) {
	flat := make(map[string]string, len(form))
	for name := range form {
		flat[name] = form.Get(name)
	}
	return json.Marshal(flat)
}

// credentialFields are the members in which the ESB and the gateway read credentials.
type credentialFields struct {
	BkAppCode   json.RawMessage `json:"bk_app_code"`
	AppCode     json.RawMessage `json:"app_code"`
	BkAppSecret json.RawMessage `json:"bk_app_secret"`
	AppSecret   json.RawMessage `json:"app_secret"`
	BkToken     json.RawMessage `json:"bk_token"`
	BkUsername  json.RawMessage `json:"bk_username"`
	Username    json.RawMessage `json:"username"`
	AccessToken json.RawMessage `json:"access_token"`
}

func (f *credentialFields) credentials() Credentials {
	return Credentials{
		Application: firstText(f.BkAppCode, f.AppCode),
		Secret:      firstText(f.BkAppSecret, f.AppSecret),
		Token:       firstText(f.BkToken),
		AccessToken: firstText(f.AccessToken),
		User:        firstText(f.BkUsername, f.Username),
	}
}

// firstText returns the first value that is a JSON string and not empty; "" if there is
// none.
func firstText(values ...json.RawMessage) string {
	for _, value := range values {
		var text string
		if json.Unmarshal(value, &text) == nil && text != "" {
			return text
		}
	}
	return ""
}

// esbCredentials returns the credentials of the header X-Bkapi-Authorization if it is
// present, even if they name no application. Otherwise it returns those among the
// parameters. Like the ESB, it reports an unreadable body before missing credentials.
func esbCredentials(r *Request) (Credentials, error) {
	if r.BkapiAuthorization != "" {
		return bkapiCredentials(r)
	}
	var given credentialFields
	if err := decodeESB(r, &given); err != nil {
		return Credentials{}, err
	}
	return parameterCredentials(r, &given)
}

// gatewayCredentials is like esbCredentials, except that an unreadable body has no
// credentials and is no error: the gateway leaves bodies to the system behind it.
func gatewayCredentials(r *Request) (Credentials, error) {
	if r.BkapiAuthorization != "" {
		return bkapiCredentials(r)
	}
	var given credentialFields
	if decodeESB(r, &given) != nil {
		given = credentialFields{}
	}
	return parameterCredentials(r, &given)
}

// parameterCredentials returns the credentials among the parameters of the body, which
// are decoded in given, and of the query string.
func parameterCredentials(r *Request, given *credentialFields) (Credentials, error) {
	c := given.credentials()
	c.Application = cmp.Or(c.Application, r.Query.Get("bk_app_code"), r.Query.Get("app_code"))
	c.Secret = cmp.Or(c.Secret, r.Query.Get("bk_app_secret"), r.Query.Get("app_secret"))
	c.Token = cmp.Or(c.Token, r.Query.Get("bk_token"))
	c.AccessToken = cmp.Or(c.AccessToken, r.Query.Get("access_token"))
	c.User = cmp.Or(c.User, r.Query.Get("bk_username"), r.Query.Get("username"))
	c.Signature = signature(r)
	return checkedCode(c, "bk_app_code")
}

// bkapiCredentials returns the credentials of the header X-Bkapi-Authorization; empty
// ones without the header.
func bkapiCredentials(r *Request) (Credentials, error) {
	if r.BkapiAuthorization == "" {
		return Credentials{}, nil
	}
	var given credentialFields
	if err := json.Unmarshal([]byte(r.BkapiAuthorization), &given); err != nil {
		return Credentials{}, &Error{
			Kind:    BadHeader,
			Problem: "Parameters error, request header X-Bkapi-Authorization is not a valid JSON format string",
		}
	}
	return checkedCode(given.credentials(), "bk_app_code")
}

func checkedCode(c Credentials, field string) (Credentials, error) {
	if len(c.Application) > procfleet.MaxKey {
		return Credentials{}, invalid(field, "names an application of more than %d bytes", procfleet.MaxKey)
	}
	return c, nil
}

// signature returns the signature of a request, or nil if it has none. The clients of
// the ESB sign the method, the path and all parameters of the query string, sorted by
// name and unescaped. A POST request adds its body as the parameter data.
func signature(r *Request) *Signature {
	value := cmp.Or(r.Query.Get("bk_signature"), r.Query.Get("signature"))
	if value == "" {
		return nil
	}
	s := &Signature{Value: value, Nonce: r.Query.Get("bk_nonce"), Timestamp: r.Query.Get("bk_timestamp")}
	params := make(map[string]string, len(r.Query)+1)
	for name, values := range r.Query {
		switch {
		case len(values) != 1:
			s.Ambiguous = "a signed request has each parameter once"
		case strings.Contains(name+values[0], "&"):
			s.Ambiguous = "a signed request has no & in its parameters"
		}
		if name != "bk_signature" && name != "signature" {
			params[name] = values[0]
		}
	}
	if r.Method == http.MethodPost {
		if _, twice := params["data"]; twice {
			s.Ambiguous = "a signed POST has its data in the body"
		}
		params["data"] = string(r.Body)
	}
	var text strings.Builder
	text.WriteString(r.Method + r.Path)
	sign := byte('?')
	for _, name := range slices.Sorted(maps.Keys(params)) {
		text.WriteByte(sign)
		text.WriteString(name + "=" + params[name])
		sign = '&'
	}
	s.Text = text.String()
	return s
}

// backendCredentials returns the credentials of the gateway's header, or those of the
// headers in which an ESB in front of the dispatcher names its caller. The ESB has
// authenticated the caller, and does not forward the secret.
func backendCredentials(r *Request) (Credentials, error) {
	if r.BkapiAuthorization != "" {
		return bkapiCredentials(r)
	}
	return checkedCode(Credentials{Application: r.BkAppCode, User: r.BkUsername, FromESB: r.BkAppCode != ""}, "Bk-App-Code")
}

// nativeCredentials returns the credentials of a bearer token, <code>.<secret>, or of
// the gateway's header.
func nativeCredentials(r *Request) (Credentials, error) {
	scheme, token, _ := strings.Cut(r.Authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return bkapiCredentials(r)
	}
	code, secret, _ := strings.Cut(strings.TrimSpace(token), ".")
	return checkedCode(Credentials{Application: code, Secret: secret}, "Authorization")
}
