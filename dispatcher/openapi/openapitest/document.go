// Package openapitest checks requests and answers in tests against an OpenAPI document.
// It uses a JSON Schema library, and validates the document itself against the OpenAPI
// Initiative's schema of OpenAPI 3.1.
package openapitest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

//go:embed oas31-schema.json
var metaschema []byte

// Document is an OpenAPI document. It is safe for concurrent use.
type Document struct {
	root       map[string]any
	operations []*Operation

	mu       sync.Mutex // guards the fields below
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}

// Operation is one method of one path.
type Operation struct {
	ID, Method, Path string
	Call             string // value of x-procfleet-call
	paths            []string
	at               string // JSON pointer to the operation
	raw              map[string]any
	doc              *Document
}

const (
	location     = "https://procfleet.example/openapi.json"
	metaLocation = "https://spec.openapis.org/oas/3.1/schema/2022-10-07"
)

// Open decodes a document and returns an error unless the document and all its schemas
// are valid OpenAPI 3.1.
func Open(text []byte) (*Document, error) {
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	meta, err := jsonschema.UnmarshalJSON(bytes.NewReader(metaschema))
	if err != nil {
		return nil, err
	}
	d := &Document{compiler: jsonschema.NewCompiler(), compiled: make(map[string]*jsonschema.Schema)}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	d.compiler.AssertContent()
	// The compiler copies its bookkeeping of a resource for each schema that it meets in an unexpected
	// place, as all schemas of an OpenAPI document are. As definitions of one schema it knows them all.
	definitions := make(map[string]any)
	collectSchemas(definitions, "", root)
	schemas := map[string]any{"$defs": definitions}
	if err := errors.Join(d.compiler.AddResource(metaLocation, meta), d.compiler.AddResource(location, schemas)); err != nil {
		return nil, err
	}
	shape, err := d.compiler.Compile(metaLocation)
	if err != nil {
		return nil, err
	}
	if err := shape.Validate(root); err != nil {
		return nil, fmt.Errorf("the document is not OpenAPI 3.1: %w", err)
	}
	d.root, _ = root.(map[string]any)
	d.readOperations()
	var errs []error
	for at := range definitions {
		_, err := d.schema(at)
		errs = append(errs, err)
	}
	return d, errors.Join(errs...)
}

// Operations returns all operations, sorted by path and method.
func (d *Document) Operations() []*Operation { return d.operations }

func (d *Document) readOperations() {
	paths := child(d.root, "paths")
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := child(paths, path)
		for _, method := range slices.Sorted(maps.Keys(item)) {
			o := &Operation{
				Method: strings.ToUpper(method), Path: path, raw: child(item, method), doc: d,
				at: "/paths/" + escape(path) + "/" + method, paths: []string{path},
			}
			o.ID, _ = o.raw["operationId"].(string)
			o.Call, _ = o.raw["x-procfleet-call"].(string)
			also, _ := o.raw["x-procfleet-also"].([]any)
			for _, other := range also {
				o.paths = append(o.paths, fmt.Sprint(other))
			}
			d.operations = append(d.operations, o)
		}
	}
}

// collectSchemas adds every schema below a JSON pointer to found, by its pointer, with references among them.
func collectSchemas(found map[string]any, at string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, below := range value {
			place := at + "/" + escape(name)
			switch {
			case name == "schema" || at == "/components/schemas":
				found[place] = definition(below)
			case name != "example" && name != "examples":
				collectSchemas(found, place, below)
			}
		}
	case []any:
		for i, below := range value {
			collectSchemas(found, at+"/"+strconv.Itoa(i), below)
		}
	}
}

// definition returns a copy of a schema whose references are to definitions.
func definition(value any) any {
	switch value := value.(type) {
	case map[string]any:
		copied := make(map[string]any, len(value))
		for name, below := range value {
			if to, is := below.(string); is && name == "$ref" {
				copied[name] = reference(strings.TrimPrefix(to, "#"))
			} else {
				copied[name] = definition(below)
			}
		}
		return copied
	case []any:
		copied := make([]any, len(value))
		for i, below := range value {
			copied[i] = definition(below)
		}
		return copied
	}
	return value
}

// reference returns the reference to the definition that was at a JSON pointer of the document.
func reference(at string) string {
	place := url.URL{Fragment: "/$defs/" + escape(at)}
	return "#" + place.EscapedFragment()
}

// schema compiles the schema at a JSON pointer, once.
func (d *Document) schema(at string) (*jsonschema.Schema, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.compiled[at]; known != nil {
		return known, nil
	}
	s, err := d.compiler.Compile(location + reference(at))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	d.compiled[at] = s
	return s, nil
}

// Validate checks a JSON text against the schema at a JSON pointer.
func (d *Document) Validate(at string, text []byte) error {
	s, err := d.schema(at)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%q is not JSON: %w", text, err)
	}
	return s.Validate(value)
}

// Find returns the operation of a request, or nil if none is described. A trailing
// slash in the path is ignored.
func (d *Document) Find(method, path string) *Operation {
	var found *Operation
	most := -1 // most literal segments
	for _, o := range d.operations {
		if o.Method != method {
			continue
		}
		for _, pattern := range o.paths {
			if literal, ok := matches(pattern, path); ok && literal > most {
				found, most = o, literal
			}
		}
	}
	return found
}

func matches(pattern, path string) (literal int, ok bool) {
	wanted, given := segments(pattern), segments(path)
	if len(wanted) != len(given) {
		return 0, false
	}
	for i := range wanted {
		switch {
		case strings.HasPrefix(wanted[i], "{"):
		case wanted[i] == given[i]:
			literal++
		default:
			return 0, false
		}
	}
	return literal, true
}

func segments(path string) []string { return strings.Split(strings.Trim(path, "/"), "/") }

// TakesBody reports whether the operation has a body.
func (o *Operation) TakesBody() bool { return o.raw["requestBody"] != nil }

// Example returns a request made of the document's examples: query parameters and body.
// A required parameter without an example is "shop"; optional ones are omitted.
func (o *Operation) Example() (query url.Values, body []byte, err error) {
	query = make(url.Values)
	parameters, _ := o.raw["parameters"].([]any)
	for _, p := range parameters {
		parameter, _ := p.(map[string]any)
		if name, _ := parameter["name"].(string); parameter["in"] == "query" {
			switch example, there := parameter["example"]; {
			case there:
				query.Set(name, fmt.Sprint(example))
			case parameter["required"] == true:
				query.Set(name, "shop")
			}
		}
	}
	content := child(child(child(o.raw, "requestBody"), "content"), "application/json")
	if example, there := content["example"]; there {
		body, err = json.Marshal(example)
	}
	return query, body, err
}

// CheckRequest checks a request against its description.
func (o *Operation) CheckRequest(path string, query url.Values, header http.Header, body []byte) error {
	var errs []error
	parameters, _ := o.raw["parameters"].([]any)
	for i, p := range parameters {
		parameter, _ := p.(map[string]any)
		name, _ := parameter["name"].(string)
		values, there := o.parameter(parameter, path, query, header)
		if !there {
			if parameter["required"] == true {
				errs = append(errs, fmt.Errorf("%s: the parameter %s is missing", o.ID, name))
			}
			continue
		}
		if err := o.validateText(fmt.Sprintf("%s/parameters/%d/schema", o.at, i), values); err != nil {
			errs = append(errs, fmt.Errorf("%s: parameter %s: %w", o.ID, name, err))
		}
	}
	content := child(child(o.raw, "requestBody"), "content")
	if other, _, _ := strings.Cut(header.Get("Content-Type"), ";"); other != "application/json" && child(content, other) != nil {
		content = nil // the body is not JSON
	}
	if content != nil {
		if err := o.doc.Validate(o.at+"/requestBody/content/application~1json/schema", body); err != nil {
			errs = append(errs, fmt.Errorf("%s: body: %w", o.ID, err))
		}
	}
	return errors.Join(errs...)
}

// parameter returns the value of a parameter and whether the request has it.
func (o *Operation) parameter(parameter map[string]any, path string, query url.Values, header http.Header) (string, bool) {
	name, _ := parameter["name"].(string)
	switch parameter["in"] {
	case "query":
		return query.Get(name), query.Get(name) != "" // an empty value counts as missing
	case "header":
		return header.Get(name), header.Get(name) != ""
	}
	for _, pattern := range o.paths {
		if _, ok := matches(pattern, path); ok {
			at := slices.Index(segments(pattern), "{"+name+"}")
			if at < 0 {
				return "", true // this path has no such wildcard
			}
			return segments(path)[at], true
		}
	}
	return "", false
}

// validateText checks a parameter's text as a JSON string, then as another JSON value.
func (o *Operation) validateText(at, text string) error {
	quoted, err := json.Marshal(text)
	if err != nil {
		return err
	}
	err = o.doc.Validate(at, quoted)
	if err != nil && json.Valid([]byte(text)) && o.doc.Validate(at, []byte(text)) == nil {
		return nil
	}
	return err
}

// CheckAnswer checks an answer against its description.
func (o *Operation) CheckAnswer(status int, header http.Header, body []byte) error {
	response := child(child(o.raw, "responses"), strconv.Itoa(status))
	if response == nil {
		return fmt.Errorf("%s: the status %d is not described; the answer is %s", o.ID, status, body)
	}
	var errs []error
	for name, described := range child(response, "headers") {
		if described, _ := described.(map[string]any); described["required"] == true && header.Get(name) == "" {
			errs = append(errs, fmt.Errorf("%s: %d has no header %s", o.ID, status, name))
		}
	}
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	content := child(response, "content")
	switch {
	case content == nil:
		if len(body) > 0 {
			errs = append(errs, fmt.Errorf("%s: %d has a body that is not described: %s", o.ID, status, body))
		}
		return errors.Join(errs...)
	case err != nil || content[kind] == nil:
		return errors.Join(append(errs, fmt.Errorf("%s: %d has the Content-Type %q, described are %q",
			o.ID, status, header.Get("Content-Type"), slices.Collect(maps.Keys(content))))...)
	case kind != "application/json":
		return errors.Join(errs...)
	}
	if err := o.doc.Validate(o.at+"/responses/"+strconv.Itoa(status)+"/content/application~1json/schema", body); err != nil {
		errs = append(errs, fmt.Errorf("%s: %d: %w\n%s", o.ID, status, err, body))
	}
	return errors.Join(errs...)
}

func child(of map[string]any, name string) map[string]any {
	below, _ := of[name].(map[string]any)
	return below
}

// escape escapes a name for a JSON pointer.
func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
