package openapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// JSON returns the OpenAPI document.
func (a *API) JSON() ([]byte, error) {
	w := &writer{paths: &object{}, schemas: &object{}, tags: []any{}}
	for i := range a.Dialects {
		w.dialect(&a.Dialects[i])
	}
	return plainJSON(members(
		"openapi", "3.1.1",
		"info", members(
			"title", "procfleet",
			"version", a.Version,
			"description", "Operates processes on fleets of hosts: a native API, and BlueKing's published APIs.",
			"license", members("name", "Apache-2.0", "identifier", "Apache-2.0"),
		),
		"servers", []any{members("url", "/")},
		"tags", w.tags,
		"paths", w.paths,
		"components", members("schemas", w.schemas, "securitySchemes", securitySchemes()),
	))
}

// securitySchemes returns the ways in which callers authenticate.
func securitySchemes() *object {
	return members(
		"bearer", members("type", "http", "scheme", "bearer", "bearerFormat", "<application>.<secret>"),
		"bkapi", members("type", "apiKey", "in", "header", "name", "X-Bkapi-Authorization",
			"description", `A JSON object with "bk_app_code", "bk_app_secret" and, if the call needs a user, "bk_token" or "bk_username". Other credentials in the request are then ignored.`),
		"signature", members("type", "apiKey", "in", "query", "name", "bk_signature",
			"description", "Replaces the secret: HMAC-SHA1, in base64, of the method, the path and the sorted parameters. It requires the parameters bk_nonce and bk_timestamp."),
		"esb", members("type", "apiKey", "in", "header", "name", "Bk-App-Code",
			"description", "The application that an ESB in front of the dispatcher has authenticated, accepted from addresses of --trusted-esb. Bk-Username names the user."),
	)
}

// writer collects the parts of the document.
type writer struct {
	paths, schemas *object
	tags           []any
}

func (w *writer) dialect(d *Dialect) {
	for _, name := range d.text.Requests.keys() {
		w.schemas.set(name, schemaOrNull(d.text.Requests.at(name)))
	}
	for _, name := range d.text.Answers.keys() {
		w.schemas.set(name, d.text.Answers.get(name))
	}
	for i := range d.Families {
		f := &d.Families[i]
		w.tags = append(w.tags, members("name", f.text.Title, "description", strings.TrimSpace(d.text.About+"\n\n"+f.text.About)))
	}
	for i := range d.Calls {
		call := &d.Calls[i]
		for j := range call.Places {
			place := &call.Places[j]
			item := w.paths.at(place.Path)
			if item == nil {
				item = &object{}
				w.paths.set(place.Path, item)
			}
			for _, method := range place.Methods {
				item.set(strings.ToLower(method), w.operation(d, call, place, method))
			}
		}
	}
}

var wildcard = regexp.MustCompile(`\{(\w+)\}`)

func (w *writer) operation(d *Dialect, call *Call, p *Place, method string) *object {
	id := call.Name + "." + p.Family.text.Name
	if len(p.Methods) > 1 {
		id += "." + strings.ToLower(method)
	}
	o := members("operationId", id, "tags", []any{p.Family.text.Title}, "summary", call.text.Summary)
	o.set("description", strings.TrimSpace(call.text.About+"\n\n"+p.elsewhere()))
	inBody := call.text.Request != nil && (method != http.MethodGet || p.Family.text.BodyOfGet)
	if parameters := d.parameters(call, p, inBody); len(parameters) > 0 {
		o.set("parameters", parameters)
	}
	if inBody {
		o.set("requestBody", d.body(call, p))
	}
	o.set("responses", w.responses(d, call, p))
	if names := p.Family.text.Security; len(names) > 0 {
		security := []any{}
		for _, name := range names {
			security = append(security, members(name, []any{}))
		}
		// The empty object declares the credentials optional in headers: they may be in the
		// body instead, and a dispatcher without --apps requires none.
		o.set("security", append(security, &object{}))
	}
	o.set("x-procfleet-call", call.Name)
	if len(p.Others) > 0 {
		o.set("x-procfleet-also", p.Others)
	}
	return o
}

// silentText follows the method of a silent place.
const silentText = " is accepted too, but a query string cannot contain the required members."

// elsewhere returns a text with the other paths and methods of the call.
func (p *Place) elsewhere() string {
	var lines []string
	if len(p.Others) > 0 {
		lines = append(lines, "Equivalent paths: `"+strings.Join(p.Others, "`, `")+"`.")
	}
	if len(p.Silent) > 0 {
		lines = append(lines, "`"+strings.Join(p.Silent, "`, `")+"`"+silentText)
	}
	return strings.Join(lines, "\n\n")
}

// parameters returns the parameters of a call: path wildcards, the call's own
// parameters, the members of the request if it has no body, and headers.
func (d *Dialect) parameters(call *Call, p *Place, inBody bool) []any {
	var all []any
	for _, name := range wildcard.FindAllStringSubmatch(p.Path, -1) {
		said := d.wildcard(call, name[1])
		all = append(all, members("name", name[1], "in", "path", "required", true, "description", said.text("description"), "schema", said.at("schema")))
	}
	for _, parameter := range call.text.Parameters {
		all = append(all, parameter)
	}
	if !inBody && call.text.Request != nil {
		all = append(all, d.query(call.text.Request, call.text.Example.value)...)
		if credentials := p.Family.text.Credentials; credentials != "" {
			all = append(all, d.query(ref(credentials), nil)...)
		}
	}
	if is[dialect.Accept](p.call.Endpoint) {
		all = append(all, members("name", "Idempotency-Key", "in", "header",
			"description", "Makes the request safe to repeat: the same request with the same key returns the same task.",
			"schema", members("type", "string", "maxLength", 255)), members("name", "Procfleet-Rollout", "in", "header",
			"description", "Name of a stored rollout policy. Without it the default of the business applies, if there is one.",
			"schema", members("type", "string", "maxLength", 64)), members("name", "Procfleet-Override-Windows", "in", "header",
			"description", "Reason to operate hosts outside of their maintenance windows. Audit records have it.",
			"schema", members("type", "string", "maxLength", 256)))
	}
	return append(all, members("name", "X-Bkapi-Request-Id", "in", "header",
		"description", "Copied into the response.", "schema", members("type", "string", "maxLength", 128)))
}

func (d *Dialect) wildcard(call *Call, name string) *object {
	for _, of := range []*object{call.text.Wildcards, d.text.Wildcards} {
		if of.has(name) {
			return of.at(name)
		}
	}
	return members("schema", members("type", "string"))
}

// query returns the members of a request that fit into a query string: scalars. It
// extracts their examples from the example of the request.
func (d *Dialect) query(request *object, example any) []any {
	shown, _ := example.(*object)
	request = d.resolve(request)
	var all []any
	for _, name := range request.at("properties").keys() {
		schema := request.at("properties").at(name)
		if !d.scalar(schema) {
			continue
		}
		parameter := members("name", name, "in", "query")
		if slices.Contains(request.list("required"), any(name)) {
			parameter.set("required", true)
		}
		if text := schema.text("description"); text != "" {
			parameter.set("description", text)
		}
		parameter.set("schema", bare(schema))
		if shown.has(name) {
			parameter.set("example", shown.get(name))
		}
		all = append(all, parameter)
	}
	return all
}

func (d *Dialect) body(call *Call, p *Place) *object {
	schema := schemaOrNull(call.text.Request)
	if credentials := p.Family.text.Credentials; credentials != "" {
		schema = members("allOf", []any{ref(credentials), schema})
	}
	content := members("schema", schema)
	if call.text.Example.value != nil {
		content.set("example", call.text.Example.value)
	}
	types := members("application/json", content)
	for _, other := range call.text.OtherTypes {
		types.set(other, members("schema", members("type", "string")))
	}
	return members("required", true, "content", types)
}

// responses returns the success response and the failures, by status.
func (w *writer) responses(d *Dialect, call *Call, p *Place) *object {
	status := call.text.Status
	byStatus := make(map[int][]Failure)
	for _, f := range p.Failures {
		byStatus[f.Status] = append(byStatus[f.Status], f)
	}
	all := &object{}
	schema, example := call.text.answer(d.text)
	if of, is := byStatus[status]; is {
		schema = members("oneOf", []any{schema, w.failure(d, call, p, status, of)})
		delete(byStatus, status)
	}
	content := members("schema", schema)
	if example != nil {
		content.set("example", example)
	}
	answer := members("description", "Success.")
	headers := responseHeaders()
	for _, name := range call.text.Headers.keys() {
		headers.set(name, call.text.Headers.get(name))
	}
	answer.set("headers", headers)
	answer.set("content", members(cmp.Or(call.text.ContentType, "application/json"), content))
	all.set(strconv.Itoa(status), answer)
	for _, other := range call.text.OtherAnswers.keys() {
		all.set(other, call.text.OtherAnswers.get(other))
	}
	for _, status := range slices.Sorted(maps.Keys(byStatus)) {
		all.set(strconv.Itoa(status), w.failing(d, call, p, status, byStatus[status]))
	}
	forbidForeignPages(all)
	return all
}

// forbidForeignPages adds the response for requests that are rejected before routing.
func forbidForeignPages(responses *object) {
	const meaning = "In plain text: a web page of another origin sent the request, or its Host header does not name the loopback address."
	code := strconv.Itoa(http.StatusForbidden)
	forbidden := responses.at(code)
	if forbidden == nil {
		forbidden = members("description", "", "content", &object{})
		responses.set(code, forbidden)
	}
	forbidden.set("description", strings.TrimSpace(forbidden.text("description")+" "+meaning))
	forbidden.set("headers", &object{}) // such a request has no id
	forbidden.at("content").set("text/plain", members("schema", members("type", "string")))
}

func (w *writer) failing(d *Dialect, call *Call, p *Place, status int, of []Failure) *object {
	headers := responseHeaders()
	switch status {
	case http.StatusServiceUnavailable:
		headers.set("Retry-After", members("description", "Seconds.", "schema", members("type", "integer", "minimum", 1)))
	case http.StatusUnauthorized:
		headers.set("WWW-Authenticate", members("required", true, "schema", members("type", "string")))
	}
	var meanings []string
	for _, f := range of {
		if !slices.Contains(meanings, f.Meaning) {
			meanings = append(meanings, f.Meaning)
		}
	}
	return members(
		"description", strings.Join(meanings, "; ")+".",
		"headers", headers,
		"content", members("application/json", members("schema", w.failure(d, call, p, status, of))),
	)
}

func responseHeaders() *object {
	return members("X-Bkapi-Request-Id", members("description", "The value in the request, or a generated id.", "required", true, "schema", members("type", "string")))
}

// failure returns a reference to the schema of a status's failures. Calls with the same
// failures share the schema.
func (w *writer) failure(d *Dialect, call *Call, p *Place, status int, of []Failure) *object {
	class := "ask"
	switch {
	case call.text.Failures != nil, p.Family.text.FailuresByCall:
		class = strings.TrimPrefix(call.Name, d.Name+".")
	case makesATask(nil, p.call, false):
		class = "make"
	case aboutATask(nil, p.call, false):
		class = "task"
	}
	if call.text.Request != nil {
		class += "-body"
	}
	name := fmt.Sprintf("Failure.%s.%s.%s.%d", d.Name, p.Family.text.Name, class, status)
	if !w.schemas.has(name) {
		w.schemas.set(name, failureSchema(p.Family.text, status, of))
	}
	return ref(name)
}

// answer returns the schema of a success response and an example.
func (t *callText) answer(d *description) (schema *object, example any) {
	switch {
	case t.Answer != nil:
		return t.Answer, t.AnswerExample.value
	case t.Data == nil || d.Envelope == nil:
		return &object{}, nil
	}
	schema = d.Envelope.with("properties", d.Envelope.at("properties").with("data", t.Data))
	if t.DataExample.value != nil {
		example = d.EnvelopeExample.with("data", t.DataExample.value)
	}
	return schema, example
}
