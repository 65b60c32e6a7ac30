package dialect

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// rendered is the JSON of a result page or a result map while it is built. Such
// responses have tens of thousands of members, and reflection took most of their time.
// The methods append exactly the bytes that [appendJSON] would write for the struct that
// declares the shape.
type rendered []byte

// MarshalJSON returns the rendered JSON.
func (b rendered) MarshalJSON() ([]byte, error) { return b, nil }

// comma separates a member or an element from the one before it, if there is one.
func (b rendered) comma() rendered {
	switch last := b[len(b)-1]; last {
	case '{', '[', ':':
		return b
	}
	return append(b, ',')
}

// name begins a member. The name must need no escapes.
func (b rendered) name(name string) rendered {
	b = append(b.comma(), '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

func (b rendered) text(name, v string) rendered { return b.name(name).quote(v) }

// given appends the member unless its text is empty.
func (b rendered) given(name, v string) rendered {
	if v == "" {
		return b
	}
	return b.text(name, v)
}

func (b rendered) number(name string, v int64) rendered {
	return strconv.AppendInt(b.name(name), v, 10)
}

// nonzero appends the member unless it is zero.
func (b rendered) nonzero(name string, v int64) rendered {
	if v == 0 {
		return b
	}
	return b.number(name, v)
}

func (b rendered) truth(name string, v bool) rendered { return strconv.AppendBool(b.name(name), v) }

// time appends the member unless it is the zero time.
func (b rendered) time(name string, v time.Time) rendered {
	if v.IsZero() {
		return b
	}
	return b.alwaysTime(name, v)
}

func (b rendered) alwaysTime(name string, v time.Time) rendered {
	b = append(b.name(name), '"')
	text, err := v.AppendText(b)
	if err != nil {
		return append(b[:len(b)-1], "null"...) // RFC 3339 cannot represent the year
	}
	return append(text, '"')
}

// float appends null for NaN and infinities, for which JSON has no number.
func (b rendered) float(name string, v float64) rendered {
	b = b.name(name)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	if size := math.Abs(v); size == 0 || (size >= 1e-6 && size < 1e21) {
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, v, 'e', -1, 64)
	if n := len(b); b[n-4] == 'e' && b[n-3] == '-' && b[n-2] == '0' { // encoding/json writes e-7, not e-07
		b = append(b[:n-2], b[n-1])
	}
	return b
}

func (b rendered) floatNonzero(name string, v float64) rendered {
	if v == 0 {
		return b
	}
	return b.float(name, v)
}

// texts appends the member unless the list is empty.
func (b rendered) texts(name string, list []string) rendered {
	if len(list) == 0 {
		return b
	}
	b = append(b.name(name), '[')
	for _, v := range list {
		b = b.comma().quote(v)
	}
	return append(b, ']')
}

// numbers appends the member unless the list is empty.
func (b rendered) numbers(name string, list []int) rendered {
	if len(list) == 0 {
		return b
	}
	b = append(b.name(name), '[')
	for _, v := range list {
		b = strconv.AppendInt(b.comma(), int64(v), 10)
	}
	return append(b, ']')
}

// quote appends s as a JSON string, like encoding/json without HTML escapes: it escapes
// U+2028 and U+2029, which end lines in old JavaScript, and replaces invalid UTF-8 by
// \ufffd.
func (b rendered) quote(s string) rendered {
	b = append(b, '"')
	begin := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c == '"' || c == '\\' {
			b = append(append(b, s[begin:i]...), '\\', c)
			i++
			begin = i
			continue
		}
		escape, size := escapeOf(s[i:])
		if escape != "" {
			b = append(b, s[begin:i]...)
			b = append(b, escape...)
			begin = i + size
		}
		i += size
	}
	b = append(b, s[begin:]...)
	return append(b, '"')
}

// quoteFrom replaces the JSON from begin on by a JSON string that contains it. Rendered
// JSON has only two characters that need an escape, the quote and the backslash.
func (b rendered) quoteFrom(begin int) rendered {
	end := len(b)
	longer := 2 + bytes.Count(b[begin:], []byte{'"'}) + bytes.Count(b[begin:], []byte{'\\'})
	b = slices.Grow(b, longer)[:end+longer]
	to := len(b) - 1
	b[to] = '"'
	// Copy from the end, so that no byte is overwritten before it is moved. Write a
	// backslash before every character; if the character needs none, the next character
	// overwrites it. A branch instead would be mispredicted too often.
	for i := end - 1; i >= begin; i-- {
		c := b[i]
		pair := b[to-2 : to]
		pair[0], pair[1] = '\\', c
		to -= 1 + int(escapes[c])
	}
	b[begin] = '"'
	return b
}

// escapes is the number of additional bytes that each byte needs in a JSON string.
var escapes = [256]uint8{'"': 1, '\\': 1}

// plain reports for each byte whether it is ASCII and needs no escape in a JSON string.
var plain = func() (p [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		p[c] = c != '"' && c != '\\'
	}
	return p
}()

// escapeOf returns the escape of the first character of s, "" if it needs none, and the
// length of the character in bytes.
func escapeOf(s string) (escape string, size int) {
	if c := s[0]; c < ' ' {
		return controlEscapes[c], 1
	}
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case r == utf8.RuneError && size == 1:
		return `\ufffd`, 1
	case r == '\u2028':
		return `\u2028`, size
	case r == '\u2029':
		return `\u2029`, size
	}
	return "", size
}

var controlEscapes = func() (e [' ']string) {
	const digits = "0123456789abcdef"
	for c := range e {
		e[c] = `\u00` + string(digits[c>>4]) + string(digits[c&15])
	}
	e['\b'], e['\f'], e['\n'], e['\r'], e['\t'] = `\b`, `\f`, `\n`, `\r`, `\t`
	return e
}()
