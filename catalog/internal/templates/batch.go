package templates

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Batch is the result of the edits of one call. The store must write it in one step.
type Batch struct {
	Templates []catalog.Template // after the edits, in the order of the edits
	Done      []catalog.Edited
	// Released holds the claims that none of the batch's templates has any more.
	Released []string
	// Claimed holds the claims that a template of the batch did not have before. Each
	// claim must be free when the batch is written, unless it is moved. If a claim is
	// not free, the store returns [Batch.Taken].
	Claimed []Claim

	edits []catalog.Edit
}

// Claim is a combination of values that only one template of a business may have.
type Claim struct {
	Text  string
	Edit  int  // index of the template in the batch
	Moved bool // another template of the batch had the claim before
}

// Do applies edits to their templates. The edits must have passed
// [catalog.ValidateEdits]. old has the current template for each edit; nil if it does
// not exist or the edit creates it. newID returns the id of each new template. An error
// is an [*catalog.EditError].
func Do(edits []catalog.Edit, old []*catalog.Template, newID func() int64, now time.Time) (*Batch, error) {
	b := &Batch{Templates: make([]catalog.Template, len(edits)), Done: make([]catalog.Edited, len(edits)), edits: edits}
	for i, e := range edits {
		if e.ID != 0 && old[i] == nil {
			return nil, b.refuse(i, catalog.ErrNoTemplate)
		}
		var err error
		if b.Templates[i], b.Done[i], err = Apply(old[i], e, now); err != nil {
			return nil, b.refuse(i, err)
		}
	}
	if err := b.claim(old); err != nil {
		return nil, err
	}
	for i, e := range edits {
		if e.ID == 0 {
			b.Templates[i].ID = newID()
			b.Done[i].ID = b.Templates[i].ID
		}
	}
	return b, nil
}

// Taken returns the error for a batch if another template has one of its claims; by is
// the id of that template.
func (b *Batch) Taken(c Claim, by int64) error {
	return b.refuse(c.Edit, &catalog.DuplicateError{Attributes: claimedBy(c.Text), Of: by})
}

func (b *Batch) refuse(edit int, err error) error {
	return &catalog.EditError{Index: edit, ID: b.edits[edit].ID, Err: err}
}

// claim computes the released and the new claims of the batch.
func (b *Batch) claim(old []*catalog.Template) error {
	had := map[string]int{}
	for i, t := range old {
		for _, text := range claimsOf(t) {
			had[text] = i
		}
	}
	has := map[string]int{}
	for i := range b.Templates {
		for _, text := range Claims(&b.Templates[i]) {
			from, moved := had[text]
			if other, twice := has[text]; twice {
				late := i
				if moved && from == i { // the conflict belongs to the other edit
					late, other = other, i
				}
				return b.Taken(Claim{Text: text, Edit: late}, b.edits[other].ID)
			}
			has[text] = i
			if !moved || from != i {
				b.Claimed = append(b.Claimed, Claim{Text: text, Edit: i, Moved: moved})
			}
		}
	}
	maps.DeleteFunc(had, func(text string, _ int) bool { _, still := has[text]; return still })
	b.Released = slices.Sorted(maps.Keys(had))
	return nil
}

func claimsOf(t *catalog.Template) []string {
	if t == nil {
		return nil
	}
	return Claims(t)
}

// Apply returns the template after one edit. It does not change old. If old is nil, the
// edit creates a template, which has no id yet.
func Apply(old *catalog.Template, e catalog.Edit, now time.Time) (catalog.Template, catalog.Edited, error) {
	now = now.UTC().Truncate(time.Microsecond)
	var t catalog.Template
	if old == nil {
		t = catalog.Template{Values: catalog.WithDefaults(e.Set), CreatedAt: now, ChangedAt: now}
	} else {
		t = *old
		if len(e.Set) > 0 {
			t.Values = maps.Clone(old.Values)
			maps.Copy(t.Values, e.Set)
			t.ChangedAt = now
		}
	}
	done := catalog.Edited{ID: t.ID}
	t.Modules, done.Bound, done.Unbound = rebind(t.Modules, e)
	if len(t.Modules) > catalog.MaxBound {
		return catalog.Template{}, catalog.Edited{}, &procfleet.FieldError{
			Field: "bind", Problem: fmt.Sprintf("makes it %d modules: at most %d are allowed", len(t.Modules), catalog.MaxBound),
		}
	}
	return t, done, nil
}

// rebind returns the modules after an edit, and the modules that it bound and unbound.
// Each list is sorted by bytes.
func rebind(modules []string, e catalog.Edit) (after, bound, unbound []string) {
	was := make(map[string]bool, len(modules))
	for _, m := range modules {
		was[m] = true
	}
	for _, m := range e.Bind {
		if !was[m] {
			was[m] = true
			bound = append(bound, m)
		}
	}
	for _, m := range e.Unbind {
		if was[m] {
			delete(was, m)
			unbound = append(unbound, m)
		}
	}
	slices.Sort(bound)
	slices.Sort(unbound)
	if bound == nil && unbound == nil {
		return modules, nil, nil
	}
	return slices.Sorted(maps.Keys(was)), bound, unbound
}

// Claims returns the claims of a template, which no other template of the business may
// have: one text for each set of [catalog.Unique] in which no attribute is empty.
func Claims(t *catalog.Template) []string {
	var claims []string
	for i, set := range catalog.Unique() {
		if claim, ok := claimOf(i, set, t); ok {
			claims = append(claims, claim)
		}
	}
	return claims
}

// claimOf returns the claim of a template for a set of attributes. The text begins with
// the number of the set, and each value is preceded by its length, so that different
// values never produce the same text.
func claimOf(number int, set []catalog.Attribute, t *catalog.Template) (claim string, ok bool) {
	var b strings.Builder
	b.WriteString(strconv.Itoa(number))
	for _, a := range set {
		v := t.Values[a]
		if v.IsEmpty() {
			return "", false
		}
		text := v.String()
		b.WriteString(" " + strconv.Itoa(len(text)) + ":" + text)
	}
	return b.String(), true
}

// claimedBy returns the attributes of a claim.
func claimedBy(claim string) []catalog.Attribute {
	number, _, _ := strings.Cut(claim, " ")
	i, err := strconv.Atoi(number)
	if unique := catalog.Unique(); err == nil && i >= 0 && i < len(unique) {
		return unique[i]
	}
	return nil
}
