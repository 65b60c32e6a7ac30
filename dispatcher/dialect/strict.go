package dialect

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/spelling"
)

// Bounds of the problems that one error lists.
const (
	maxProblems     = 20
	maxProblemBytes = 4 << 10
)

// noBody is the type of the body of calls that have none.
type noBody struct{}

// strictly returns a decoder that rejects what decode ignores: members of the body that
// the type B does not have, and query parameters other than these. Its error lists the
// problems of the whole request.
func strictly[B, Q any](decode func(*Request) (Q, error), parameters ...string) func(*Request) (Q, error) {
	known := membersOf(reflect.TypeFor[B]())
	return func(r *Request) (Q, error) {
		q, err := decode(r)
		if f, ok := errors.AsType[*Error](err); ok && f.Kind != InvalidField {
			return q, f
		}
		problems := unknownParameters(r.Query, parameters)
		if err == nil || json.Valid(r.Body) {
			problems = append(problems, unknownMembers(r.Body, known)...)
		}
		if f := allProblems(append(problems, err)...); f != nil {
			return q, f
		}
		return q, nil
	}
}

// allProblems converts errors to one Error, which names the first invalid field and
// lists the problems of the others, one per line. It returns nil without errors.
func allProblems(errs ...error) *Error {
	found := problemsOf(errors.Join(errs...), nil)
	if len(found) == 0 {
		return nil
	}
	all := *found[0]
	texts := make([]string, 0, min(len(found), maxProblems))
	texts = append(texts, all.Problem)
	for _, f := range found[1:] {
		texts = append(texts, f.Error())
	}
	var more int
	if all.Problem, more = JoinProblems(texts, "\n"); more > 0 {
		all.Problem += "\n(and more problems)" // the decoders stop at some number
	}
	return &all
}

// JoinProblems joins problems, up to 20 and about 4 KiB, and returns how many it left
// out.
func JoinProblems(problems []string, separator string) (joined string, more int) {
	joined = problems[0]
	if len(joined) > maxProblemBytes {
		joined = strings.ToValidUTF8(joined[:maxProblemBytes], "") + "…"
	}
	for i, problem := range problems[1:] {
		if i+1 == maxProblems || len(joined)+len(separator)+len(problem) > maxProblemBytes {
			return joined, len(problems) - i - 1
		}
		joined += separator + problem
	}
	return joined, 0
}

// problemsOf appends the errors that err joins to found.
func problemsOf(err error, found []*Error) []*Error {
	if err == nil {
		return found
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			found = problemsOf(e, found)
		}
		return found
	}
	if f, ok := errors.AsType[*Error](err); ok {
		return append(found, f)
	}
	if f, ok := errors.AsType[*procfleet.FieldError](err); ok {
		return append(found, invalid(f.Field, "%s", f.Problem))
	}
	return append(found, &Error{Kind: InvalidField, Problem: err.Error()})
}

// unknown returns the error for a member or parameter that does not exist. parent is the
// path of the object that contains it.
func unknown(parent, name string, known []string) *Error {
	problem := "unknown"
	switch meant := spelling.Nearest(strings.ToLower(name), known); {
	case meant != "":
		problem += "; did you mean " + meant + "?"
	case len(known) > 0 && len(known) <= 8:
		problem += "; use " + strings.Join(known, ", ")
	}
	if len(name) > 40 || strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		name = fmt.Sprintf("%.40q", name)
	}
	return invalid(join(parent, name), "%s", problem)
}

func unknownParameters(query url.Values, known []string) (problems []error) {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(known, name) {
			problems = append(problems, unknown("", name, known))
		}
	}
	return problems
}

// members describes which members a JSON value may have; nil permits any.
type members struct {
	named map[string]*members // members of an object
	each  *members            // members of the elements of an array
}

// membersOf returns the members of a Go type in the encoding of encoding/json. Maps and
// types that decode themselves may have any members.
func membersOf(t reflect.Type) *members {
	if t == reflect.TypeFor[procfleet.Selection]() {
		t = reflect.TypeFor[nativeSelection]()
	}
	decoder := reflect.PointerTo(t)
	if decoder.Implements(reflect.TypeFor[json.Unmarshaler]()) || decoder.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return membersOf(t.Elem())
	case reflect.Slice:
		if each := membersOf(t.Elem()); each != nil {
			return &members{each: each}
		}
	case reflect.Struct:
		named := make(map[string]*members)
		for _, field := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" { // an embedded struct has no name
				named[name] = membersOf(field.Type)
			}
		}
		if t == reflect.TypeFor[procfleet.ProcessSpec]() {
			delete(named, "unregistered") // only the server sets it
		}
		if len(named) > 0 {
			return &members{named: named}
		}
	default: // a value without members
	}
	return nil
}

// find returns the members of a member by its name in quotes, and its name unless it is
// known and may have any members. Like encoding/json it ignores the case of names.
func (m *members) find(quoted []byte) (name string, below *members, known bool) {
	if below, known = m.named[string(quoted[1:len(quoted)-1])]; known {
		if below != nil {
			name = string(quoted[1 : len(quoted)-1])
		}
		return name, below, true
	}
	_ = json.Unmarshal(quoted, &name) // valid, like the whole text
	for candidate, below := range m.named {
		if strings.EqualFold(candidate, name) {
			return candidate, below, true
		}
	}
	return name, nil, false
}

// unknownMembers returns an error for each member of an object that is not known, up to
// maxProblems and one more. The text must be valid JSON. Any other text than an object
// has no members.
func unknownMembers(text []byte, known *members) []error {
	if !isObject(text) || known == nil {
		return nil
	}
	s := memberScan{text: text}
	s.value(known, "")
	return s.problems
}

// memberScan reads a valid JSON text once, without decoding it: a second decoding would
// double the cost of a large request.
type memberScan struct {
	text     []byte
	at       int
	problems []error
}

// value reads one value; path is its path in the body.
func (s *memberScan) value(known *members, path string) {
	s.blank()
	switch opening := s.text[s.at]; {
	case known != nil && known.named != nil && opening == '{':
		for s.next('}') {
			name, below, is := known.find(s.quoted())
			if !is && len(s.problems) <= maxProblems {
				s.problems = append(s.problems, unknown(path, name, slices.Sorted(maps.Keys(known.named))))
			}
			s.blank()
			s.at++ // the colon
			at := ""
			if below != nil {
				at = join(path, name)
			}
			s.value(below, at)
		}
	case known != nil && known.each != nil && opening == '[':
		for i := 0; s.next(']'); i++ {
			s.value(known.each, path+"["+strconv.Itoa(i)+"]")
		}
	default:
		s.skip()
	}
}

// next moves behind the opening bracket or comma, to the next element of an array or
// object. It returns false, behind the closing bracket, if there is none.
func (s *memberScan) next(closing byte) bool {
	s.blank()
	if s.text[s.at] != closing {
		s.at++
		s.blank()
	}
	if s.text[s.at] == closing {
		s.at++
		return false
	}
	return true
}

func (s *memberScan) blank() {
	for s.text[s.at] <= ' ' { // in valid JSON a blank
		s.at++
	}
}

// quoted reads a string with its quotes.
func (s *memberScan) quoted() []byte {
	begin := s.at
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
	return s.text[begin:s.at]
}

// skip reads a value of any kind.
func (s *memberScan) skip() {
	for depth := 0; s.at < len(s.text); {
		switch s.text[s.at] {
		case '"':
			s.quoted()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 0 {
				return
			}
		}
		if depth < 0 {
			return
		}
		s.at++
	}
}
