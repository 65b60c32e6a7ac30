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

// maxDepth is the maximum nesting of objects and arrays in a request. The deepest
// published shape needs seven levels.
const maxDepth = 64

// maxMembers is the maximum number of members of one object. Labels are the only objects
// whose size callers choose.
const maxMembers = 10_000

// isObject reports whether the first character that is not blank opens a JSON object.
// Clients of the published APIs often send no Content-Type, so this character
// distinguishes JSON from form data.
func isObject(body []byte) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	return len(body) > 0 && body[0] == '{'
}

// The shortest object in an array of any call is a host, {"bk_cloud_id":0}. A body of
// shorter objects would take many times its size in memory, so outOfBounds rejects it.
const (
	leastObject  = len(`{"bk_cloud_id":0}`)
	leastObjects = 1000 // allowed in addition, in members that are ignored
)

// decodeObject decodes a JSON object into a struct, for a request of at most the given
// number of items; 0 is no limit. It ignores unknown members, and null leaves a field
// unchanged.
func decodeObject(body []byte, into any, items int) error {
	if !utf8.Valid(body) {
		return &Error{Kind: InvalidField, Field: "body", Problem: "is not valid UTF-8"}
	}
	if f := outOfBounds(body, items); f != nil {
		return f
	}
	return decodeError(json.Unmarshal(body, into), "")
}

// decoded returns a decoder that reads the parameters P of a request and converts them.
func decoded[P, Q any](read func(r *Request, into any) error, convert func(*P) (Q, error)) func(*Request) (Q, error) {
	return func(r *Request) (q Q, err error) {
		params := new(P)
		if err := read(r, params); err != nil {
			return q, err
		}
		return convert(params)
	}
}

// decodeError converts an error of encoding/json to an [*Error]; field is the path of
// the decoded text in the body.
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

// jsonPath removes the names of embedded structs, which encoding/json includes in the
// path of a field. They are Go names with capital letters; published names have none.
func jsonPath(field string) string {
	parts := strings.Split(field, ".")
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part != strings.ToLower(part) }), ".")
}

// expected names the type of a field in the terms of JSON.
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

// join returns the path of a field below its parent.
func join(parent, field string) string {
	if parent == "" || field == "" {
		return parent + field
	}
	return parent + "." + field
}

// outOfBounds checks the nesting and the number of elements of a body without recursion
// and before the body is decoded: deep nesting must not grow the stack, and a body such
// as {},{},{} must not take hundreds of times its size in memory.
func outOfBounds(body []byte, items int) *Error {
	var (
		depth, elements int
		objects         int // elements that are objects
		quoted          bool
		array           [maxDepth + 1]bool // by depth: whether it is an array; depth 0 is outside
		members         [maxDepth + 1]int  // by depth: commas of the object
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
	// An item takes at most two elements: one in a list of hosts, one in a list of
	// operations.
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

// maxElements returns how many elements all arrays of a request for the given number of
// items may have in total: two for each item, and 1000 in members that are ignored.
func maxElements(items int) int { return 2*min(items, math.MaxInt32) + 1000 }

// appendJSON appends v as JSON without escaping <, > and &: people read responses and
// logs, and commands often contain these characters.
func appendJSON(dst []byte, v any) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
