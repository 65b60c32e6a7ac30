package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/client"
)

// A catalog file has one YAML document per process: the name, the attributes that
// differ from their defaults, in catalog order, and the modules.

// modulesKey is the key of a process's modules.
const modulesKey = "modules"

// writeCatalogDocument appends a process to a catalog file.
func writeCatalogDocument(to *yaml.Encoder, p *client.CatalogProcess) error {
	document := &yaml.Node{Kind: yaml.MappingNode}
	add := func(key string, value *yaml.Node) {
		document.Content = append(document.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	}
	set, err := catalogValues(p)
	if err != nil {
		return err
	}
	if set[catalog.AttrFuncName].IsEmpty() {
		delete(set, catalog.AttrFuncName) // empty means: the same as the name
	}
	defaults := catalog.WithDefaults(map[catalog.Attribute]catalog.Value{catalog.AttrName: set[catalog.AttrName]})
	for _, rule := range catalog.AttributeRules() {
		v, there := set[rule.Attribute]
		if rule.Attribute == catalog.AttrName || there && v != defaults[rule.Attribute] {
			add(string(rule.Attribute), scalarNode(v))
		}
	}
	modules := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, module := range p.Modules {
		modules.Content = append(modules.Content, scalarNode(catalog.Text(module)))
	}
	add(modulesKey, modules)
	return to.Encode(document)
}

// catalogValues converts the attributes of a process to catalog values.
func catalogValues(p *client.CatalogProcess) (map[catalog.Attribute]catalog.Value, error) {
	set := make(map[catalog.Attribute]catalog.Value, len(p.Attributes))
	for name, value := range p.Attributes {
		switch value := value.(type) {
		case nil:
			set[catalog.Attribute(name)] = catalog.Value{}
		case string:
			set[catalog.Attribute(name)] = catalog.Text(value)
		case int64:
			set[catalog.Attribute(name)] = catalog.Number(value)
		case bool:
			set[catalog.Attribute(name)] = catalog.Truth(value)
		default:
			return nil, fmt.Errorf("process %q: %s has the type %T, which no attribute has", p.Name(), name, value)
		}
	}
	return set, nil
}

// scalarNode returns a YAML node that decodes to v. The encoder quotes texts that YAML would
// decode as another type, and uses the block style for texts of several lines; texts that
// this style would change are quoted.
func scalarNode(v catalog.Value) *yaml.Node {
	text, isText := v.AsText()
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: v.String()}
	switch {
	case v.IsNone():
		n.Tag = "!!null"
	case isText:
		n.Tag = "!!str"
		if strings.Contains(text, "\n") && !blockText(text) {
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	return n
}

// blockText reports whether the YAML block style preserves a text of several lines: the
// text has only printable characters, and no blanks that a block would drop.
func blockText(text string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		if line != strings.TrimSpace(line) && strings.TrimLeft(line, " ") != strings.TrimSpace(line) {
			return false
		}
		for _, r := range line {
			if !strconv.IsPrint(r) || r == '\ufeff' {
				return false
			}
		}
	}
	return !strings.HasPrefix(text, " ") && !strings.HasPrefix(text, "\n")
}

// readCatalog parses a catalog file and rejects unknown keys. Missing attributes have
// their defaults; missing modules remain unchanged on import.
func readCatalog(from io.Reader) ([]client.CatalogProcess, error) {
	var all []client.CatalogProcess
	lines := make(map[string]int) // line of each name
	for decoder := yaml.NewDecoder(from); ; {
		var document yaml.Node
		err := decoder.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		case len(document.Content) == 0 || document.Content[0].ShortTag() == "!!null":
			continue // empty document
		}
		root := document.Content[0]
		p, err := readCatalogDocument(root)
		if err != nil {
			return nil, err
		}
		if first, twice := lines[p.Name()]; twice {
			return nil, atLine(root, "process %q is defined twice, first in line %d", p.Name(), first)
		}
		lines[p.Name()] = root.Line
		all = append(all, p)
	}
}

func atLine(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", n.Line, fmt.Errorf(format, args...))
}

func readCatalogDocument(root *yaml.Node) (p client.CatalogProcess, err error) {
	if root.Kind != yaml.MappingNode {
		return p, atLine(root, "is not a process, which has keys and values")
	}
	set := make(map[catalog.Attribute]catalog.Value)
	seen := make(map[string]bool)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if seen[key.Value] {
			return p, atLine(key, "%s is set twice", key.Value)
		}
		seen[key.Value] = true
		if key.Value == modulesKey {
			p.Modules, err = moduleNames(value)
		} else {
			set[catalog.Attribute(key.Value)], err = scalarValue(value)
		}
		if err != nil {
			return p, fmt.Errorf("%s: %w", key.Value, err)
		}
	}
	if err := catalog.CheckValues(set, true); err != nil {
		return p, atLine(root, "%w", err)
	}
	p.Attributes = make(map[string]any)
	for attribute, v := range catalog.WithDefaults(set) {
		p.Attributes[string(attribute)] = plain(v)
	}
	return p, nil
}

// plain converts v to the type that package client uses.
func plain(v catalog.Value) any {
	if text, ok := v.AsText(); ok {
		return text
	}
	if n, ok := v.AsNumber(); ok {
		return n
	}
	if is, ok := v.AsTruth(); ok {
		return is
	}
	return nil
}

func moduleNames(n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, atLine(n, "is not a list of modules")
	}
	modules := []string{}
	for _, element := range n.Content {
		v, err := scalarValue(element)
		if err != nil {
			return nil, err
		}
		name, ok := v.AsText()
		if !ok {
			return nil, atLine(element, "%s is not a text; quote it", element.Value)
		}
		if err := catalog.ValidModule(name); err != nil {
			return nil, atLine(element, "%w", err)
		}
		modules = append(modules, name)
	}
	return modules, nil
}

// scalarValue decodes a text, a whole number, a boolean or null.
func scalarValue(n *yaml.Node) (v catalog.Value, err error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode {
		return v, atLine(n, "is not a text, a number, true, false or null")
	}
	switch n.ShortTag() {
	case "!!str", "!!timestamp", "!!merge":
		return catalog.Text(n.Value), nil
	case "!!null":
		return v, nil
	case "!!bool":
		var is bool
		err = n.Decode(&is)
		return catalog.Truth(is), err
	case "!!int":
		var number int64
		if err := n.Decode(&number); err != nil {
			return v, atLine(n, "%s is not a whole number of 64 bits", n.Value)
		}
		return catalog.Number(number), nil
	}
	return v, atLine(n, "%s is not a whole number; quote it if it is a text", n.Value)
}
