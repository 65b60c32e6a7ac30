package catalog

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Value is what an attribute of a template has: nothing, a text, a whole
// number or a truth value. The zero Value is nothing. Values are comparable.
type Value struct {
	kind   valueKind
	text   string
	number int64 // of truth values 0 or 1
}

type valueKind uint8

// In the order in which values of several kinds are sorted.
const (
	noValue valueKind = iota
	numberValue
	textValue
	truthValue
)

// Text is a value.
func Text(s string) Value { return Value{kind: textValue, text: s} }

// Number is a value.
func Number(n int64) Value { return Value{kind: numberValue, number: n} }

// Truth is a value.
func Truth(is bool) Value {
	v := Value{kind: truthValue}
	if is {
		v.number = 1
	}
	return v
}

// IsNone reports whether there is no value: null, in JSON.
func (v Value) IsNone() bool { return v.kind == noValue }

// IsEmpty reports whether there is no value, or an empty text.
func (v Value) IsEmpty() bool { return v.kind == noValue || v == Text("") }

// AsText returns the text, if v is one.
func (v Value) AsText() (string, bool) { return v.text, v.kind == textValue }

// AsNumber returns the number, if v is one.
func (v Value) AsNumber() (int64, bool) { return v.number, v.kind == numberValue }

// AsTruth returns the truth value, if v is one.
func (v Value) AsTruth() (is, ok bool) { return v.number == 1, v.kind == truthValue }

// SameKind reports whether v and w are both nothing, both texts, both numbers
// or both truth values.
func (v Value) SameKind(w Value) bool { return v.kind == w.kind }

// Compare is negative if v sorts before w, positive if after: nothing before
// numbers before texts, by their bytes, before truth values.
func (v Value) Compare(w Value) int {
	switch {
	case v.kind != w.kind:
		return int(v.kind) - int(w.kind)
	case v.text != w.text:
		if v.text < w.text {
			return -1
		}
		return 1
	case v.number < w.number:
		return -1
	case v.number > w.number:
		return 1
	}
	return 0
}

// String is for people: the text itself, or JSON.
func (v Value) String() string {
	if v.kind == textValue {
		return v.text
	}
	text, _ := v.MarshalJSON() // only texts can fail
	return string(text)
}

// MarshalJSON writes the JSON scalar.
func (v Value) MarshalJSON() ([]byte, error) {
	switch v.kind {
	case numberValue:
		return strconv.AppendInt(nil, v.number, 10), nil
	case textValue:
		return json.Marshal(v.text)
	case truthValue:
		return strconv.AppendBool(nil, v.number == 1), nil
	default:
		return []byte("null"), nil
	}
}

// UnmarshalJSON reads a JSON scalar; numbers must be whole and fit 64 bits.
func (v *Value) UnmarshalJSON(text []byte) error {
	var scalar any
	if err := json.Unmarshal(text, &scalar); err != nil {
		return err
	}
	switch value := scalar.(type) {
	case nil:
		*v = Value{}
	case string:
		*v = Text(value)
	case bool:
		*v = Truth(value)
	case float64:
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil && value == math.Trunc(value) && math.Abs(value) < 1<<53 {
			n, err = int64(value), nil // as in 1e3 and 80.0
		}
		if err != nil {
			return fmt.Errorf("%s is not a whole number of 64 bits", text)
		}
		*v = Number(n)
	default:
		return fmt.Errorf("%.40s is not a text, a number, true, false or null", text)
	}
	return nil
}
