package openapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

var update = flag.Bool("update", false, "rewrite the recorded shapes of the native schemas")

// The members of the native API, their types and which are required are
// recorded: a change of a Go type that changes the API is visible here.
func TestNativeSchemasHaveTheRecordedShape(t *testing.T) {
	t.Parallel()
	d, err := describe("native")
	if err != nil {
		t.Fatal(err)
	}
	shapes := make(map[string]any)
	for _, of := range []*object{d.Requests, d.Answers} {
		for _, name := range of.keys() {
			shapes[name] = shape(of.at(name))
		}
	}
	for name, call := range d.Calls {
		shapes[name+" answer"] = shape(call.Answer)
		if call.Request != nil {
			shapes[name+" request"] = shape(call.Request)
		}
	}
	got, err := json.MarshalIndent(shapes, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "native-shapes.json")
	if *update {
		if err := os.WriteFile(path, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
		t.Errorf("-recorded +derived:\n%s", diff)
	}
}

// shape is a schema without descriptions and constraints of values. A type that
// may be null is written in one way.
func shape(schema *object) map[string]any {
	s := make(map[string]any)
	for _, word := range schema.keys() {
		switch word {
		case "type", "required":
			s[word] = schema.get(word)
			if list := texts(schema.list(word)); list != nil {
				slices.Sort(list)
				s[word] = list
			}
		case "$ref":
			s[word] = schema.get(word)
		case "properties":
			members := make(map[string]any)
			for _, name := range schema.at(word).keys() {
				members[name] = shape(schema.at(word).at(name))
			}
			s[word] = members
		case "items", "additionalProperties":
			s[word] = schema.get(word)
			if below := schema.at(word); below != nil {
				s[word] = shape(below)
			}
		case "anyOf":
			var ways []map[string]any
			for _, way := range schema.list(word) {
				o, _ := way.(*object)
				if o.get("type") == "null" {
					s["null"] = true
					continue
				}
				ways = append(ways, shape(o))
			}
			s[word] = ways
		}
	}
	if types, is := s["type"].([]string); is && slices.Contains(types, "null") {
		s["null"] = true
		s["type"] = slices.DeleteFunc(types, func(of string) bool { return of == "null" })
		if len(types) == 2 {
			s["type"] = types[0]
		}
	}
	if ways, is := s["anyOf"].([]map[string]any); is && len(ways) == 1 {
		delete(s, "anyOf")
		maps.Copy(s, ways[0])
	}
	return s
}

// plans are the types of responses to plan=true by call, where they differ from the others.
var plans = map[string]reflect.Type{
	"native": reflect.TypeFor[v1.Plan](), "native.retry": reflect.TypeFor[v1.Plan](), "native.set_topology": reflect.TypeFor[v1.Topology](),
}

// Every response of a fixture decodes into the type that describes it, without unknown members, and
// encodes into the same text.
func TestNativeAnswersAreReadIntoTheirTypes(t *testing.T) {
	t.Parallel()
	text, err := files.ReadFile("native.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d description // not derived: it names the types
	if err := yaml.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	_, doc := document(t)
	all := dialect.All()
	native := &all[slices.IndexFunc(all, func(d dialect.Dialect) bool { return d.Name == "native" })]
	read := make(map[string]bool)
	for _, r := range record(t, doc, native) {
		if r.operation == nil {
			continue
		}
		answer := d.Calls[r.operation.Call].Answer
		if name, is := strings.CutPrefix(answer.text("$ref"), schemaPath); is {
			answer = d.Answers.at(name)
		}
		of := goTypes[answer.text("go")]
		switch {
		case r.status >= 400:
			of = reflect.TypeFor[v1.Failure]()
		case r.query.Has("plan") && plans[r.operation.Call] != nil && r.status == 200:
			of = plans[r.operation.Call]
		case of == nil || of == reflect.TypeFor[v1.CatalogPage](): // events; processes are written in the form of a request
			continue
		}
		value := reflect.New(of)
		decoder := json.NewDecoder(bytes.NewReader(r.answer))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(value.Interface()); err != nil {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		again, err := json.Marshal(value.Interface())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(anyJSON(t, r.answer), anyJSON(t, again)); diff != "" {
			t.Errorf("%s is not written as it was read into %s:\n%s", r.name, of.Name(), diff)
		}
		read[of.Name()] = true
	}
	if len(read) < 20 {
		t.Errorf("answers of only %d types were read", len(read))
	}
}

func anyJSON(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// A description of a member that the Go type does not have is an error.
func TestADescriptionFollowsItsGoType(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no such type":   "answers: {A: {go: NoSuchType}}",
		"no such member": "answers: {A: {go: Task, properties: {no_such: {description: x}}}}",
		"no list":        "answers: {A: {go: Task, properties: {dialect: {items: {description: x}}}}}",
		"in a request":   "calls: {c: {request: {go: Targets, properties: {host: {description: x}}}}}",
		"below":          "calls: {c: {answer: {go: TaskPage, properties: {tasks: {items: {properties: {x: {}}}}}}}}",
	} {
		var d description
		if err := yaml.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		if err := d.derive(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
