package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep a request may nest objects and arrays. The deepest
// published shape needs seven levels.
const maxDepth = 64

// isObject reports whether the first character that is not blank opens a JSON
// object. Clients of the published APIs often send no Content-Type, so this
// character is what tells JSON from form data.
func isObject(body []byte) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	return len(body) > 0 && body[0] == '{'
}

// decodeObject reads a JSON object into a struct. Unknown fields are ignored,
// and null leaves a field as it is.
func decodeObject(body []byte, into any) error {
	if !utf8.Valid(body) {
		return &Error{Kind: InvalidField, Field: "body", Problem: "is not valid UTF-8"}
	}
	if tooDeep(body) {
		return invalid("body", "nests deeper than %d levels", maxDepth)
	}
	return decodeError(json.Unmarshal(body, into), "")
}

// decodeError turns an error of encoding/json into a failure; field is where
// the decoded text stood.
func decodeError(err error, field string) error {
	if err == nil {
		return nil
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return invalid(join(field, jsonPath(wrong.Field)), "is a JSON %s where %s is expected", wrong.Value, expected(wrong))
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return &Error{Kind: Malformed, Field: field, Problem: syntax.Error()}
	}
	return invalid(field, "%s", err.Error())
}

// jsonPath drops the names of embedded structs, which encoding/json mixes into
// a field's path. They are Go names, in camel case; published names are not.
func jsonPath(field string) string {
	parts := strings.Split(field, ".")
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part != strings.ToLower(part) }), ".")
}

// expected says in JSON's words what a field should have been.
func expected(wrong *json.UnmarshalTypeError) string {
	switch kind := wrong.Type.Kind().String(); kind {
	case "int", "int64":
		return "an integer"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "struct", "map":
		return "an object"
	case "slice":
		return "an array"
	default:
		return "a " + kind
	}
}

// join puts a field below its parent.
func join(parent, field string) string {
	if parent == "" || field == "" {
		return parent + field
	}
	return parent + "." + field
}

// tooDeep looks at nesting without recursion and before anything is decoded,
// so that no input can grow a stack.
func tooDeep(body []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// appendJSON appends v as JSON, with <, > and & as they are: answers are
// read by people and logs as well, and commands are full of them.
func appendJSON(dst []byte, v any) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
