package apps

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/procfleet/procfleet/internal/datafile"
)

// maxFile is the maximum size of the file in bytes, enough for about 10,000
// applications.
const maxFile = 4 << 20

// heading is the comment at the top of a new file.
const heading = `Applications that may call procfleet. "procfleet app" edits this file, and a running
dispatcher reloads it after a change. A reader of this file can guess secrets offline.`

// File is a parsed applications file. It preserves the comments and the layout of the
// YAML text when an application is added or removed.
type File struct {
	root yaml.Node
	apps []Application // in file order
}

// Applications returns a copy of the applications, in file order.
func (f *File) Applications() []Application { return slices.Clone(f.apps) }

// Parse parses the text of an applications file. The error joins all mistakes, one per
// line, each with name and line number.
func Parse(name string, text []byte) (*File, error) {
	f := &File{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	switch err := decoder.Decode(&f.root); {
	case errors.Is(err, io.EOF):
		return f, nil // the file is empty or has only comments
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: a second document begins after ---; one is allowed", name)
	}
	r := reader{name: name}
	f.apps = r.applications(f.root.Content[0])
	if err := errors.Join(r.problems...); err != nil {
		return nil, err
	}
	return f, nil
}

// Read reads the file at a path. Like [Open] it rejects a file that every account may
// read or that an account other than its owner may write.
func Read(path string) (*File, error) {
	file, _, err := read(path)
	return file, err
}

// read also returns the FileInfo of the version that it read.
func read(path string) (*File, os.FileInfo, error) {
	text, info, err := datafile.ReadPrivate(path, maxFile)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, fmt.Errorf("%s does not exist: create it with `procfleet app add CODE --apps %s`: %w", path, path, err)
	case err != nil:
		return nil, info, err
	}
	file, err := Parse(path, text)
	return file, info, err
}

// Update applies change to the file at a path and writes the result. It creates the
// file if it is missing. If change returns an error, Update writes nothing and returns
// that error; see [datafile.Update].
func Update(path string, change func(*File) error) error {
	return datafile.Update(path, maxFile, func(text []byte) ([]byte, error) {
		file, err := Parse(path, text)
		if err != nil {
			return nil, err
		}
		if err := change(file); err != nil {
			return nil, err
		}
		if text, err = file.text(); err != nil {
			return nil, err
		}
		if _, err := Parse(path, text); err != nil { // never write a file that a dispatcher would reject
			return nil, fmt.Errorf("the new file would be invalid: %w", err)
		}
		return text, nil
	})
}

// reader converts YAML nodes to applications and collects all problems.
type reader struct {
	name     string
	problems []error
}

func (r *reader) wrong(at *yaml.Node, place, format string, args ...any) {
	if place != "" {
		format = place + ": " + format
	}
	r.problems = append(r.problems, fmt.Errorf("%s:%d: "+format, append([]any{r.name, at.Line}, args...)...))
}

// members calls fn for every member of a mapping. It reports a repeated member as a
// problem and skips it.
func (r *reader) members(node *yaml.Node, place, what string, fn func(key, value *yaml.Node, place string)) {
	node = resolved(node)
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
		return
	}
	if node.Kind != yaml.MappingNode {
		r.wrong(node, place, "must contain %s", what)
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], resolved(node.Content[i+1])
		at := strings.TrimPrefix(place+"."+clip(key.Value), ".")
		if line, twice := first[key.Value]; twice {
			r.wrong(key, at, "is already defined on line %d", line)
			continue
		}
		first[key.Value] = key.Line
		fn(key, value, at)
	}
}

func clip(text string) string {
	if len(text) > maxCode {
		return text[:maxCode] + "…"
	}
	return text
}

func resolved(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

const member = "applications"

func (r *reader) applications(root *yaml.Node) (found []Application) {
	r.members(root, "", "one member: "+member, func(key, value *yaml.Node, place string) {
		if key.Value != member {
			r.wrong(key, place, "is unknown; the file has one member: %s", member)
			return
		}
		r.members(value, place, "a code and a body for each application", func(key, value *yaml.Node, place string) {
			if err := CheckCode(key.Value); err != nil {
				r.wrong(key, place, "%w", err)
			}
			found = append(found, r.application(key, value, place))
		})
	})
	return found
}

func (r *reader) application(key, body *yaml.Node, place string) Application {
	a := Application{Code: key.Value, Businesses: NoLimit(), Actions: NoLimit()}
	r.members(body, place, "the members of an application", func(key, value *yaml.Node, place string) {
		switch key.Value {
		case "secret":
			a.Secret = r.text(value, place)
		case "signing_key":
			a.SigningKey = r.text(value, place)
			if err := CheckSecret(a.SigningKey); err != nil {
				r.wrong(value, place, "%w", err)
			}
		case "businesses":
			a.Businesses = r.limit(value, place, ParseBusinesses)
		case "actions":
			a.Actions = r.limit(value, place, ParseActions)
		case "skip_user_auth":
			if value.Tag != "!!bool" {
				r.wrong(value, place, "is neither true nor false")
			}
			a.SkipUserAuth = value.Value == "true"
		default:
			r.wrong(key, place, "is unknown; an application has secret, signing_key, businesses, actions and skip_user_auth")
		}
	})
	if a.Secret == "" {
		r.wrong(key, place+".secret", "is missing")
	} else if _, err := parseHash(a.Secret); err != nil {
		r.wrong(key, place+".secret", "%w", err)
	}
	return a
}

func (r *reader) text(node *yaml.Node, place string) string {
	if node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
		r.wrong(node, place, "must be a string")
		return ""
	}
	return node.Value
}

// limit reads a list of names or a single name.
func (r *reader) limit(node *yaml.Node, place string, parse func([]string) (Limit, error)) Limit {
	var words []string
	switch node.Kind {
	case yaml.ScalarNode:
		words = []string{r.text(node, place)}
	case yaml.SequenceNode:
		for i, each := range node.Content {
			words = append(words, r.text(resolved(each), fmt.Sprintf("%s[%d]", place, i)))
		}
	default:
		r.wrong(node, place, "must be a list, or * for all")
		return Limit{}
	}
	limit, err := parse(words)
	if err != nil {
		r.wrong(node, place, "%w", err)
	}
	return limit
}

// Put adds an application, or replaces the application with the same code. A new
// application is added at the end. It reports whether it replaced one.
func (f *File) Put(a Application) (replaced bool) {
	list := f.list()
	body := a.node()
	if i := f.index(a.Code); i >= 0 {
		f.apps[i], list.Content[2*i+1] = a, body
		return true
	}
	f.apps = append(f.apps, a)
	list.Content = append(list.Content, scalar(a.Code), body)
	list.Style = 0 // an empty list may be written as {}
	return false
}

// Remove removes the application with this code and reports whether it existed.
func (f *File) Remove(code string) bool {
	i := f.index(code)
	if i < 0 {
		return false
	}
	list := f.list()
	f.apps, list.Content = slices.Delete(f.apps, i, i+1), slices.Delete(list.Content, 2*i, 2*i+2)
	return true
}

func (f *File) index(code string) int {
	return slices.IndexFunc(f.apps, func(a Application) bool { return a.Code == code })
}

// list returns the mapping node of the applications. It creates the node if it is
// missing.
func (f *File) list() *yaml.Node {
	if len(f.root.Content) == 0 {
		f.root = yaml.Node{Kind: yaml.DocumentNode, HeadComment: heading, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	root := resolved(f.root.Content[0])
	if root.Kind != yaml.MappingNode { // the document is null
		*root = yaml.Node{Kind: yaml.MappingNode}
	}
	if len(root.Content) == 0 {
		root.Content = []*yaml.Node{scalar(member), {Kind: yaml.MappingNode}}
		root.Style = 0
	}
	list := resolved(root.Content[1])
	if list.Kind != yaml.MappingNode {
		*list = yaml.Node{Kind: yaml.MappingNode}
	}
	return list
}

// text returns the YAML text of the file.
func (f *File) text() ([]byte, error) {
	f.list()
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&f.root); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

func (a *Application) node() *yaml.Node {
	body := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{scalar("secret"), scalar(a.Secret)}}
	if a.SigningKey != "" {
		body.Content = append(body.Content, scalar("signing_key"), scalar(a.SigningKey))
	}
	body.Content = append(body.Content, scalar("businesses"), a.Businesses.node(), scalar("actions"), a.Actions.node())
	if a.SkipUserAuth {
		body.Content = append(body.Content, scalar("skip_user_auth"), &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"})
	}
	return body
}

func (l Limit) node() *yaml.Node {
	if l.all {
		return scalar(Everything)
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, word := range l.only {
		list.Content = append(list.Content, scalar(word))
	}
	return list
}

// scalar returns a string node. The explicit tag makes the encoder quote text that YAML
// would otherwise parse as another type.
func scalar(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}
