package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// object is a JSON object that preserves the order of its members, so that the
// documents show them in the author's order. Its values are *object, []any, string,
// bool, nil, and numbers.
type object struct {
	names  []string
	values map[string]any
}

// members returns an object of alternating names and values.
func members(pairs ...any) *object {
	o := &object{}
	for pair := range slices.Chunk(pairs, 2) {
		o.set(pair[0].(string), pair[1])
	}
	return o
}

func (o *object) get(name string) any {
	if o == nil {
		return nil
	}
	return o.values[name]
}

// at returns a member as an object, or nil if it is not an object.
func (o *object) at(name string) *object {
	below, _ := o.get(name).(*object)
	return below
}

func (o *object) list(name string) []any {
	list, _ := o.get(name).([]any)
	return list
}

func (o *object) text(name string) string {
	text, _ := o.get(name).(string)
	return text
}

func (o *object) has(name string) bool {
	if o == nil {
		return false
	}
	_, is := o.values[name]
	return is
}

func (o *object) keys() []string {
	if o == nil {
		return nil
	}
	return o.names
}

func (o *object) set(name string, value any) {
	if o.values == nil {
		o.values = make(map[string]any)
	}
	if _, is := o.values[name]; !is {
		o.names = append(o.names, name)
	}
	o.values[name] = value
}

// with returns a copy in which the member name has the given value.
func (o *object) with(name string, value any) *object {
	c := &object{}
	for _, n := range o.keys() {
		c.set(n, o.values[n])
	}
	c.set(name, value)
	return c
}

// MarshalJSON encodes the members in order.
func (o *object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, name := range o.names {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := plainJSON(name)
		if err != nil {
			return nil, err
		}
		value, err := plainJSON(o.values[name])
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// plainJSON encodes v without escaping <, > and &.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// UnmarshalYAML decodes a mapping.
func (o *object) UnmarshalYAML(n *yaml.Node) error {
	value, err := fromYAML(n)
	if err != nil {
		return err
	}
	read, ok := value.(*object)
	if !ok {
		return fmt.Errorf("line %d: an object is expected", n.Line)
	}
	*o = *read
	return nil
}

// anyValue is a value of any type.
type anyValue struct{ value any }

// UnmarshalYAML decodes a value of any type.
func (v *anyValue) UnmarshalYAML(n *yaml.Node) (err error) {
	v.value, err = fromYAML(n)
	return err
}

func fromYAML(n *yaml.Node) (any, error) {
	switch n.Kind {
	case yaml.AliasNode:
		return fromYAML(n.Alias)
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			value, err := fromYAML(item)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		return list, nil
	case yaml.MappingNode:
		o := &object{}
		for i := 0; i < len(n.Content); i += 2 {
			value, err := fromYAML(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			if o.has(n.Content[i].Value) {
				return nil, fmt.Errorf("line %d: %s is there twice", n.Content[i].Line, n.Content[i].Value)
			}
			o.set(n.Content[i].Value, value)
		}
		return o, nil
	default:
		var value any
		err := n.Decode(&value)
		return value, err
	}
}

// fromJSON converts a Go value to the form that its JSON encoding has here, with the
// members of objects in encoding order.
func fromJSON(v any) (any, error) {
	text, err := plainJSON(v)
	if err != nil {
		return nil, err
	}
	var n yaml.Node // JSON is YAML
	if err := yaml.Unmarshal(text, &n); err != nil {
		return nil, err
	}
	return fromYAML(n.Content[0])
}

// texts returns the strings in a list.
func texts(list []any) []string {
	var all []string
	for _, v := range list {
		if text, ok := v.(string); ok {
			all = append(all, text)
		}
	}
	return all
}
