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

// API is the description of all calls of some dialects.
type API struct {
	Version  string
	Dialects []Dialect
}

// Dialect is the description of a [dialect.Dialect].
type Dialect struct {
	Name, Title, About string
	Families           []Family
	Calls              []Call
	text               *description
}

// Family is the description of a [dialect.Family].
type Family struct {
	Title, About string
	text         *familyText
	of           *dialect.Family
}

// Call is the description of one call, in all families of paths that have it.
type Call struct {
	Name, Summary, About string
	Places               []Place
	text                 callText
}

// Place is a call in one family of paths.
type Place struct {
	Family *Family
	// Path is the documented path, with wildcards in OpenAPI syntax; Others are further
	// paths of the same call.
	Path   string
	Others []string
	// Methods are the methods that can carry the required parameters. Silent are the
	// methods that cannot, because a query string holds no objects or lists.
	Methods  []string
	Silent   []string
	Failures []Failure
	call     *dialect.Call
}

// New returns the description of dialects; version is the version of the build.
func New(dialects []dialect.Dialect, version string) (*API, error) {
	api := &API{Version: version}
	for i := range dialects {
		d, err := newDialect(&dialects[i])
		if err != nil {
			return nil, err
		}
		api.Dialects = append(api.Dialects, *d)
	}
	// The native API has the fewest families and comes first.
	slices.SortStableFunc(api.Dialects, func(a, b Dialect) int { return cmp.Compare(len(a.Families), len(b.Families)) })
	return api, nil
}

func newDialect(of *dialect.Dialect) (*Dialect, error) {
	text, err := describe(of.Name)
	if err != nil {
		return nil, err
	}
	d := &Dialect{Name: of.Name, Title: text.Title, About: text.About, text: text}
	reached := of.Reached()
	for i := range reached {
		words := text.family(i)
		d.Families = append(d.Families, Family{Title: words.Title, About: words.About, text: &words, of: &reached[i]})
	}
	at := make(map[string]int)
	for i := range reached {
		for j := range reached[i].Calls {
			call := &reached[i].Calls[j]
			n, is := at[call.Name]
			if !is {
				n = len(d.Calls)
				at[call.Name] = n
				said := text.Calls[call.Name]
				d.Calls = append(d.Calls, Call{
					Name: call.Name, Summary: cmp.Or(said.Summary, call.Name), About: said.About, text: said,
				})
			}
			place, err := d.place(&d.Families[i], call, &d.Calls[n].text)
			if err != nil {
				return nil, err
			}
			d.Calls[n].Places = append(d.Calls[n].Places, place)
		}
	}
	return d, nil
}

func (d *Dialect) place(f *Family, call *dialect.Call, text *callText) (Place, error) {
	p := Place{Family: f, call: call}
	for _, pattern := range call.Paths {
		if strings.HasSuffix(pattern, "/{$}") {
			continue // same as the preceding path, with a trailing slash
		}
		p.Others = append(p.Others, pattern)
	}
	p.Path, p.Others = p.Others[0], p.Others[1:]
	for _, method := range call.Methods {
		if method == http.MethodGet && text.Request != nil && !f.text.BodyOfGet && !d.sayable(text.Request) {
			p.Silent = append(p.Silent, method)
			continue
		}
		p.Methods = append(p.Methods, method)
	}
	var err error
	p.Failures, err = failures(f.of, f.text, call, text.Request != nil)
	if err != nil {
		return p, fmt.Errorf("%s: %w", call.Name, err)
	}
	for _, code := range text.Failures.keys() {
		n, err := strconv.Atoi(code)
		if err != nil {
			return p, fmt.Errorf("%s: the failure %s is no number: %w", call.Name, code, err)
		}
		failure := Failure{Status: http.StatusOK, Code: code, Meaning: text.Failures.text(code), kind: code, code: n}
		if own := text.Failures.at(code); own != nil {
			failure.Status, _ = own.get("status").(int)
			failure.Meaning = own.text("meaning")
		}
		p.Failures = append(p.Failures, failure)
	}
	return p, nil
}

// sayable reports whether a query string can carry the required members of a request.
func (d *Dialect) sayable(request *object) bool {
	request = d.resolve(request)
	needs := func(of *object) bool {
		return !slices.ContainsFunc(texts(of.list("required")), func(name string) bool { return !d.scalar(request.at("properties").at(name)) })
	}
	ways := request.list("anyOf")
	return needs(request) && (ways == nil || slices.ContainsFunc(ways, func(way any) bool {
		o, _ := way.(*object)
		return needs(o)
	}))
}

// scalar reports whether values of a schema are neither objects nor lists.
func (d *Dialect) scalar(schema *object) bool {
	schema = d.resolve(schema)
	if ways := schema.list("anyOf"); ways != nil {
		return !slices.ContainsFunc(ways, func(way any) bool {
			o, _ := way.(*object)
			return !d.scalar(o)
		})
	}
	kind := schema.get("type")
	return kind != "object" && kind != "array"
}

// resolve returns the dialect's own schema that a reference names, or schema itself.
func (d *Dialect) resolve(schema *object) *object {
	name, is := strings.CutPrefix(schema.text("$ref"), schemaPath)
	if !is {
		return schema
	}
	for _, of := range []*object{d.text.Requests, d.text.Answers} {
		if of.has(name) {
			return of.at(name)
		}
	}
	return schema
}

const schemaPath = "#/components/schemas/"

func ref(name string) *object { return members("$ref", schemaPath+name) }

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
			"description", "Operates processes on fleets of hosts: a native API, and BlueKing's published ones.",
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
			"description", `A JSON object with "bk_app_code", "bk_app_secret" and, where a user is needed, "bk_token" or "bk_username". Credentials anywhere else are then ignored.`),
		"signature", members("type", "apiKey", "in", "query", "name", "bk_signature",
			"description", "In the place of a secret: HMAC-SHA1, in base64, of method, path and sorted parameters, with bk_nonce and bk_timestamp beside it."),
		"esb", members("type", "apiKey", "in", "header", "name", "Bk-App-Code",
			"description", "The word of an ESB in front, from an address of --trusted-esb; Bk-Username says for whom."),
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
		w.tags = append(w.tags, members("name", f.Title, "description", strings.TrimSpace(d.About+"\n\n"+f.About)))
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
	o := members("operationId", id, "tags", []any{p.Family.Title}, "summary", call.Summary)
	o.set("description", strings.TrimSpace(call.About+"\n\n"+p.elsewhere()))
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
		// The empty object permits credentials in the body and, without --apps, none.
		o.set("security", append(security, &object{}))
	}
	o.set("x-procfleet-call", call.Name)
	if len(p.Others) > 0 {
		o.set("x-procfleet-also", p.Others)
	}
	return o
}

// elsewhere returns a text with the other paths and methods of the call.
func (p *Place) elsewhere() string {
	var lines []string
	if len(p.Others) > 0 {
		lines = append(lines, "The same: `"+strings.Join(p.Others, "`, `")+"`.")
	}
	if len(p.Silent) > 0 {
		lines = append(lines, "`"+strings.Join(p.Silent, "`, `")+"` leads here too, but a query string has no room for what is needed.")
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
			"description", "Makes repeating safe: the same request under the same key gets the same task.",
			"schema", members("type", "string", "maxLength", 255)))
	}
	return append(all, members("name", "X-Bkapi-Request-Id", "in", "header",
		"description", "Comes back in the answer.", "schema", members("type", "string", "maxLength", 128)))
}

// wildcard returns the call's or the dialect's description of a path wildcard.
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
		if contains(request.list("required"), name) {
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
	status := cmp.Or(call.text.Status, http.StatusOK)
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
	answer := members("description", "The answer.")
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
	const meaning = "In plain text: the request is that of a web page of another origin, or came under a name that is not loopback's."
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

// failing returns the response for the failures with one status.
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
	return members("X-Bkapi-Request-Id", members("description", "As it was sent, or made up.", "required", true, "schema", members("type", "string")))
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
