package catalogtest

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet/catalog"
)

// Find is the reference implementation of a search: it tests each template. It returns
// the ids of a page and the number of all matches.
func Find(all []catalog.Template, s catalog.Search) (page []int64, total int) {
	var found []catalog.Template
	for _, t := range all {
		if !slices.ContainsFunc(s.Conditions, func(c catalog.Condition) bool { return !meets(t, c) }) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(a, b catalog.Template) int {
		order := 0
		if s.Sort != "" {
			order = valuesOf(a, s.Sort)[0].Compare(valuesOf(b, s.Sort)[0])
		}
		if s.Descending {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.ID, b.ID))
	})
	for i, t := range found {
		if i >= s.Start && i < s.Start+s.Limit {
			page = append(page, t.ID)
		}
	}
	return page, len(found)
}

func meets(t catalog.Template, c catalog.Condition) bool {
	for _, v := range valuesOf(t, c.Attribute) {
		for _, w := range c.Values {
			if c.Attribute == catalog.AttrPort {
				w = portAsText(w)
			}
			if holds(c.Comparison, v, w) {
				return c.Comparison != catalog.IsNot && c.Comparison != catalog.NotIn
			}
		}
	}
	return c.Comparison == catalog.IsNot || c.Comparison == catalog.NotIn
}

func holds(c catalog.Comparison, v, w catalog.Value) bool {
	if c == catalog.Contains {
		text, isText := v.AsText()
		part, isPart := w.AsText()
		return isText && isPart && strings.Contains(text, part)
	}
	order, alike := v.Compare(w), kindOf(v) == kindOf(w)
	return map[catalog.Comparison]bool{
		catalog.Is: order == 0, catalog.IsNot: order == 0, catalog.In: order == 0, catalog.NotIn: order == 0,
		catalog.Less: alike && order < 0, catalog.AtMost: alike && order <= 0,
		catalog.More: alike && order > 0, catalog.AtLeast: alike && order >= 0,
	}[c]
}

func kindOf(v catalog.Value) string {
	if _, ok := v.AsText(); ok {
		return "text"
	}
	if _, ok := v.AsNumber(); ok {
		return "number"
	}
	if _, ok := v.AsTruth(); ok {
		return "truth"
	}
	return "nothing"
}

func portAsText(v catalog.Value) catalog.Value {
	if n, ok := v.AsNumber(); ok {
		return catalog.Text(strconv.FormatInt(n, 10))
	}
	return v
}

func valuesOf(t catalog.Template, a catalog.Attribute) []catalog.Value {
	switch a {
	case catalog.AttrID:
		return []catalog.Value{catalog.Number(t.ID)}
	case catalog.AttrCreatedAt:
		return []catalog.Value{catalog.Number(t.CreatedAt.UnixMicro())}
	case catalog.AttrChangedAt:
		return []catalog.Value{catalog.Number(t.ChangedAt.UnixMicro())}
	case catalog.AttrPort:
		return []catalog.Value{portAsText(t.Values[a])}
	case catalog.AttrModule:
		var values []catalog.Value
		for _, m := range t.Modules {
			values = append(values, catalog.Text(m))
		}
		return values
	default:
		return []catalog.Value{t.Values[a]}
	}
}
