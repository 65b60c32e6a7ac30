package templates

import (
	"cmp"
	"slices"
	"sync"

	"github.com/procfleet/procfleet/catalog"
)

// View holds the searchable attributes of all templates of one business in memory. Its
// columns refer to distinct values by number, so a condition is evaluated once per
// distinct value. It is safe for concurrent use.
type View struct {
	mu      sync.RWMutex
	ids     []int64 // ascending; the index of an id is the row of its template in all columns
	columns map[catalog.Attribute]*column
	modules moduleColumn
}

// NewView returns an empty view.
func NewView() *View {
	v := &View{columns: map[catalog.Attribute]*column{}}
	for _, rule := range catalog.AttributeRules() {
		v.columns[rule.Attribute] = &column{attribute: rule.Attribute}
	}
	for _, a := range []catalog.Attribute{catalog.AttrCreatedAt, catalog.AttrChangedAt} {
		v.columns[a] = &column{attribute: a}
	}
	return v
}

// Len returns the number of templates in the view.
func (v *View) Len() int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.ids)
}

// Apply adds or replaces the changed templates, and then removes templates by id. If a
// template occurs twice in changed, the last one counts; unknown ids in removed are
// ignored. The caller may reuse the arguments. One call with many templates is much
// faster than many calls.
func (v *View) Apply(changed []catalog.Template, removed []int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := len(v.ids)
	var fresh []*catalog.Template
	for i := range changed {
		if row, ok := slices.BinarySearch(v.ids, changed[i].ID); ok {
			v.replace(row, &changed[i])
		} else {
			fresh = append(fresh, &changed[i])
		}
	}
	slices.SortStableFunc(fresh, func(a, b *catalog.Template) int { return cmp.Compare(a.ID, b.ID) })
	for i, t := range fresh {
		if i+1 == len(fresh) || fresh[i+1].ID != t.ID {
			v.add(t)
		}
	}
	v.arrange(known, removed)
	v.modules.settle()
	for _, c := range v.columns {
		c.settle()
	}
}

func (v *View) replace(row int, t *catalog.Template) {
	v.modules.replace(row, t)
	for _, c := range v.columns {
		c.replace(row, t)
	}
}

func (v *View) add(t *catalog.Template) {
	v.ids = append(v.ids, t.ID)
	v.modules.add(t)
	for _, c := range v.columns {
		c.add(t)
	}
}

// arrange sorts the rows by id and removes the rows of removed ids. The first known
// rows are sorted, and so are the rows after them.
func (v *View) arrange(known int, removed []int64) {
	inOrder := known == 0 || known == len(v.ids) || v.ids[known-1] < v.ids[known]
	if inOrder && len(removed) == 0 {
		return
	}
	rows := v.rows()
	rows = merge(rows[:known], rows[known:], func(a, b int32) int { return cmp.Compare(v.ids[a], v.ids[b]) })
	gone := make(map[int64]bool, len(removed))
	for _, id := range removed {
		gone[id] = true
	}
	rows = slices.DeleteFunc(rows, func(row int32) bool { return gone[v.ids[row]] })
	order := spansOf(rows)
	v.ids = arranged(v.ids, order)
	v.modules.arrange(order)
	for _, c := range v.columns {
		c.arrange(order)
	}
}

// rows returns the numbers of all rows.
func (v *View) rows() []int32 {
	rows := make([]int32, len(v.ids))
	for i := range rows {
		rows[i] = int32(i)
	}
	return rows
}

// Search returns the ids of the page that s selects, and the number of all matches. s
// must have passed [catalog.Search.Validate].
func (v *View) Search(s catalog.Search) (page []int64, total int) {
	by := v.columns[s.Sort]
	if by != nil {
		v.sortOnce(by)
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	rows := v.meeting(s.Conditions)
	total = len(rows)
	switch {
	case by != nil:
		rows = by.sortRows(rows, s.Descending)
	case s.Sort == catalog.AttrID && s.Descending:
		slices.Reverse(rows)
	}
	rows = rows[min(s.Start, total):]
	for _, row := range rows[:min(s.Limit, len(rows))] {
		page = append(page, v.ids[row])
	}
	return page, total
}

// sortOnce sorts the values of a column that is not sorted yet. [View.Apply] maintains
// the order from then on.
func (v *View) sortOnce(c *column) {
	v.mu.RLock()
	sorted := c.sorted
	v.mu.RUnlock()
	if !sorted {
		v.mu.Lock()
		defer v.mu.Unlock()
		c.sort()
	}
}

// meeting returns the rows that meet all conditions. It evaluates cheap conditions
// first.
func (v *View) meeting(conditions []catalog.Condition) []int32 {
	rows := v.rows()
	costly := func(c catalog.Condition) int {
		switch {
		case !lists(c.Comparison):
			return 2
		case negates(c.Comparison):
			return 1
		}
		return 0
	}
	conditions = slices.Clone(conditions)
	slices.SortStableFunc(conditions, func(a, b catalog.Condition) int { return costly(a) - costly(b) })
	for _, c := range conditions {
		test, not := v.test(c), negates(c.Comparison)
		kept := rows[:0]
		for _, row := range rows {
			if test(row) != not {
				kept = append(kept, row)
			}
		}
		rows = kept
	}
	return rows
}

// test returns a function that reports whether a row meets a condition. It ignores the
// negation of IsNot and NotIn.
func (v *View) test(c catalog.Condition) func(row int32) bool {
	switch c.Attribute {
	case catalog.AttrID:
		return v.testID(c)
	case catalog.AttrModule:
		return v.modules.test(c)
	default:
		return v.columns[c.Attribute].test(c)
	}
}

func (v *View) testID(c catalog.Condition) func(row int32) bool {
	if !lists(c.Comparison) {
		return func(row int32) bool { return holds(c.Comparison, catalog.Number(v.ids[row]), c.Values[0]) }
	}
	listed := make(map[int64]bool, len(c.Values))
	for _, value := range c.Values {
		if id, ok := value.AsNumber(); ok {
			listed[id] = true
		}
	}
	return func(row int32) bool { return listed[v.ids[row]] }
}
