package dialect

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// rendered is the JSON of a results page or map while it grows. Such answers
// have tens of thousands of members: reflection took most of their time. What
// is appended is, byte for byte, what [appendJSON] would have made of the
// struct that declares the shape.
type rendered []byte

// MarshalJSON returns what was rendered.
func (b rendered) MarshalJSON() ([]byte, error) { return b, nil }

// comma separates a member or an element from the one before it.
func (b rendered) comma() rendered {
	switch last := b[len(b)-1]; last {
	case '{', '[', ':':
		return b
	}
	return append(b, ',')
}

// name begins a member. Names are constants that need no escapes.
func (b rendered) name(name string) rendered {
	b = append(b.comma(), '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

func (b rendered) text(name, v string) rendered { return b.name(name).quote(v) }

// given leaves out the empty text.
func (b rendered) given(name, v string) rendered {
	if v == "" {
		return b
	}
	return b.text(name, v)
}

func (b rendered) number(name string, v int64) rendered {
	return strconv.AppendInt(b.name(name), v, 10)
}

// nonzero leaves out zero.
func (b rendered) nonzero(name string, v int64) rendered {
	if v == 0 {
		return b
	}
	return b.number(name, v)
}

func (b rendered) truth(name string, v bool) rendered { return strconv.AppendBool(b.name(name), v) }

// time leaves out the zero time.
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
		return append(b[:len(b)-1], "null"...) // a year that RFC 3339 cannot say
	}
	return append(text, '"')
}

// float writes what JSON has no number for as null.
func (b rendered) float(name string, v float64) rendered {
	b = b.name(name)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	if size := math.Abs(v); size == 0 || (size >= 1e-6 && size < 1e21) {
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, v, 'e', -1, 64)
	if n := len(b); b[n-4] == 'e' && b[n-3] == '-' && b[n-2] == '0' { // e-07 is e-7
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

// texts leaves out an empty list.
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

// numbers leaves out an empty list.
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

// quote appends s as a JSON string: like encoding/json without HTML escapes,
// so U+2028 and U+2029, which end lines in old JavaScript, are escaped and
// invalid UTF-8 is the replacement character's escape.
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

// quoteFrom makes a JSON string of what was rendered from begin on, in its
// place. Only two characters of JSON as it is rendered need an escape.
func (b rendered) quoteFrom(begin int) rendered {
	end := len(b)
	longer := 2 + bytes.Count(b[begin:], []byte{'"'}) + bytes.Count(b[begin:], []byte{'\\'})
	b = slices.Grow(b, longer)[:end+longer]
	to := len(b) - 1
	b[to] = '"'
	// From its end on, so that nothing is overwritten before it was moved. An
	// escape is written before every character, and overwritten by the next
	// one where none is needed: a condition would be guessed wrong too often.
	for i := end - 1; i >= begin; i-- {
		c := b[i]
		pair := b[to-2 : to]
		pair[0], pair[1] = '\\', c
		to -= 1 + int(escapes[c])
	}
	b[begin] = '"'
	return b
}

// escapes is how many more characters one takes in a string.
var escapes = [256]uint8{'"': 1, '\\': 1}

// plain are the bytes that stand for themselves.
var plain = func() (p [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		p[c] = c != '"' && c != '\\'
	}
	return p
}()

// escapeOf returns the escape of the first character of s, empty if it needs
// none, and the bytes that it takes in s.
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
