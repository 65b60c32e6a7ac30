package openapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/openapi/openapitest"
)

// For a new dialect, family of paths or call without a description, this test fails with the missing
// text.
func TestEveryCallIsDescribed(t *testing.T) {
	t.Parallel()
	for _, d := range dialect.All() {
		file := d.Name + ".yaml"
		text, err := describe(d.Name)
		if err != nil {
			t.Fatal(err)
		}
		if text.Calls == nil {
			t.Errorf("the dialect %s is not described: add dispatcher/openapi/%s", d.Name, file)
			continue
		}
		if got, want := len(text.Families), len(d.Reached()); got != want {
			t.Errorf("%s describes %d families of paths under families, the dialect has %d", file, got, want)
		}
		for _, f := range text.Families {
			if f.Name == "" || f.Title == "" || f.Failure == nil || len(f.Code) == 0 || len(f.Security) == 0 {
				t.Errorf("%s: the family %q needs name, title, failure, code and security", file, f.Name)
			}
		}
		names := calls(&d)
		for _, name := range names {
			call, is := text.Calls[name]
			switch {
			case !is:
				t.Errorf("%s does not describe %s: add it under calls", file, name)
			case call.Summary == "" || call.About == "":
				t.Errorf("%s: %s needs summary and about", file, name)
			case call.Answer == nil && call.Data == nil:
				t.Errorf("%s: %s needs answer, or data for what is in the envelope", file, name)
			case call.Request != nil && call.Example.value == nil:
				t.Errorf("%s: %s needs an example of a request", file, name)
			case call.ContentType == "" && call.AnswerExample.value == nil && call.DataExample.value == nil:
				t.Errorf("%s: %s needs an example of an answer", file, name)
			}
		}
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				own := text.Calls[call.Name]
				for _, w := range wildcard.FindAllStringSubmatch(call.Paths[0], -1) {
					if !text.Wildcards.has(w[1]) && !own.Wildcards.has(w[1]) {
						t.Errorf("%s: say under wildcards what {%s} of %s is", file, w[1], call.Name)
					}
				}
			}
		}
		for name := range text.Calls {
			if !slices.Contains(names, name) {
				t.Errorf("%s describes %s, which does not exist", file, name)
			}
		}
	}
}

func TestEveryDescriptionIsOfADialect(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := dialect.All()
	for _, path := range paths {
		name := strings.TrimSuffix(path, ".yaml")
		if !slices.ContainsFunc(all, func(d dialect.Dialect) bool { return d.Name == name }) {
			t.Errorf("%s describes no dialect", path)
		}
	}
}

// The document contains every path and method of the dialects, as an operation or as an equivalent
// path of one, except GET for calls whose required members a query string cannot contain.
func TestEveryPathOfEveryCallIsFound(t *testing.T) {
	t.Parallel()
	api, doc := document(t)
	silent := make(map[string]bool)
	for _, d := range api.Dialects {
		for _, call := range d.Calls {
			for _, p := range call.Places {
				for _, method := range p.Silent {
					silent[method+" "+p.Path] = true
				}
			}
		}
	}
	for _, d := range dialect.All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				first := call.Paths[0]
				for _, path := range call.Paths {
					for _, method := range call.Methods {
						o := doc.Find(method, strings.TrimSuffix(path, "{$}"))
						if o == nil && !silent[method+" "+first] {
							t.Errorf("%s %s of %s is not described", method, path, call.Name)
						}
						if o != nil && o.Call != call.Name {
							t.Errorf("%s %s is described as %s, want %s", method, path, o.Call, call.Name)
						}
					}
				}
			}
		}
	}
	if o := doc.Find(http.MethodGet, "/api/c/compapi/v2/gse/operate_proc_multi"); o != nil {
		t.Error("an operation by GET is described, which no query string has room for")
	}
}

// Every kind of error is described. Only the errors for unknown paths and methods
// belong to no call.
func TestEveryKindOfFailureIsDescribed(t *testing.T) {
	t.Parallel()
	for kind := dialect.Internal; kind <= dialect.Forbidden; kind++ {
		described := slices.ContainsFunc(failureKinds, func(k failureKind) bool { return k.example.Kind == kind })
		elsewhere := kind == dialect.NoRoute || kind == dialect.BadMethod
		if described == elsewhere {
			t.Errorf("kind %d (%s): described is %v", kind, kind, described)
		}
	}
}

// The examples match the schemas.
func TestExamplesAreAsDescribed(t *testing.T) {
	t.Parallel()
	api, doc := document(t)
	for _, d := range api.Dialects {
		for i := range d.Calls {
			call := &d.Calls[i]
			for _, p := range call.Places {
				for _, method := range p.Methods {
					o := doc.Find(method, p.Path)
					checkExamples(t, &d, call, &p, o)
				}
			}
		}
	}
}

func checkExamples(t *testing.T, d *Dialect, call *Call, p *Place, o *openapitest.Operation) {
	t.Helper()
	if example := call.text.Example.value; example != nil && (o.Method != http.MethodGet || p.Family.text.BodyOfGet) {
		headers := http.Header{"Bk_user": {"admin"}, "Http_blueking_supplier_id": {"0"}}
		if err := o.CheckRequest(somePath(p.Path), nil, headers, asJSON(t, example)); err != nil {
			t.Errorf("the example of a request:\n%v", err)
		}
	}
	if _, example := call.text.answer(d.text); example != nil {
		if err := o.CheckAnswer(call.text.Status, header(o, 0), asJSON(t, example)); err != nil {
			t.Errorf("the example of an answer:\n%v", err)
		}
	}
	for _, f := range p.Failures {
		if f.body == nil {
			continue
		}
		h := header(o, f.Status)
		h.Set("Content-Type", "application/json")
		if err := o.CheckAnswer(f.Status, h, asJSON(t, f.body)); err != nil && f.Status != http.StatusOK {
			t.Errorf("%s: %v", f.kind, err)
		} else if err != nil && call.text.ContentType == "" {
			t.Errorf("%s: %v", f.kind, err)
		}
	}
}

// somePath returns a path that matches the pattern.
func somePath(pattern string) string {
	return wildcard.ReplaceAllString(strings.ReplaceAll(pattern, "{version}", "v3"), "7")
}

func asJSON(t *testing.T, value any) []byte {
	t.Helper()
	text, err := plainJSON(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// For every call, the check of the description fails for a response with a missing member, an extra
// member or a member of another type, and for an undescribed status.
func TestABrokenAnswerIsNoticed(t *testing.T) {
	t.Parallel()
	_, doc := document(t)
	all := dialect.All()
	for i := range all {
		broken := make(map[string]int)
		for _, r := range record(t, doc, &all[i]) {
			if r.operation == nil || !r.accepted || streams(r.operation.Call) || broken[r.operation.Call] > 0 {
				continue // one of each call is enough; events are no JSON
			}
			if bytes.Contains(r.answer, []byte(`"result": false`)) {
				continue // a failure, of which request_id may be missing
			}
			h := header(r.operation, r.status)
			for name, answer := range spoilt(t, r.answer) {
				broken[r.operation.Call]++
				if r.operation.CheckAnswer(r.status, h, answer) == nil {
					t.Errorf("%s: an answer passes although %s:\n%s", r.name, name, answer)
				}
			}
			if r.operation.CheckAnswer(http.StatusTeapot, h, r.answer) == nil {
				t.Errorf("%s: a status passes that is not described", r.name)
			}
			h.Set("Content-Type", "text/plain")
			if r.operation.CheckAnswer(r.status, h, r.answer) == nil {
				t.Errorf("%s: plain text passes for JSON", r.name)
			}
		}
		for _, call := range calls(&all[i]) {
			if broken[call] == 0 && !streams(call) {
				t.Errorf("no broken answer of %s was tried", call)
			}
		}
	}
}

// streams reports whether the response of a call is a stream of events.
func streams(call string) bool { return call == "native.events" || call == "native.task_events" }

// spoilt returns copies of a response that each have one error.
func spoilt(t *testing.T, answer json.RawMessage) map[string][]byte {
	t.Helper()
	wrong := make(map[string][]byte)
	var spoil func(at string, value map[string]any)
	var top map[string]any
	decoder := json.NewDecoder(bytes.NewReader(answer))
	decoder.UseNumber()
	if err := decoder.Decode(&top); err != nil {
		t.Fatal(err)
	}
	keep := func(name string) {
		text, err := json.Marshal(top)
		if err != nil {
			t.Fatal(err)
		}
		wrong[name] = text
	}
	spoil = func(at string, value map[string]any) {
		value["no_such_member"] = 1
		keep(at + " has a member that is not described")
		delete(value, "no_such_member")
		for name, is := range value {
			below, object := is.(map[string]any)
			if at == "" || name == "meta" || name == "host" {
				delete(value, name)
				keep(at + name + " is missing")
			}
			value[name] = []any{[]any{"no such type"}}
			keep(at + name + " has another type")
			value[name] = is
			if object && name != "labels" && name != "counts" && len(below) > 0 {
				spoil(at+name+".", below)
			}
		}
	}
	spoil("", top)
	return wrong
}

// A request that the decoders reject does not match the description.
func TestABrokenRequestIsNoticed(t *testing.T) {
	t.Parallel()
	_, doc := document(t)
	for _, wrong := range []struct{ method, path, body string }{
		{"POST", "/v1/tasks", `{"action":"start","hosts":["nowhere"]}`},
		{"POST", "/v1/tasks", `{"action":"start","process":{"alive":{"type":"sometimes"}},"hosts":["0:10.0.0.1"]}`},
		{"PUT", "/v1/registrations", `{"hosts":["0:10.0.0.1"]}`},
		{"PUT", "/v1/groups", `{"namespace":"shop","hosts":["0:10.0.0.1"]}`},
		{"POST", "/api/c/compapi/v2/gse/operate_proc_multi/", `{"proc_operate_req":[]}`},
		{"POST", "/api/c/compapi/v2/gse/operate_proc_v2/", `{"meta":{"namespace":"a"},"op_type":0,"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}]}`},
		{"POST", "/c/compapi/gse/get_proc_status/", `{"meta":{"namespace":"a","name":"b"},"hosts":[{"ip":"10.0.0","bk_cloud_id":0}]}`},
		{"GET", "/procapi/v1/proc/status", `{"meta":{"namespace":"a","name":"b"}}`},
		{"POST", "/api/bk-gse/prod/api/v2/cluster/list_agent_state", `{"agent_id_list":[]}`},
		{"POST", "/api/c/compapi/v2/jobv3/manage_proc/", `{"bk_biz_id":2,"op_type":0,"process_infos":[{"proc_name":"n","proc_owner":"o","value_key":"k","ip_list":[{"bk_cloud_id":0,"ip":"10.0.0.1"}]}]}`},
		{"POST", "/api/job/v2/job-execute/get_proc_result", `{"bk_gse_taskid":"GSETASK:20261121053522:1"}`},
		{"POST", "/api/v3/proc/0/2", `{"bk_process_name":"n","bk_funcName":"n"}`},
		{"PUT", "/api/v3/proc/0/2", `{"bk_process_id":"44","bk_process_name":"n"}`},
		{"POST", "/api/v3/proc/search/0/2", `{"page":{"limit":201}}`},
	} {
		o := doc.Find(wrong.method, wrong.path)
		if o == nil {
			t.Errorf("%s %s is not described", wrong.method, wrong.path)
			continue
		}
		if o.CheckRequest(wrong.path, nil, nil, []byte(wrong.body)) == nil {
			t.Errorf("%s %s passes with %s", wrong.method, wrong.path, wrong.body)
		}
	}
}

// A misspelled JSON Schema keyword would be ignored by every validator, so the test accepts only
// known keywords.
func TestSchemasHaveOnlyWordsThatMeanSomething(t *testing.T) {
	t.Parallel()
	known := []string{
		"$ref", "type", "description", "examples", "enum", "const", "default", "format", "pattern",
		"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "propertyNames",
		"required", "properties", "additionalProperties", "items", "anyOf", "contentMediaType", "contentSchema",
	}
	var look func(at string, schema *object)
	look = func(at string, schema *object) {
		for _, word := range schema.keys() {
			if !slices.Contains(known, word) {
				t.Errorf("%s has %q", at, word)
			}
			switch word {
			case "properties":
				for _, name := range schema.at(word).keys() {
					look(at+"."+name, schema.at(word).at(name))
				}
			case "items", "additionalProperties", "contentSchema", "propertyNames":
				look(at+"."+word, schema.at(word))
			case "anyOf":
				for i, way := range schema.list(word) {
					o, _ := way.(*object)
					look(at+".anyOf "+strconv.Itoa(i), o)
				}
			}
		}
	}
	schemas := make(map[string]string) // the file of each name
	for _, d := range dialect.All() {
		text, err := describe(d.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range []*object{text.Requests, text.Answers} {
			for _, name := range of.keys() {
				if other, is := schemas[name]; is {
					t.Errorf("%s and %s both have %s", d.Name, other, name)
				}
				schemas[name] = d.Name
				look(name, of.at(name))
			}
		}
		for name, call := range text.Calls {
			for _, schema := range []*object{call.Request, call.Answer, call.Data} {
				look(name, schema)
			}
		}
	}
}
