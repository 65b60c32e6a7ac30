// Package openapi describes the HTTP API as an OpenAPI 3.1 document and, from the same
// data, as an HTML page.
//
// Paths, methods and failures are generated from the dialects, so they are always up to
// date. Schemas, texts and examples are read from one file per dialect, <dialect>.yaml.
// Schemas of the native API are derived from the types of package v1; the file adds
// descriptions and constraints.
package openapi

import (
	"cmp"
	"fmt"
	"net/http"
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
	Name     string
	Families []Family
	Calls    []Call
	text     *description
}

// Family is the description of a [dialect.Family].
type Family struct {
	text *familyText
	of   *dialect.Family
}

// Call is the description of one call, in all families of paths that have it.
type Call struct {
	Name   string
	Places []Place
	text   callText
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
	// The native API is first, then those with few families of paths.
	slices.SortStableFunc(api.Dialects, func(a, b Dialect) int { return cmp.Compare(a.rank(), b.rank()) })
	return api, nil
}

// rank is the position of the dialect among the others.
func (d *Dialect) rank() int {
	if d.Name == "native" {
		return 0
	}
	return len(d.Families)
}

func newDialect(of *dialect.Dialect) (*Dialect, error) {
	text, err := describe(of.Name)
	if err != nil {
		return nil, err
	}
	d := &Dialect{Name: of.Name, text: text}
	reached := of.Reached()
	for i := range reached {
		words := text.family(i)
		d.Families = append(d.Families, Family{text: &words, of: &reached[i]})
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
				said.Summary, said.Status = cmp.Or(said.Summary, call.Name), cmp.Or(said.Status, http.StatusOK)
				d.Calls = append(d.Calls, Call{Name: call.Name, text: said})
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
