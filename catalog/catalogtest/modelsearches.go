package catalogtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/procfleet/procfleet/catalog"
)

// editsAgreeWithModel makes the same random edits in a store and in a Model, compares
// the stored data, and compares random searches with [Find].
func editsAgreeWithModel(ctx context.Context, t T, s Subject) {
	seed := rand.Uint64()
	w := &editWalk{walk: walk{t: t, random: rand.New(rand.NewPCG(seed, 0)), both: [2]catalog.Store{s, NewModel()}}}
	for n := range s.rounds(40, 120) {
		same := w.edit(ctx)
		if n%4 == 3 {
			same = same && w.agree(ctx)
		}
		if !same {
			t.Fatalf("failing seed: %d", seed)
		}
	}
}

// editWalk identifies the templates of two stores by the order of their creation,
// because each store assigns its own ids.
type editWalk struct {
	walk
	ids [2][]int64
}

// Few different values, so that random templates collide and random searches match.
var (
	someTexts      = []string{"", "web", "Web", "web-1", "we", "db", "数据库", "8080", "%"}
	someModules    = []string{"web", "Web", "db", "web-1"}
	someAttributes = []catalog.Attribute{
		catalog.AttrName, catalog.AttrPort, catalog.AttrFuncID, catalog.AttrFuncName, catalog.AttrArgsPattern,
		catalog.AttrTimeout, catalog.AttrAutoStart, catalog.AttrBindIP, catalog.AttrUser,
	}
	searchedAttributes = append([]catalog.Attribute{catalog.AttrID, catalog.AttrModule, catalog.AttrCreatedAt, catalog.AttrChangedAt}, someAttributes...)
	comparisons        = []catalog.Comparison{
		catalog.Is, catalog.IsNot, catalog.In, catalog.NotIn, catalog.Contains, catalog.Less, catalog.AtMost, catalog.More, catalog.AtLeast,
	}
)

// value returns a random value for an attribute; most of them are valid.
func (w *editWalk) value(a catalog.Attribute) catalog.Value {
	roll := w.random.IntN(8)
	switch {
	case roll == 0:
		return catalog.Value{}
	case a == catalog.AttrTimeout || a == catalog.AttrPort && roll == 1:
		return catalog.Number(one(&w.walk, []int64{1, 9, 80, 8080}))
	case a == catalog.AttrAutoStart:
		return catalog.Truth(roll < 4)
	case a == catalog.AttrBindIP:
		return catalog.Text(one(&w.walk, []string{"1", "2", ""}))
	case a == catalog.AttrPort:
		return catalog.Text(one(&w.walk, []string{"80", "8080", "80-90", ""}))
	case a == catalog.AttrName:
		return catalog.Text(one(&w.walk, someTexts) + one(&w.walk, someTexts) + fmt.Sprint(w.random.IntN(9)))
	}
	return catalog.Text(one(&w.walk, someTexts))
}

// edits returns random edits and, for each, the index of its template in ids; -1
// creates a template.
func (w *editWalk) edits() (edits []catalog.Edit, of []int) {
	for range w.random.IntN(4) {
		place := w.random.IntN(len(w.ids[0])+2) - 1
		if place == len(w.ids[0]) || slices.Contains(of, place) {
			place = -1
		}
		e := catalog.Edit{Bind: some(&w.walk, someModules)}
		e.Unbind = without(some(&w.walk, someModules), e.Bind)
		if n := w.random.IntN(4); n > 0 || place < 0 {
			e.Set = values{}
			for range n {
				a := one(&w.walk, someAttributes)
				e.Set[a] = w.value(a)
			}
		}
		if place < 0 {
			e.Set[catalog.AttrName] = w.value(catalog.AttrName)
		}
		edits, of = append(edits, e), append(of, place)
	}
	return edits, of
}

// edit makes random edits in both stores, or deletes a template in both.
func (w *editWalk) edit(ctx context.Context) bool {
	w.t.Helper()
	if n := len(w.ids[0]); n > 0 && w.random.IntN(6) == 0 {
		place := w.random.IntN(n)
		return w.sameOf("deleted", func(side int, s catalog.Store) any {
			existed, err := s.DeleteTemplate(ctx, shop, w.ids[side][place])
			return []any{existed && err == nil, err != nil}
		})
	}
	edits, of := w.edits()
	return w.sameOf("edited", func(side int, s catalog.Store) any {
		mine := slices.Clone(edits)
		for i, place := range of {
			if place >= 0 {
				mine[i].ID = w.ids[side][place]
			}
		}
		done, err := s.EditTemplates(ctx, shop, mine)
		for i := range done {
			if of[i] < 0 {
				w.ids[side] = append(w.ids[side], done[i].ID)
			}
			done[i].ID = 0
		}
		return []any{done, err == nil}
	})
}

// sameOf makes a call to both stores and compares the results.
func (w *editWalk) sameOf(what string, call func(side int, s catalog.Store) any) bool {
	w.t.Helper()
	return equal(w.t, what, call(0, w.both[0]), call(1, w.both[1]))
}

// agree compares the stored templates of both stores, and random searches with [Find].
func (w *editWalk) agree(ctx context.Context) bool {
	w.t.Helper()
	var all []catalog.Template
	same := w.sameOf("templates", func(side int, s catalog.Store) any {
		var out []any
		for _, t := range templates(ctx, w.t, s, shop, w.ids[side]...) {
			if t == nil {
				out = append(out, nil)
				continue
			}
			if side == 0 {
				all = append(all, *t)
			}
			out = append(out, t.Values, t.Modules)
		}
		return out
	})
	for range 10 {
		q := w.search()
		ids, total := Find(all, q)
		page, found := search(ctx, w.t, w.both[0], shop, q)
		got := make([]int64, len(page))
		for i := range page {
			got[i] = page[i].ID
		}
		same = same && equal(w.t, fmt.Sprintf("what %+v finds", q), []any{got, found}, []any{ids, total})
	}
	return same
}

func (w *editWalk) search() catalog.Search {
	q := catalog.Search{Descending: w.random.IntN(2) == 0, Start: w.random.IntN(3), Limit: one(&w.walk, []int{1, 5, 1000})}
	if by := one(&w.walk, searchedAttributes); by != catalog.AttrModule {
		q.Sort = by
	}
	for range w.random.IntN(3) {
		c := condition(one(&w.walk, searchedAttributes), one(&w.walk, comparisons))
		n := 1
		if c.Comparison == catalog.In || c.Comparison == catalog.NotIn {
			n = w.random.IntN(12)
		}
		for range n {
			v := w.value(c.Attribute)
			if c.Attribute == catalog.AttrID && len(w.ids[0]) > 0 {
				v = catalog.Number(one(&w.walk, w.ids[0]))
			}
			c.Values = append(c.Values, v)
		}
		q.Conditions = append(q.Conditions, c)
	}
	return q
}
