package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep a request may nest objects and arrays. The deepest
// published shape needs seven levels.
const maxDepth = 64

// maxMembers is how many members one object may have. Labels are the only
// objects whose size callers choose.
const maxMembers = 10_000

// isObject reports whether the first character that is not blank opens a JSON
// object. Clients of the published APIs often send no Content-Type, so this
// character is what tells JSON from form data.
func isObject(body []byte) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	return len(body) > 0 && body[0] == '{'
}

// The shortest object in an array that any call takes is a host,
// {"bk_cloud_id":0}. Shorter ones would become many times their size.
const (
	leastObject  = len(`{"bk_cloud_id":0}`)
	leastObjects = 1000 // are let pass for what is ignored
)

// decodeObject reads a JSON object into a struct, for a request of at most so
// many items; 0 is no limit. Unknown fields are ignored, and null leaves a
// field as it is.
func decodeObject(body []byte, into any, items int) error {
	if !utf8.Valid(body) {
		return &Error{Kind: InvalidField, Field: "body", Problem: "is not valid UTF-8"}
	}
	if f := outOfBounds(body, items); f != nil {
		return f
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

// outOfBounds looks at how a body nests and how much there is in it, without
// recursion and before anything is decoded: no input can grow a stack, and
// none of "{},{},{}" can become hundreds of times its size in memory.
func outOfBounds(body []byte, items int) *Error {
	var (
		depth, elements int
		objects         int // among the elements
		quoted          bool
		array           [maxDepth + 1]bool // by depth; 0 is outside
		members         [maxDepth + 1]int  // of the object there
	)
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if c == '{' && array[depth] {
				objects++
			}
			if depth++; depth > maxDepth {
				return invalid("body", "nests deeper than %d levels", maxDepth)
			}
			array[depth], members[depth] = c == '[', 0
		case c == '}' || c == ']':
			depth = max(depth-1, 0)
		case c == ',' && array[depth]:
			elements++
		case c == ',':
			if members[depth]++; members[depth] >= maxMembers {
				return invalid("body", "has an object of more than %d members", maxMembers)
			}
		}
	}
	// An item is an element of a list of hosts, and perhaps an operation of
	// its own.
	if most := maxElements(items); items > 0 && elements > most {
		return &Error{
			Kind: TooLarge, Field: "body",
			Problem: fmt.Sprintf("has arrays of more than %d elements in all; divide the request", most),
		}
	}
	if objects > leastObjects+len(body)/leastObject {
		return invalid("body", "has arrays of more objects than can say anything in %d bytes", len(body))
	}
	return nil
}

// maxElements is how many elements all arrays of a request of so many items
// may have, with some for what is ignored.
func maxElements(items int) int { return 2*min(items, math.MaxInt32) + 1000 }

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
