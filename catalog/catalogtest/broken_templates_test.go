package catalogtest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Each of these stores violates one rule about templates or topologies, and is otherwise correct.

// editing changes edits before it passes them on.
type editing struct {
	store
	change func(e *catalog.Edit)
}

func (s editing) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	if catalog.ValidateEdits(edits) != nil {
		return s.store.EditTemplates(ctx, b, edits)
	}
	edits = slices.Clone(edits)
	for i := range edits {
		edits[i].Set = maps.Clone(edits[i].Set)
		s.change(&edits[i])
	}
	return s.store.EditTemplates(ctx, b, edits)
}

func portsAsText(e *catalog.Edit) {
	if v, said := e.Set[catalog.AttrPort]; said {
		e.Set[catalog.AttrPort] = catalog.Text(v.String())
	}
}

func nothingByDefault(e *catalog.Edit) {
	for _, rule := range catalog.AttributeRules() {
		if _, said := e.Set[rule.Attribute]; !said && e.ID == 0 {
			e.Set[rule.Attribute] = catalog.Value{}
		}
	}
}

func descriptionAnew(e *catalog.Edit) {
	if _, said := e.Set[catalog.AttrDescription]; !said && e.Set != nil {
		e.Set[catalog.AttrDescription] = catalog.Text("")
	}
}

func lowerNames(e *catalog.Edit) {
	if name, said := e.Set[catalog.AttrName]; said {
		e.Set[catalog.AttrName] = catalog.Text(strings.ToLower(name.String()))
	}
}

func namesOnly(e *catalog.Edit) {
	delete(e.Set, catalog.AttrFuncID)
	delete(e.Set, catalog.AttrArgsPattern)
}

type shuffledTemplates struct{ store }

func (s shuffledTemplates) Templates(ctx context.Context, b catalog.Business, ids []int64) ([]*catalog.Template, error) {
	ts, err := s.store.Templates(ctx, b, ids)
	slices.Reverse(ts)
	return ts, err
}

// oneByOne applies the edits of a call one after the other instead of atomically.
type oneByOne struct{ store }

func (s oneByOne) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	if err := catalog.ValidateEdits(edits); err != nil {
		return nil, err
	}
	var all []catalog.Edited
	for i := range edits {
		done, err := s.store.EditTemplates(ctx, b, edits[i:i+1])
		if one, ok := errors.AsType[*catalog.EditError](err); ok {
			one.Index = i
		}
		if err != nil {
			return nil, err
		}
		all = append(all, done...)
	}
	return all, nil
}

// forgiving omits invalid edits instead of rejecting them.
type forgiving struct{ store }

func (s forgiving) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	edits = slices.DeleteFunc(slices.Clone(edits), func(e catalog.Edit) bool { return e.Validate() != nil })
	return s.store.EditTemplates(ctx, b, edits)
}

// countingByBusiness assigns ids that are unique only within a business.
type countingByBusiness struct {
	store
	mu  *sync.Mutex
	ids map[catalog.Business][]int64
}

func newCountingByBusiness(s store) store {
	return countingByBusiness{s, new(sync.Mutex), map[catalog.Business][]int64{}}
}

func (s countingByBusiness) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	done, err := s.store.EditTemplates(ctx, b, edits)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range done {
		s.ids[b] = append(s.ids[b], done[i].ID)
		done[i].ID = int64(len(s.ids[b]))
	}
	return done, err
}

func (s countingByBusiness) DeleteTemplate(ctx context.Context, b catalog.Business, id int64) (bool, error) {
	return s.store.DeleteTemplate(ctx, b, s.ids[b][id-1])
}

// accountless ignores the account of a business.
type accountless struct{ store }

func oneAccount(b catalog.Business) catalog.Business {
	if b.Validate() == nil {
		b.Account = catalog.DefaultAccount
	}
	return b
}

func (s accountless) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	return s.store.EditTemplates(ctx, oneAccount(b), edits)
}

func (s accountless) SetTopology(ctx context.Context, b catalog.Business, t catalog.Topology) (int64, error) {
	return s.store.SetTopology(ctx, oneAccount(b), t)
}

func (s accountless) Topology(ctx context.Context, b catalog.Business) (*catalog.Topology, error) {
	return s.store.Topology(ctx, oneAccount(b))
}

// inventive gives a template another name if its name is already in use.
type inventive struct{ store }

func (s inventive) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	for n := 0; ; n++ {
		done, err := s.store.EditTemplates(ctx, b, edits)
		if _, ok := errors.AsType[*catalog.DuplicateError](err); !ok || n > 100 {
			return done, err
		}
		edits = slices.Clone(edits)
		last := &edits[len(edits)-1]
		last.Set = maps.Clone(last.Set)
		last.Set[catalog.AttrName] = catalog.Text(fmt.Sprint(last.Set[catalog.AttrName], n))
	}
}

// monogamous binds each template to at most one module.
type monogamous struct{ store }

func (s monogamous) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	edits = slices.Clone(edits)
	for i, e := range edits {
		ts, err := s.Templates(ctx, b, []int64{e.ID})
		if err != nil {
			return nil, err
		}
		if ts[0] != nil && len(e.Bind) > 0 {
			edits[i].Unbind = slices.DeleteFunc(slices.Clone(ts[0].Modules), func(m string) bool { return slices.Contains(e.Bind, m) })
		}
	}
	return s.store.EditTemplates(ctx, b, edits)
}

type fewEdits struct{ store }

func (s fewEdits) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	if len(edits) > 500 {
		return nil, errTooMany
	}
	return s.store.EditTemplates(ctx, b, edits)
}

type newAlways struct{ store }

func (s newAlways) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	done, err := s.store.EditTemplates(ctx, b, edits)
	for i := range done {
		done[i].Bound = slices.Compact(slices.Sorted(slices.Values(edits[i].Bind)))
	}
	return done, err
}

type ruthless struct{ store }

func (s ruthless) DeleteTemplate(ctx context.Context, b catalog.Business, id int64) (bool, error) {
	if ts, err := s.Templates(ctx, b, []int64{id}); err == nil && ts[0] != nil {
		if _, err := s.EditTemplates(ctx, b, []catalog.Edit{{ID: id, Unbind: ts[0].Modules}}); err != nil {
			return false, err
		}
	}
	return s.store.DeleteTemplate(ctx, b, id)
}

// boastful reports every requested deletion as done.
type boastful struct{ store }

func (s boastful) DeleteTemplate(ctx context.Context, b catalog.Business, id int64) (bool, error) {
	_, err := s.store.DeleteTemplate(ctx, b, id)
	if errors.Is(err, catalog.ErrBound) {
		err = nil
	}
	return true, err
}

// remembering returns the previous result of a search again.
type remembering struct {
	store
	mu    *sync.Mutex
	found map[string][]catalog.Template
}

func newRemembering(s store) store {
	return remembering{s, new(sync.Mutex), map[string][]catalog.Template{}}
}

func (s remembering) SearchTemplates(ctx context.Context, b catalog.Business, q catalog.Search) ([]catalog.Template, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprint(b, q)
	if page, known := s.found[key]; known {
		return page, len(page), nil
	}
	page, total, err := s.store.SearchTemplates(ctx, b, q)
	s.found[key] = page
	return page, total, err
}

// searching changes searches before it passes them on.
type searching struct {
	store
	change func(q *catalog.Search)
}

func (s searching) SearchTemplates(ctx context.Context, b catalog.Business, q catalog.Search) ([]catalog.Template, int, error) {
	q.Conditions = slices.Clone(q.Conditions)
	s.change(&q)
	return s.store.SearchTemplates(ctx, b, q)
}

func partsAreEqual(q *catalog.Search) {
	for i, c := range q.Conditions {
		if c.Comparison != catalog.Is {
			continue
		}
		if _, ok := c.Values[0].AsText(); ok {
			q.Conditions[i].Comparison = catalog.Contains
		}
	}
}

func notOfModules(q *catalog.Search) {
	q.Conditions = slices.DeleteFunc(q.Conditions, func(c catalog.Condition) bool {
		return c.Attribute == catalog.AttrModule && c.Comparison == catalog.IsNot
	})
}

func wholeSearchPages(q *catalog.Search) { q.Start = q.Start / max(1, q.Limit) * q.Limit }

func searchableSomehow(q *catalog.Search) {
	if q.Validate() != nil {
		*q = catalog.Search{Limit: 1}
	}
}

// backwards reverses the whole order for a descending search, including templates with equal values.
type backwards struct{ store }

func (s backwards) SearchTemplates(ctx context.Context, b catalog.Business, q catalog.Search) ([]catalog.Template, int, error) {
	if !q.Descending || q.Sort == "" {
		return s.store.SearchTemplates(ctx, b, q)
	}
	all, total, err := s.store.SearchTemplates(ctx, b, catalog.Search{Conditions: q.Conditions, Sort: q.Sort, Limit: catalog.MaxTemplatePage})
	slices.Reverse(all)
	all = all[min(q.Start, len(all)):]
	return all[:min(q.Limit, len(all))], total, err
}

// placing changes topologies before they are stored.
type placing struct {
	store
	change func(t *catalog.Topology)
}

func (s placing) SetTopology(ctx context.Context, b catalog.Business, t catalog.Topology) (int64, error) {
	s.change(&t)
	return s.store.SetTopology(ctx, b, t)
}

func noDefaults(t *catalog.Topology) {
	t.Sets = slices.Clone(t.Sets)
	for i := range t.Sets {
		t.Sets[i].Modules = slices.Clone(t.Sets[i].Modules)
		for j := range t.Sets[i].Modules {
			t.Sets[i].Modules[j].Default = 0
		}
	}
}

func anyVersion(t *catalog.Topology) { t.Version = -1 }

func possible(t *catalog.Topology) {
	if t.Validate() != nil {
		t.Sets = nil
	}
}

type neverAbsent struct{ store }

func (s neverAbsent) Topology(ctx context.Context, b catalog.Business) (*catalog.Topology, error) {
	t, err := s.store.Topology(ctx, b)
	if t.Version == 0 {
		return &catalog.Topology{Version: 1}, err
	}
	return t, err
}

// rehosting changes how the hosts of modules are replaced.
type rehosting struct {
	store
	change func(m *catalog.Module, replaced bool, hosts []procfleet.Host)
}

func (s rehosting) SetModuleHosts(ctx context.Context, b catalog.Business, set, module string, hosts []procfleet.Host) (int64, error) {
	if version, err := s.store.SetModuleHosts(ctx, b, set, module, hosts); err != nil || len(hosts) == 0 {
		return version, err
	}
	old, err := s.Topology(ctx, b)
	if err != nil {
		return 0, err
	}
	changed := catalog.Topology{Version: -1, AutoRegister: old.AutoRegister, Sets: slices.Clone(old.Sets)}
	for i := range changed.Sets {
		changed.Sets[i].Modules = slices.Clone(old.Sets[i].Modules)
		for j := range changed.Sets[i].Modules {
			m := &changed.Sets[i].Modules[j]
			s.change(m, m.Name == module && changed.Sets[i].Name == set, hosts)
		}
	}
	return s.SetTopology(ctx, b, changed)
}

func everySet(m *catalog.Module, _ bool, hosts []procfleet.Host) { m.Hosts = hosts }

func onlyThis(m *catalog.Module, replaced bool, _ []procfleet.Host) {
	if !replaced {
		m.Hosts = nil
	}
}

type fewHosts struct{ store }

func (s fewHosts) SetModuleHosts(ctx context.Context, b catalog.Business, set, module string, hosts []procfleet.Host) (int64, error) {
	return s.store.SetModuleHosts(ctx, b, set, module, hosts[:min(10_000, len(hosts))])
}

func businessDefects() map[string]defect {
	by := func(w wrap, checks ...string) defect { return defect{w, checks} }
	edited := func(change func(*catalog.Edit)) wrap { return func(s store) store { return editing{s, change} } }
	searched := func(change func(*catalog.Search)) wrap { return func(s store) store { return searching{s, change} } }
	placed := func(change func(*catalog.Topology)) wrap { return func(s store) store { return placing{s, change} } }
	rehosted := func(change func(*catalog.Module, bool, []procfleet.Host)) wrap {
		return func(s store) store { return rehosting{s, change} }
	}
	const walks = "any order of edits does what a plain model does, and random searches find what a plain search finds"
	return map[string]defect{
		"a port is a text":                  by(edited(portsAsText), "a template is kept whole"),
		"there are no defaults":             by(edited(nothingByDefault), "what a template does not say has its default", walks),
		"forgets what is not said":          by(edited(descriptionAnew), "an edit sets what it says and leaves the rest"),
		"names have no case":                by(edited(lowerNames), "names of templates are unique in a business", walks),
		"names alone are unique":            by(edited(namesOnly), "function ids, and patterns with programs, are unique where there are any", walks),
		"templates are out of order":        by(func(s store) store { return shuffledTemplates{s} }, "templates are answered in order"),
		"edits are calls of their own":      by(func(s store) store { return oneByOne{s} }, "what is unique is so after all edits of a call", "all edits of a call are done, or none"),
		"leaves out wrong edits":            by(func(s store) store { return forgiving{s} }, "edits that cannot be are refused"),
		"ids are those of a business":       by(newCountingByBusiness, "ids of templates are never given twice"),
		"accounts do not matter":            by(func(s store) store { return accountless{s} }, "businesses and accounts have their own templates", "businesses and accounts have their own topologies"),
		"everybody is first":                by(func(s store) store { return inventive{s} }, "one of many definers of a name is first"),
		"one module at a time":              by(func(s store) store { return monogamous{s} }, "simultaneous edits of the same templates are done one after the other", "simultaneous bindings of one template all count"),
		"no more than 500 edits":            by(func(s store) store { return fewEdits{s} }, "one call defines 1,000 templates"),
		"everything is newly bound":         by(func(s store) store { return newAlways{s} }, "to bind says what is newly bound", walks),
		"deletes what is bound":             by(func(s store) store { return ruthless{s} }, "a bound template is not deleted", walks),
		"everything is deleted":             by(func(s store) store { return boastful{s} }, "of many that delete or bind a template the first has it"),
		"finds what was there":              by(newRemembering, "a search knows of everything that was answered before", "many search while many edit"),
		"a part is the whole":               by(searched(partsAreEqual), "every comparison compares as it says"),
		"a template is always of a module":  by(searched(notOfModules), "modules are searched by each of them"),
		"ties are turned round":             by(func(s store) store { return backwards{s} }, "what is found is sorted", walks),
		"pages of searches are whole":       by(searched(wholeSearchPages), "what is found is paged", walks),
		"something is always found":         by(searched(searchableSomehow), "a search that cannot be is refused"),
		"modules have no default":           by(placed(noDefaults), "a topology is kept whole"),
		"there is a topology before it":     by(func(s store) store { return neverAbsent{s} }, "a business has no topology before its first"),
		"versions do not matter":            by(placed(anyVersion), "a topology is replaced whole, version by version", "one of many replacements of a version wins"),
		"makes a topology possible":         by(placed(possible), "a topology that cannot be is refused"),
		"a module is in all sets":           by(rehosted(everySet), "the hosts of one module are replaced"),
		"other modules lose their hosts":    by(rehosted(onlyThis), "simultaneous changes of modules all count"),
		"no more than 10,000 hosts":         by(func(s store) store { return fewHosts{s} }, "a topology has 20,000 hosts"),
		"reopening loses the business":      by(sound, "the catalogue of a business survives"),
		"edits are heard without a context": by(func(s store) store { return deafToEdits{s} }, "calls end with their context"),
	}
}

type deafToEdits struct{ store }

func (s deafToEdits) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	return s.store.EditTemplates(context.WithoutCancel(ctx), b, edits)
}
