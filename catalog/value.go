package catalog

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Value is the value of an attribute: null, a text, an integer or a truth value. The
// zero Value is null. Values are comparable with ==.
type Value struct {
	kind   valueKind
	text   string
	number int64 // 0 or 1 for truth values
}

type valueKind uint8

// The kinds, in the order in which their values sort.
const (
	noValue valueKind = iota
	numberValue
	textValue
	truthValue
)

// Text returns a text value.
func Text(s string) Value { return Value{kind: textValue, text: s} }

// Number returns a number value.
func Number(n int64) Value { return Value{kind: numberValue, number: n} }

// Truth returns a truth value.
func Truth(is bool) Value {
	v := Value{kind: truthValue}
	if is {
		v.number = 1
	}
	return v
}

// IsNone reports whether the value is null.
func (v Value) IsNone() bool { return v.kind == noValue }

// IsEmpty reports whether the value is null or an empty text.
func (v Value) IsEmpty() bool { return v.kind == noValue || v == Text("") }

// AsText returns the text, and whether v is a text.
func (v Value) AsText() (string, bool) { return v.text, v.kind == textValue }

// AsNumber returns the number, and whether v is a number.
func (v Value) AsNumber() (int64, bool) { return v.number, v.kind == numberValue }

// AsTruth returns the truth value; ok is false if v is not one.
func (v Value) AsTruth() (is, ok bool) { return v.number == 1, v.kind == truthValue }

// SameKind reports whether v and w are of the same kind: null, text, number or truth
// value.
func (v Value) SameKind(w Value) bool { return v.kind == w.kind }

// Compare returns a negative number if v sorts before w, a positive number if after,
// and 0 if they are equal. Null sorts first, then numbers, texts by their bytes, and
// truth values.
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

// String returns the text itself, or the JSON of other values.
func (v Value) String() string {
	if v.kind == textValue {
		return v.text
	}
	text, _ := v.MarshalJSON() // only texts can fail
	return string(text)
}

// MarshalJSON encodes the value as a JSON scalar.
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

// UnmarshalJSON decodes a JSON scalar. A number must be an integer of 64 bits.
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
			n, err = int64(value), nil // integers written as 1e3 or 80.0
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
