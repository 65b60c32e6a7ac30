package templates

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/catalog"
)

// dictionary assigns numbers to distinct values, in the order in which they are added.
// A Go map would need three times the memory.
type dictionary struct {
	values []catalog.Value
	// slots is a hash table of value numbers plus one; 0 is free. At most two thirds of
	// the slots are used. The number of slots is a power of two.
	slots []uint32
}

var hashSeed = maphash.MakeSeed()

// slot returns the slot of v, or the free slot in which to put v.
func (d *dictionary) slot(v catalog.Value) *uint32 {
	last := uint64(len(d.slots) - 1)
	for i := maphash.Comparable(hashSeed, v) & last; ; i = (i + 1) & last {
		if n := d.slots[i]; n == 0 || d.values[n-1] == v {
			return &d.slots[i]
		}
	}
}

// number returns the number of v, if it has one.
func (d *dictionary) number(v catalog.Value) (uint32, bool) {
	if len(d.slots) == 0 {
		return 0, false
	}
	n := *d.slot(v)
	return n - 1, n != 0
}

// add returns the number of v. It adds a new value with a copy of its text.
func (d *dictionary) add(v catalog.Value) uint32 {
	if 3*(len(d.values)+1) > 2*len(d.slots) {
		d.grow()
	}
	slot := d.slot(v)
	if *slot == 0 {
		if text, ok := v.AsText(); ok {
			v = catalog.Text(strings.Clone(text))
		}
		d.values = append(d.values, v)
		*slot = uint32(len(d.values))
	}
	return *slot - 1
}

func (d *dictionary) grow() {
	d.slots = make([]uint32, max(8, 2*len(d.slots)))
	for i, v := range d.values {
		*d.slot(v) = uint32(i + 1)
	}
}

// wasteful reports whether the number of values exceeds twice the number of cells that
// use them, so that most values are unused.
func (d *dictionary) wasteful(cells int) bool { return len(d.values) > 2*cells+1000 }

// meeting returns a function that reports whether the value of a number meets a
// condition, ignoring the negation of IsNot and NotIn. It evaluates each value at most
// once.
func (d *dictionary) meeting(c catalog.Condition) func(number uint32) bool {
	if lists(c.Comparison) {
		return d.among(c.Values)
	}
	const unknown, no, yes = 0, 1, 2
	seen := make([]uint8, len(d.values))
	return func(number uint32) bool {
		if seen[number] == unknown {
			seen[number] = no
			if holds(c.Comparison, d.values[number], c.Values[0]) {
				seen[number] = yes
			}
		}
		return seen[number] == yes
	}
}

// among returns a function that reports whether a number is the number of one of the
// values.
func (d *dictionary) among(values []catalog.Value) func(number uint32) bool {
	var numbers []uint32
	for _, v := range values {
		if n, ok := d.number(v); ok {
			numbers = append(numbers, n)
		}
	}
	if len(numbers) <= 8 {
		return func(number uint32) bool { return slices.Contains(numbers, number) }
	}
	listed := make([]bool, len(d.values))
	for _, n := range numbers {
		listed[n] = true
	}
	return func(number uint32) bool { return listed[number] }
}

// lists reports whether a comparison tests for equality with one of its values.
func lists(c catalog.Comparison) bool { return c == catalog.Is || c == catalog.In || negates(c) }

// negates reports whether a comparison is negated.
func negates(c catalog.Comparison) bool { return c == catalog.IsNot || c == catalog.NotIn }

// holds reports whether v compares to w as c requires, for comparisons other than those
// of lists.
func holds(c catalog.Comparison, v, w catalog.Value) bool {
	switch c {
	case catalog.Contains:
		text, isText := v.AsText()
		part, isPart := w.AsText()
		return isText && isPart && strings.Contains(text, part)
	case catalog.Less:
		return v.SameKind(w) && v.Compare(w) < 0
	case catalog.AtMost:
		return v.SameKind(w) && v.Compare(w) <= 0
	case catalog.More:
		return v.SameKind(w) && v.Compare(w) > 0
	case catalog.AtLeast:
		return v.SameKind(w) && v.Compare(w) >= 0
	default:
		return false
	}
}
