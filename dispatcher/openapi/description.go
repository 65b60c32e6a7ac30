package openapi

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"go.yaml.in/yaml/v3"
)

//go:embed *.yaml
var files embed.FS

// description is what a file says of a dialect.
type description struct {
	Title string `yaml:"title"`
	About string `yaml:"about"`
	// Wildcards are those of paths, by their names, each with description and
	// schema.
	Wildcards *object `yaml:"wildcards"`
	// Families are in the order of [dialect.Dialect.Reached].
	Families []familyText `yaml:"families"`
	// Envelope is the schema of an answer around the data of a call.
	Envelope        *object `yaml:"envelope"`
	EnvelopeExample *object `yaml:"envelopeExample"`
	// Calls are by the names of the calls.
	Calls map[string]callText `yaml:"calls"`
	// Requests and Answers are schemas that are referred to by their names.
	// In requests every member that is not required may be null. A schema here
	// or of a call may name a Go type, see goTypes.
	Requests *object `yaml:"requests"`
	Answers  *object `yaml:"answers"`
}

// familyText says what is peculiar to a family of paths.
type familyText struct {
	Name  string `yaml:"name"`
	Title string `yaml:"title"`
	About string `yaml:"about"`
	// Security names the schemes of which one is enough.
	Security []string `yaml:"security"`
	// Credentials is the schema of credentials among the parameters, if any.
	Credentials string `yaml:"credentials"`
	// BodyOfGet says that a GET has its parameters in a body.
	BodyOfGet bool `yaml:"bodyOfGet"`
	// Failure is the schema of failures, OtherFailure that of those with
	// another status than 200 if they differ, and Code where the code is.
	Failure      *object  `yaml:"failure"`
	OtherFailure *object  `yaml:"otherFailure"`
	Code         []string `yaml:"code"`
	// FailuresByCall says that codes depend on the call.
	FailuresByCall bool `yaml:"failuresByCall"`
}

// callText is what the tables of a dialect do not say of a call.
type callText struct {
	Summary string `yaml:"summary"`
	About   string `yaml:"about"`
	// Wildcards are those that mean something else in this call.
	Wildcards *object `yaml:"wildcards"`
	// Parameters are OpenAPI's parameter objects; the wildcards of a path
	// need none.
	Parameters []*object `yaml:"parameters"`
	Request    *object   `yaml:"request"`
	// OtherTypes are those of bodies that say the same, but not as JSON.
	OtherTypes []string `yaml:"otherTypes"`
	Example    anyValue `yaml:"example"`
	// Status of an answer that is no failure; 0 is 200.
	Status      int     `yaml:"status"`
	Headers     *object `yaml:"headers"`
	ContentType string  `yaml:"contentType"` // "" is JSON
	// Answer is the schema of the whole answer, Data of what the envelope has
	// in it.
	Answer        *object  `yaml:"answer"`
	AnswerExample anyValue `yaml:"answerExample"`
	Data          *object  `yaml:"data"`
	DataExample   anyValue `yaml:"dataExample"`
	// OtherAnswers are further ones, by status.
	OtherAnswers *object `yaml:"otherAnswers"`
	// Failures are codes that only this call has, with what they mean; or, of
	// another status than 200, with status and meaning.
	Failures *object `yaml:"failures"`
}

// describe reads the file of a dialect. A dialect without one has nothing but
// its calls.
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

// family is what is said of the n-th family of paths.
func (d *description) family(n int) familyText {
	if n < len(d.Families) {
		return d.Families[n]
	}
	return familyText{Name: fmt.Sprint("family", n+1), Title: d.Title}
}

// orNull lets every member that a request need not have be null, which is the
// same as not being there.
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
				if !contains(schema.list("required"), member) {
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

// nullable is a schema that takes null as well.
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

// bare is a schema without what is only for readers.
func bare(schema *object) *object {
	c := &object{}
	for _, name := range schema.keys() {
		if name != "description" && name != "default" {
			c.set(name, schema.get(name))
		}
	}
	return c
}
