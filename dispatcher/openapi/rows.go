package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// Row is one row of a table: a member or a parameter.
type Row struct {
	Name     string
	Type     string
	Object   string // name of the schema with the details
	Required bool
	About    string
}

// Object is a named schema.
type Object struct {
	Name, About string
	Rows        []Row
}

// Objects returns the named schemas of the dialect.
func (d *Dialect) Objects() []Object {
	var all []Object
	for _, of := range []*object{d.text.Requests, d.text.Answers} {
		for _, name := range of.keys() {
			schema := of.at(name)
			o := Object{Name: name, About: schema.text("description"), Rows: below("", schema)}
			if len(o.Rows) == 0 {
				o.Rows = []Row{{Name: "", Type: typeOf(schema)}}
			}
			all = append(all, o)
		}
	}
	return all
}

// Parameters returns the call's own parameters, without path wildcards.
func (c *Call) Parameters() []Row {
	var all []Row
	for _, p := range c.text.Parameters {
		required, _ := p.get("required").(bool)
		row := rowOf(p.text("name"), p.at("schema"), required)
		row.Type = p.text("in") + ", " + row.Type
		row.About = p.text("description")
		all = append(all, row)
	}
	return all
}

// shown returns the part of the answer that the page shows, with its title and example:
// the whole answer or, if it has an envelope, its data.
func (t *callText) shown() (title string, schema *object, example any) {
	if t.Data != nil {
		return "Data of the answer", t.Data, t.DataExample.value
	}
	return "Answer", t.Answer, t.AnswerExample.value
}

// whole returns the rows of a schema, or one row with its type if it has no members.
func whole(schema *object) []Row {
	if schema == nil {
		return nil
	}
	if all := below("", schema); len(all) > 0 {
		return all
	}
	return []Row{rowOf("", schema, false)}
}

func indented(value any) string {
	if value == nil {
		return ""
	}
	text, err := plainJSON(value)
	if err != nil {
		return ""
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return ""
	}
	return out.String()
}

// Missing returns the family's response to a path or method that does not exist.
func (f *Family) Missing() (string, error) {
	const path = "/no/such/path"
	reply := f.of.Fail(&dialect.Error{Kind: dialect.NoRoute, Problem: "there is no path " + path, Method: http.MethodPost, Path: path}, exampleRequestID)
	body, err := reply.JSON()
	return fmt.Sprint(reply.Status, " ", strings.TrimSpace(string(body))), err
}

// FailuresOf returns the failures that the page shows with a call. Failures with the
// same status and code are merged.
func (p *Place) FailuresOf() []Failure {
	var all []Failure
	for _, f := range p.Failures {
		same := slices.IndexFunc(all, func(a Failure) bool { return a.Status == f.Status && a.Code == f.Code })
		if same < 0 {
			all = append(all, f)
			continue
		}
		all[same].Meaning += "; " + f.Meaning
	}
	slices.SortStableFunc(all, func(a, b Failure) int { return a.Status - b.Status })
	return all
}

// below returns the members of an object, including the members of nested objects.
func below(prefix string, schema *object) []Row {
	var all []Row
	properties := schema.at("properties")
	for _, name := range properties.keys() {
		member := properties.at(name)
		all = append(all, rowOf(prefix+name, member, slices.Contains(schema.list("required"), any(name))))
		all = append(all, inside(prefix+name, member)...)
	}
	if needed := alternatives(schema); needed != "" {
		all = append(all, Row{Name: strings.TrimSuffix(prefix, "."), About: needed})
	}
	if values := schema.at("additionalProperties"); values != nil {
		if values.has("properties") || values.has("$ref") {
			all = append(all, rowOf(prefix+"<key>", values, false))
			all = append(all, below(prefix+"<key>.", values)...)
		}
	}
	if items := schema.at("items"); items != nil && prefix == "" {
		all = append(all, rowOf("[]", items, false))
		all = append(all, inside("[]", items)...)
	}
	return all
}

// alternatives returns a text with the alternative sets of required members.
func alternatives(schema *object) string {
	var ways []string
	for _, way := range schema.list("anyOf") {
		o, _ := way.(*object)
		if names := texts(o.list("required")); len(names) > 0 {
			ways = append(ways, "`"+strings.Join(names, "` with `")+"`")
		}
	}
	if len(ways) == 0 {
		return ""
	}
	return "There must be " + strings.Join(ways, " or ") + "."
}

// inside returns the rows of objects nested in a member.
func inside(name string, member *object) []Row {
	if items := member.at("items"); items != nil {
		name, member = name+"[]", items
	}
	for _, way := range member.list("anyOf") {
		if o, _ := way.(*object); o.has("properties") {
			member = o
		}
	}
	return below(name+".", member)
}

func rowOf(name string, schema *object, required bool) Row {
	row := Row{Name: name, Type: typeOf(schema), Object: objectOf(schema), Required: required, About: schema.text("description")}
	if schema.has("default") {
		text, err := plainJSON(schema.get("default"))
		if err == nil {
			row.About = strings.TrimSpace(row.About + " Default: `" + string(text) + "`.")
		}
	}
	return row
}

// objectOf returns the name of the schema that a member or its elements refer to.
func objectOf(schema *object) string {
	for _, of := range []*object{schema, schema.at("items"), schema.at("additionalProperties")} {
		if name, is := strings.CutPrefix(of.text("$ref"), schemaPath); is {
			return name
		}
		for _, way := range of.list("anyOf") {
			o, _ := way.(*object)
			if name, is := strings.CutPrefix(o.text("$ref"), schemaPath); is {
				return name
			}
		}
	}
	return ""
}

// typeOf returns a short text for the type of a value.
func typeOf(schema *object) string {
	if schema.has("const") {
		text, _ := plainJSON(schema.get("const"))
		return string(text)
	}
	if words := schema.list("enum"); words != nil {
		return "one of " + join(words)
	}
	if schema.has("$ref") {
		return ""
	}
	if ways := schema.list("anyOf"); ways != nil && !schema.has("type") {
		var kinds []string
		for _, way := range ways {
			o, _ := way.(*object)
			if kind := typeOf(o); kind != "" && !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
		}
		return strings.Join(kinds, " or ")
	}
	kind := schema.text("type")
	if kinds := schema.list("type"); kinds != nil {
		kind = strings.Join(texts(kinds), " or ")
	}
	switch {
	case kind == "array":
		kind = strings.TrimSpace("list of " + typeOf(schema.at("items")))
	case schema.has("format"):
		kind = schema.text("format")
	case schema.has("contentSchema"):
		kind = "JSON in a string"
	case schema.has("minimum") && schema.has("maximum"):
		kind += fmt.Sprintf(", %v to %v", schema.get("minimum"), schema.get("maximum"))
	case schema.has("minimum"):
		kind += fmt.Sprintf(", from %v", schema.get("minimum"))
	case schema.has("maxLength"):
		kind += fmt.Sprintf(", up to %v", schema.get("maxLength"))
	}
	return kind
}

func join(words []any) string {
	var all []string
	for _, word := range words {
		text, _ := plainJSON(word)
		all = append(all, string(text))
	}
	return strings.Join(all, ", ")
}
