package openapi

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

//go:embed page.css
var pageStyle string

// PagePolicy returns the page's Content-Security-Policy. Only the inline style is
// allowed.
func PagePolicy() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// Page renders the description as one HTML page without scripts and external resources.
//
// It builds nodes instead of executing a template: a program that links text/template
// retains every exported method of every type, which would add 10 MiB to procfleet.
func (a *API) Page() ([]byte, error) {
	nav := element("nav", "aria-label", "Calls")
	main := element("main").add(
		element("h1").text("The HTTP API of procfleet"),
		element("p", "class", "dim").text("Version "+a.Version+". For programs: ").
			add(link("/openapi.json", "/openapi.json")).text(", OpenAPI 3.1."))
	for _, d := range a.Dialects {
		nav.add(d.menu())
		section, err := d.section()
		if err != nil {
			return nil, err
		}
		main.add(section)
	}
	root := element("html", "lang", "en").add(
		element("head").add(
			element("meta", "charset", "utf-8"),
			element("meta", "name", "viewport", "content", "width=device-width, initial-scale=1"),
			element("title").text("procfleet: the HTTP API"),
			element("style").text(pageStyle)),
		element("body").add(element("div", "class", "page").add(nav, main)))
	var out bytes.Buffer
	out.WriteString("<!DOCTYPE html>\n")
	err := html.Render(&out, root.node)
	return out.Bytes(), err
}

func (d *Dialect) menu() *tag {
	list := element("ul")
	for _, call := range d.Calls {
		list.add(element("li").add(link("#"+call.Name, call.Name)))
	}
	list.add(element("li").add(link("#"+d.Name+"-objects", "Objects")))
	return element("details", "open", "").add(element("summary").add(link("#api-"+d.Name, d.text.Title)), list)
}

func (d *Dialect) section() (*tag, error) {
	section := element("section").add(element("h2", "id", "api-"+d.Name).text(d.text.Title)).add(prose(d.text.About)...)
	for _, family := range d.Families {
		missing, err := family.Missing()
		if err != nil {
			return nil, err
		}
		section.add(d.familyTitle(&family)...).add(prose(family.text.About)...).
			add(element("p", "class", "dim").text("A path that does not exist: ").add(code(missing)))
	}
	if envelope := d.text.EnvelopeExample; envelope != nil {
		section.add(example("Envelope of the data of every answer", envelope.with("data", "…"))...)
	}
	for _, call := range d.Calls {
		section.add(d.article(&call))
	}
	section.add(element("h3", "id", d.Name+"-objects").text("Objects of " + d.text.Title))
	for _, object := range d.Objects() {
		section.add(element("h4", "id", "object-"+object.Name).text(object.Name)).
			add(prose(object.About)...).add(table(object.Rows))
	}
	return section, nil
}

// familyTitle returns the title of a family, or nil if the dialect has only one family.
func (d *Dialect) familyTitle(f *Family) []*tag {
	if len(d.Families) < 2 {
		return nil
	}
	return []*tag{element("h4").text(f.text.Title)}
}

func (d *Dialect) article(call *Call) *tag {
	paths, failures := element("ul", "class", "paths"), element("details").add(element("summary").text("Failures"))
	for _, place := range call.Places {
		paths.add(d.path(&place))
		failures.add(d.familyTitle(place.Family)...).add(place.failureTable())
	}
	answer, schema, shown := call.text.shown()
	return element("article").
		add(element("h3", "id", call.Name).add(link("#"+call.Name, call.Name)).text(" · "+call.text.Summary), paths).
		add(prose(call.text.About)...).
		add(titled("Parameters", call.Parameters())...).
		add(titled("Request", whole(call.text.Request))...).add(example("", call.text.Example.value)...).
		add(titled(fmt.Sprintf("%s, status %d", answer, call.text.Status), whole(schema))...).add(example("", shown)...).
		add(failures)
}

func (d *Dialect) path(place *Place) *tag {
	item := element("li")
	for _, method := range place.Methods {
		item.add(code(method)).text(" ")
	}
	item.add(code(place.Path))
	if len(d.Families) > 1 {
		item.text(" ").add(element("span", "class", "dim").text(place.Family.text.Title))
	}
	if len(place.Others) > 0 {
		same := element("div", "class", "also").text("Equivalent paths: ")
		for _, other := range place.Others {
			same.add(code(other)).text(" ")
		}
		item.add(same)
	}
	for _, silent := range place.Silent {
		item.add(element("div", "class", "also").add(code(silent)).text(silentText))
	}
	return item
}

func (p *Place) failureTable() *tag {
	head := element("tr").add(element("th").text("Status"), element("th").text("Code"), element("th").text("When"))
	body := element("tbody")
	for _, f := range p.FailuresOf() {
		body.add(element("tr").add(element("td").text(fmt.Sprint(f.Status)),
			element("td").add(code(f.Code)), element("td").text(f.Meaning)))
	}
	return wide(element("thead").add(head), body)
}

func titled(title string, all []Row) []*tag {
	if len(all) == 0 {
		return nil
	}
	return []*tag{element("h4").text(title), table(all)}
}

// example returns an optional title and the JSON of a value, or nil if there is no value.
func example(title string, value any) []*tag {
	text := indented(value)
	if text == "" {
		return nil
	}
	pre := element("pre").text(text)
	if title == "" {
		return []*tag{pre}
	}
	return []*tag{element("h4").text(title), pre}
}

func table(all []Row) *tag {
	body := element("tbody")
	for _, row := range all {
		name, of := element("td"), element("td").text(row.Type)
		if row.Name != "" {
			name.add(code(row.Name))
		}
		if row.Required {
			name.text(" ").add(element("span", "class", "required").text("required"))
		}
		if row.Object != "" {
			of.text(" ").add(link("#object-"+row.Object, row.Object))
		}
		body.add(element("tr").add(name, of, element("td").add(prose(row.About)...)))
	}
	return wide(body)
}

// wide returns a table that scrolls horizontally in a narrow window.
func wide(parts ...*tag) *tag {
	return element("div", "class", "wide").add(element("table").add(parts...))
}

// prose returns a paragraph per block of text, with text between backticks as code.
func prose(text string) []*tag {
	var all []*tag
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if block == "" {
			continue
		}
		paragraph := element("p")
		for i, part := range strings.Split(block, "`") {
			if i%2 == 1 {
				paragraph.add(code(part))
			} else {
				paragraph.text(part)
			}
		}
		all = append(all, paragraph)
	}
	return all
}

func code(text string) *tag { return element("code").text(text) }

func link(to, text string) *tag { return element("a", "href", to).text(text) }

// tag is an HTML element. html.Render escapes its text and attributes.
type tag struct{ node *html.Node }

// element returns an empty element; attributes are alternating names and values.
func element(name string, attributes ...string) *tag {
	node := &html.Node{Type: html.ElementNode, Data: name}
	for pair := range slices.Chunk(attributes, 2) {
		node.Attr = append(node.Attr, html.Attribute{Key: pair[0], Val: pair[1]})
	}
	return &tag{node}
}

func (t *tag) add(children ...*tag) *tag {
	for _, child := range children {
		t.node.AppendChild(child.node)
	}
	return t
}

func (t *tag) text(text string) *tag {
	if text != "" {
		t.node.AppendChild(&html.Node{Type: html.TextNode, Data: text})
	}
	return t
}
