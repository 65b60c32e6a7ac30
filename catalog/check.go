package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/procfleet/procfleet"
)

// Fault is the kind of error of an attribute's value.
type Fault string

// The faults.
const (
	FaultUnknown   Fault = "unknown"    // the attribute does not exist
	FaultMissing   Fault = "missing"    // a required value is null or empty
	FaultNotText   Fault = "not text"   // the value must be a text
	FaultNotNumber Fault = "not number" // the value must be a number
	FaultNotTruth  Fault = "not truth"  // the value must be true or false
	FaultLimit     Fault = "limit"      // too long, too small, too large
	FaultPorts     Fault = "ports"      // not a valid list of ports
	FaultInvalid   Fault = "invalid"    // not one of the choices, or not a text that can be stored
)

// ValueError means that a value is invalid for an attribute.
type ValueError struct {
	Attribute Attribute
	Fault     Fault
	Problem   string // message to be read after the name of the attribute
}

func (e *ValueError) Error() string { return string(e.Attribute) + ": " + e.Problem }

// CheckValues returns a [*ValueError] for the first invalid value, in the order of
// [AttributeRules]. A new template must have all required attributes, and a change must
// not remove one. Any optional attribute may be null or "".
func CheckValues(set map[Attribute]Value, creating bool) error {
	known := 0
	for _, rule := range AttributeRules() {
		v, said := set[rule.Attribute]
		if said {
			known++
		}
		if !said && !creating {
			continue
		}
		if fault, problem := rule.check(v); fault != "" {
			return &ValueError{Attribute: rule.Attribute, Fault: fault, Problem: problem}
		}
	}
	if known == len(set) {
		return nil
	}
	return unknownAttribute(set)
}

func unknownAttribute(set map[Attribute]Value) error {
	for _, a := range slices.Sorted(maps.Keys(set)) {
		if !isSet(a) {
			return &ValueError{Attribute: a, Fault: FaultUnknown, Problem: "is no attribute of a process"}
		}
	}
	return nil
}

// check returns the error of a value, if any. It treats "" like null.
func (r AttributeRule) check(v Value) (Fault, string) {
	if v.IsEmpty() {
		if r.Required {
			return FaultMissing, "is required"
		}
		return "", ""
	}
	switch r.Type {
	case TypeNumber:
		return checkNumber(v)
	case TypeTruth:
		if _, ok := v.AsTruth(); !ok {
			return FaultNotTruth, "must be true or false"
		}
		return "", ""
	case TypePorts:
		return checkPorts(v)
	case TypeLongText:
		return checkText(v, MaxLongText)
	case TypeText:
		return checkText(v, MaxText)
	case TypeChoice:
		return r.checkChoice(v)
	}
	return FaultInvalid, fmt.Sprintf("has values of an unknown type %q", r.Type)
}

func checkNumber(v Value) (Fault, string) {
	n, ok := v.AsNumber()
	if !ok {
		return FaultNotNumber, "must be a whole number"
	}
	if n < 1 || n > MostNumber {
		return FaultLimit, fmt.Sprintf("%d is out of range: 1 to %d", n, MostNumber)
	}
	return "", ""
}

func checkText(v Value, limit int) (Fault, string) {
	text, ok := v.AsText()
	switch {
	case !ok:
		return FaultNotText, "must be a text"
	case len(text) > limit:
		return FaultLimit, fmt.Sprintf("is %d bytes long, at most %d are allowed", len(text), limit)
	case !utf8.ValidString(text):
		return FaultInvalid, "is not valid UTF-8"
	case strings.ContainsRune(text, 0):
		return FaultInvalid, "contains a NUL character"
	}
	return "", ""
}

func (r AttributeRule) checkChoice(v Value) (Fault, string) {
	if fault, problem := checkText(v, MaxText); fault != "" {
		return fault, problem
	}
	if text, _ := v.AsText(); !slices.Contains(r.Choices, text) {
		return FaultInvalid, fmt.Sprintf("%q is none of its choices: %s", text, strings.Join(r.Choices, ", "))
	}
	return "", ""
}

// checkPorts checks a value of TypePorts: one port as a number, or a text with ports
// and ranges of ports, separated by commas, for example 8080-8089,8199. The ends of a
// range may be in any order, as in the published grammar.
func checkPorts(v Value) (Fault, string) {
	const problem = "must be a list of ports from 1 to 65535, such as 8080 or 8080-8089,8199"
	if n, ok := v.AsNumber(); ok {
		if !isPort(strconv.FormatInt(n, 10)) {
			return FaultPorts, problem
		}
		return "", ""
	}
	if fault, problem := checkText(v, MaxText); fault != "" {
		return fault, problem
	}
	text, _ := v.AsText()
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isPort(first) || isRange && !isPort(last) {
			return FaultPorts, problem
		}
	}
	return "", ""
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0 && text[0] != '0'
}

// WithDefaults returns the values of a new template: the values in set, and defaults
// for all other attributes. It does not change set. If no func_name is set, it is the
// name.
func WithDefaults(set map[Attribute]Value) map[Attribute]Value {
	rules := AttributeRules()
	values := make(map[Attribute]Value, len(rules))
	for _, rule := range rules {
		values[rule.Attribute] = rule.Default
	}
	maps.Copy(values, set)
	if values[AttrFuncName].IsEmpty() {
		values[AttrFuncName] = values[AttrName]
	}
	return values
}

// Validate returns the error of an edit that does not depend on stored data: a
// [*ValueError], or a [procfleet.FieldError] about the modules.
func (e Edit) Validate() error {
	if e.ID < 0 {
		return ErrNoTemplate
	}
	if err := CheckValues(e.Set, e.ID == 0); err != nil {
		return err
	}
	if err := validModules("bind", e.Bind); err != nil {
		return err
	}
	if err := validModules("unbind", e.Unbind); err != nil {
		return err
	}
	bound := make(map[string]bool, len(e.Bind))
	for _, module := range e.Bind {
		bound[module] = true
	}
	for i, module := range e.Unbind {
		if bound[module] {
			return &procfleet.FieldError{Field: fmt.Sprintf("unbind[%d]", i), Problem: "is also a module to bind: leave it out of one of them"}
		}
	}
	return nil
}

func validModules(field string, modules []string) error {
	if len(modules) > MaxBound {
		return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("%d modules are too many: at most %d are allowed", len(modules), MaxBound)}
	}
	for i, module := range modules {
		if err := validText(fmt.Sprintf("%s[%d]", field, i), module, MaxModuleBytes); err != nil {
			return err
		}
	}
	return nil
}

// ValidModule returns a [procfleet.FieldError] if name is not a valid module name:
// UTF-8 of 1 to [MaxModuleBytes] bytes without a NUL.
func ValidModule(name string) error { return validText("module", name, MaxModuleBytes) }

// ValidateEdits returns the first error of edits that does not depend on stored data: a
// [procfleet.FieldError] about the edits together, or an [*EditError].
func ValidateEdits(edits []Edit) error {
	if len(edits) > MaxEdits {
		return &procfleet.FieldError{Field: "edits", Problem: fmt.Sprintf("%d are too many: at most %d are allowed", len(edits), MaxEdits)}
	}
	seen := make(map[int64]bool, len(edits))
	for i, e := range edits {
		if err := e.Validate(); err != nil {
			return &EditError{Index: i, ID: e.ID, Err: err}
		}
		if e.ID != 0 && seen[e.ID] {
			return &EditError{Index: i, ID: e.ID, Err: &procfleet.FieldError{Field: "id", Problem: "is edited twice in one call"}}
		}
		seen[e.ID] = true
	}
	return nil
}

// isSet reports whether a template can set the attribute.
func isSet(a Attribute) bool {
	return slices.ContainsFunc(AttributeRules(), func(r AttributeRule) bool { return r.Attribute == a })
}

// Validate returns a [procfleet.FieldError] for the first invalid field.
func (s Search) Validate() error {
	if s.Limit < 1 || s.Limit > MaxTemplatePage {
		return &procfleet.FieldError{Field: "limit", Problem: fmt.Sprintf("%d is out of range: 1 to %d", s.Limit, MaxTemplatePage)}
	}
	if s.Start < 0 {
		return &procfleet.FieldError{Field: "start", Problem: fmt.Sprintf("%d is less than 0", s.Start)}
	}
	if s.Sort == AttrModule || s.Sort != "" && !isSearchable(s.Sort) {
		return &procfleet.FieldError{Field: "sort", Problem: fmt.Sprintf("processes cannot be sorted by %q", s.Sort)}
	}
	if len(s.Conditions) > MaxConditions {
		return &procfleet.FieldError{Field: "conditions", Problem: fmt.Sprintf("%d are too many: at most %d are allowed", len(s.Conditions), MaxConditions)}
	}
	for i, c := range s.Conditions {
		if err := c.Validate(); err != nil {
			return procfleet.In(fmt.Sprintf("conditions[%d]", i), err)
		}
	}
	return nil
}

// Validate returns a [procfleet.FieldError] for the first invalid field.
func (c Condition) Validate() error {
	if !isSearchable(c.Attribute) {
		return &procfleet.FieldError{Field: "attribute", Problem: fmt.Sprintf("%q is no attribute of a process", c.Attribute)}
	}
	switch c.Comparison {
	case In, NotIn:
		if len(c.Values) > MaxConditionValues {
			return &procfleet.FieldError{Field: "values", Problem: fmt.Sprintf("%d are too many: at most %d are allowed", len(c.Values), MaxConditionValues)}
		}
	case Is, IsNot, Contains, Less, AtMost, More, AtLeast:
		if len(c.Values) != 1 {
			return &procfleet.FieldError{Field: "values", Problem: fmt.Sprintf("there are %d, but %q compares with one", len(c.Values), c.Comparison)}
		}
	default:
		return &procfleet.FieldError{Field: "comparison", Problem: fmt.Sprintf("%q is no comparison", c.Comparison)}
	}
	return nil
}

func isSearchable(a Attribute) bool {
	switch a {
	case AttrID, AttrModule, AttrCreatedAt, AttrChangedAt:
		return true
	default:
		return isSet(a)
	}
}
