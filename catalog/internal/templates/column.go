package templates

import (
	"slices"
	"strconv"

	"github.com/procfleet/procfleet/catalog"
)

// column stores the values of one attribute, one cell per template.
type column struct {
	attribute catalog.Attribute
	cells     []uint32 // value numbers
	values    dictionary

	sorted bool     // order and rank are maintained
	order  []uint32 // value numbers, sorted by their values
	rank   []uint32 // value number → position in order
}

func (c *column) value(t *catalog.Template) catalog.Value {
	switch c.attribute {
	case catalog.AttrCreatedAt:
		return catalog.Number(t.CreatedAt.UnixMicro())
	case catalog.AttrChangedAt:
		return catalog.Number(t.ChangedAt.UnixMicro())
	default:
		return asCompared(c.attribute, t.Values[c.attribute])
	}
}

// asCompared returns v in the form in which values are compared: a port number becomes
// a text.
func asCompared(a catalog.Attribute, v catalog.Value) catalog.Value {
	if port, ok := v.AsNumber(); ok && a == catalog.AttrPort {
		return catalog.Text(strconv.FormatInt(port, 10))
	}
	return v
}

func (c *column) add(t *catalog.Template) {
	v := c.value(t)
	if last := len(c.cells) - 1; last >= 0 && c.values.values[c.cells[last]] == v { // common, for example in a column without values
		c.cells = append(c.cells, c.cells[last])
		return
	}
	c.cells = append(c.cells, c.values.add(v))
}

func (c *column) replace(row int, t *catalog.Template) {
	c.cells[row] = c.values.add(c.value(t))
}

func (c *column) arrange(rows spans) { c.cells = arranged(c.cells, rows) }

// settle removes values without cells if there may be many of them. If the column is
// sorted, settle also sorts new values.
func (c *column) settle() {
	if c.values.wasteful(len(c.cells)) {
		old := c.values.values
		c.values = dictionary{}
		for row, n := range c.cells {
			c.cells[row] = c.values.add(old[n])
		}
		c.order = nil
	}
	if c.sorted {
		c.sort()
	}
}

// sort updates order and rank, and makes settle maintain them from now on.
func (c *column) sort() {
	c.sorted = true
	known, all := len(c.order), len(c.values.values)
	if known == all {
		return
	}
	fresh := make([]uint32, 0, all-known)
	for n := known; n < all; n++ {
		fresh = append(fresh, uint32(n))
	}
	compare := func(a, b uint32) int { return c.values.values[a].Compare(c.values.values[b]) }
	slices.SortFunc(fresh, compare)
	c.order = merge(c.order, fresh, compare)
	c.rank = make([]uint32, all)
	for position, n := range c.order {
		c.rank[n] = uint32(position)
	}
}

// merge merges two sorted lists.
func merge[E any](a, b []E, compare func(a, b E) int) []E {
	if len(a) == 0 {
		return b
	}
	out := make([]E, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if compare(a[0], b[0]) <= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// sortRows sorts rows by the values of their cells. The sort is stable. The values must
// be sorted.
func (c *column) sortRows(rows []int32, descending bool) []int32 {
	position := func(row int32) int {
		if position := int(c.rank[c.cells[row]]); !descending {
			return position
		}
		return len(c.rank) - 1 - int(c.rank[c.cells[row]])
	}
	next := make([]int32, len(c.rank)+1) // position → index of its next row in the result
	for _, row := range rows {
		next[position(row)+1]++
	}
	for i := 1; i < len(next); i++ {
		next[i] += next[i-1]
	}
	out := make([]int32, len(rows))
	for _, row := range rows {
		to := &next[position(row)]
		out[*to] = row
		*to++
	}
	return out
}

// test returns a function that reports whether a row meets a condition. It ignores the
// negation of IsNot and NotIn.
func (c *column) test(cond catalog.Condition) func(row int32) bool {
	values := slices.Clone(cond.Values)
	for i := range values {
		values[i] = asCompared(c.attribute, values[i])
	}
	cond.Values = values
	meets := c.values.meeting(cond)
	return func(row int32) bool { return meets(c.cells[row]) }
}

// moduleColumn stores the modules of each template.
type moduleColumn struct {
	cells [][]uint32 // name numbers
	names dictionary
}

func (c *moduleColumn) numbers(t *catalog.Template) []uint32 {
	if len(t.Modules) == 0 {
		return nil
	}
	numbers := make([]uint32, len(t.Modules))
	for i, m := range t.Modules {
		numbers[i] = c.names.add(catalog.Text(m))
	}
	return numbers
}

func (c *moduleColumn) add(t *catalog.Template) { c.cells = append(c.cells, c.numbers(t)) }

func (c *moduleColumn) replace(row int, t *catalog.Template) {
	c.cells[row] = c.numbers(t)
}

func (c *moduleColumn) arrange(rows spans) { c.cells = arranged(c.cells, rows) }

// settle removes names without cells if there may be many of them.
func (c *moduleColumn) settle() {
	bound := 0
	for _, numbers := range c.cells {
		bound += len(numbers)
	}
	if !c.names.wasteful(bound) {
		return
	}
	old := c.names.values
	c.names = dictionary{}
	for _, numbers := range c.cells {
		for i, n := range numbers {
			numbers[i] = c.names.add(old[n])
		}
	}
}

// test returns a function that reports whether one of a row's modules meets a
// condition. It ignores the negation of IsNot and NotIn.
func (c *moduleColumn) test(cond catalog.Condition) func(row int32) bool {
	meets := c.names.meeting(cond)
	return func(row int32) bool { return slices.ContainsFunc(c.cells[row], meets) }
}

// spans lists the rows that a column retains, in their new order, as ranges [first,
// end) of old rows. Rows in no range are removed.
type spans [][2]int32

func spansOf(rows []int32) spans {
	var s spans
	for _, row := range rows {
		if last := len(s) - 1; last >= 0 && s[last][1] == row {
			s[last][1]++
		} else {
			s = append(s, [2]int32{row, row + 1})
		}
	}
	return s
}

// arranged returns the cells in the order of s. It reuses the array if possible.
func arranged[E any](cells []E, s spans) []E {
	out := cells[:0]
	if !s.ascending() { // in place, a cell would be overwritten before it is read
		out = make([]E, 0, len(cells))
	}
	for _, span := range s {
		out = append(out, cells[span[0]:span[1]]...)
	}
	clear(cells[len(out):])
	return out
}

func (s spans) ascending() bool {
	for i := 1; i < len(s); i++ {
		if s[i][0] < s[i-1][1] {
			return false
		}
	}
	return true
}
