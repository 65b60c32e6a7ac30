package openapi

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"go.yaml.in/yaml/v3"
)

//go:embed *.yaml
var files embed.FS

// description is the content of a dialect's file.
type description struct {
	Title string `yaml:"title"`
	About string `yaml:"about"`
	// Wildcards has a description and schema for each path wildcard, by name.
	Wildcards *object `yaml:"wildcards"`
	// Families has one element per family, in the order of [dialect.Dialect.Reached].
	Families []familyText `yaml:"families"`
	// Envelope is the schema that encloses the data of a call in an answer.
	Envelope        *object `yaml:"envelope"`
	EnvelopeExample *object `yaml:"envelopeExample"`
	// Calls has the texts of calls, by the name of the call.
	Calls map[string]callText `yaml:"calls"`
	// Requests and Answers are named schemas that others refer to. In requests every
	// optional member may be null. A schema here or of a call may name one of goTypes.
	Requests *object `yaml:"requests"`
	Answers  *object `yaml:"answers"`
}

// familyText is the description of one family of paths.
type familyText struct {
	Name  string `yaml:"name"`
	Title string `yaml:"title"`
	About string `yaml:"about"`
	// Security has the names of alternative security schemes.
	Security []string `yaml:"security"`
	// Credentials is the schema of credentials among the parameters, if any.
	Credentials string `yaml:"credentials"`
	// BodyOfGet is set if a GET has its parameters in a body.
	BodyOfGet bool `yaml:"bodyOfGet"`
	// Failure is the schema of failures. OtherFailure is the schema of failures with
	// another status than 200, if different. Code is the path of the code in a failure.
	Failure      *object  `yaml:"failure"`
	OtherFailure *object  `yaml:"otherFailure"`
	Code         []string `yaml:"code"`
	// FailuresByCall is set if codes depend on the call.
	FailuresByCall bool `yaml:"failuresByCall"`
}

// callText is the description of one call, in addition to the dialect's tables.
type callText struct {
	Summary string `yaml:"summary"`
	About   string `yaml:"about"`
	// Wildcards has the wildcards that have another meaning in this call.
	Wildcards *object `yaml:"wildcards"`
	// Parameters are OpenAPI parameter objects. Path wildcards need none.
	Parameters []*object `yaml:"parameters"`
	Request    *object   `yaml:"request"`
	// OtherTypes are the content types of equivalent bodies that are not JSON.
	OtherTypes []string `yaml:"otherTypes"`
	Example    anyValue `yaml:"example"`
	// Status is the status of a success response; 0 means 200.
	Status      int     `yaml:"status"`
	Headers     *object `yaml:"headers"`
	ContentType string  `yaml:"contentType"` // "" means JSON
	// Answer is the schema of the whole answer; Data is the schema of its data.
	Answer        *object  `yaml:"answer"`
	AnswerExample anyValue `yaml:"answerExample"`
	Data          *object  `yaml:"data"`
	DataExample   anyValue `yaml:"dataExample"`
	// OtherAnswers has further success responses, by status.
	OtherAnswers *object `yaml:"otherAnswers"`
	// Failures maps the codes that only this call has to their meaning or, if their
	// status is not 200, to an object with status and meaning.
	Failures *object `yaml:"failures"`
}

// describe reads the file of a dialect. Without a file only the title is set.
func describe(name string) (*description, error) {
	d := &description{Title: name}
	text, err := files.ReadFile(name + ".yaml")
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s.yaml: %w", name, err)
	}
	if err := d.derive(); err != nil {
		return nil, fmt.Errorf("%s.yaml: %w", name, err)
	}
	return d, nil
}

// family returns the description of the n-th family of paths.
func (d *description) family(n int) familyText {
	if n < len(d.Families) {
		return d.Families[n]
	}
	return familyText{Name: fmt.Sprint("family", n+1), Title: d.Title}
}

// orNull permits null for every optional member of the schemas in v: requests may have
// null for a missing member.
func orNull(v any) any {
	switch v := v.(type) {
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = orNull(v[i])
		}
		return list
	case *object:
		return schemaOrNull(v)
	}
	return v
}

func schemaOrNull(schema *object) *object {
	c := &object{}
	for _, name := range schema.keys() {
		switch name {
		case "properties":
			properties := &object{}
			for _, member := range schema.at(name).keys() {
				below := schemaOrNull(schema.at(name).at(member))
				if !slices.Contains(schema.list("required"), any(member)) {
					below = nullable(below)
				}
				properties.set(member, below)
			}
			c.set(name, properties)
		case "items", "additionalProperties", "anyOf", "allOf":
			c.set(name, orNull(schema.get(name)))
		default:
			c.set(name, schema.get(name))
		}
	}
	return c
}

// nullable returns a schema that accepts schema's values and null.
func nullable(schema *object) *object {
	kind, simple := schema.get("type").(string)
	if !simple {
		around := members("anyOf", []any{bare(schema), members("type", "null")})
		for _, name := range []string{"description", "default"} {
			if schema.has(name) {
				around.set(name, schema.get(name))
			}
		}
		return around
	}
	c := schema.with("type", []any{kind, "null"})
	if words := schema.list("enum"); words != nil {
		c.set("enum", append(append([]any{}, words...), nil))
	}
	return c
}

// bare returns a schema without the keywords that are only informative.
func bare(schema *object) *object {
	c := &object{}
	for _, name := range schema.keys() {
		if name != "description" && name != "default" {
			c.set(name, schema.get(name))
		}
	}
	return c
}
