package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/label"
)

// maxSelected is the maximum number of processes that one submission may select.
const maxSelected = 10_000

// selector resolves selections in the catalog of one business. It reads the topology
// once, so that all hosts of a submission come from the same version.
type selector struct {
	store    Store
	business catalog.Business
	known    bool // the business has a topology
	modules  map[string][]catalog.PlacedModule
	sets     map[string]bool
	labels   labelMatcher
	left     int // number of further processes that may be selected
}

func newSelector(ctx context.Context, store Store, business string) (*selector, error) {
	b, err := catalog.ParseBusiness(business)
	if err != nil {
		return nil, &dialect.Error{Kind: dialect.InvalidField, Problem: err.Error()}
	}
	topology, err := placed(ctx, store, b)
	if err != nil {
		return nil, err
	}
	c := &selector{
		store: store, business: b, known: topology.Version > 0,
		labels:  labelMatcher{store: store, known: map[procfleet.Host]map[string]string{}},
		modules: topology.ModulesByName(), sets: make(map[string]bool, len(topology.Sets)), left: maxSelected,
	}
	for i := range topology.Sets {
		c.sets[topology.Sets[i].Name] = true
	}
	return c, nil
}

type selected struct {
	parts    []part
	problems []v1.PlanProblem
}

func (s *selected) add(reason v1.ProblemReason, t *catalog.Template, format string, args ...any) {
	p := v1.PlanProblem{Reason: reason, Message: fmt.Sprintf(format, args...)}
	if t != nil {
		p.ProcessID, p.Name = t.ID, t.Name()
	}
	s.problems = append(s.problems, p)
}

// choose returns the processes of a selection with their hosts. It calls count with the
// number of hosts of each process; an error of count ends the selection.
func (c *selector) choose(ctx context.Context, action procfleet.Action, sel *procfleet.Selection, count func(hosts int) error) (*selected, error) {
	found := &selected{}
	asked := filters{sets: nameSet(sel.Sets), modules: nameSet(sel.Modules)}
	templates, err := c.templates(ctx, sel, found)
	if err != nil {
		return nil, err
	}
	if c.left -= len(templates); c.left < 0 {
		return nil, tooLarge("the selection has more than %d processes of the catalog; divide the request", maxSelected)
	}
	c.checkFilters(sel, found)
	for i := range templates {
		t := &templates[i]
		placed := c.among(sel.Hosts, t, c.placements(t, asked, found), found)
		if placed, err = c.labeled(ctx, sel.Labels, t, placed, found); err != nil {
			return nil, err
		}
		if err := count(len(placed)); err != nil {
			return nil, err
		}
		if len(placed) == 0 {
			continue
		}
		if unfit := t.SpecProblems(c.business, action); len(unfit) > 0 {
			found.add(v1.UnfitSpec, t, "%s is not possible: %s", action, strings.Join(unfit, "; "))
			continue
		}
		found.parts = append(found.parts, newPart(action, t.ID, t.Spec(c.business), placed))
	}
	return found, nil
}

// templates returns the processes of a selection: in request order if they are selected
// by id, or sorted by name if they are selected by a pattern.
func (c *selector) templates(ctx context.Context, sel *procfleet.Selection, found *selected) ([]catalog.Template, error) {
	if sel.Name != "" {
		all, err := c.matching(ctx, sel.Name)
		if err == nil && len(all) == 0 {
			found.add(v1.UnknownProcess, nil, "no process of business %s has a name that matches %q", c.business.Namespace(), sel.Name)
		}
		return all, err
	}
	ids := distinct(sel.Processes)
	known, err := c.store.Templates(ctx, c.business, ids)
	if err != nil {
		return nil, fmt.Errorf("read %d processes of business %s: %w", len(ids), c.business.Namespace(), err)
	}
	all := make([]catalog.Template, 0, len(ids))
	for i, t := range known {
		if t == nil {
			found.add(v1.UnknownProcess, &catalog.Template{ID: ids[i]}, "is not in the catalogue of business %s", c.business.Namespace())
			continue
		}
		all = append(all, *t)
	}
	return all, nil
}

// distinct returns a list without repetitions, in its order.
func distinct[T comparable](list []T) []T {
	seen := make(map[T]bool, len(list))
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool {
		again := seen[v]
		seen[v] = true
		return again
	})
}

// matching returns the processes whose names match a pattern, sorted by name. It reads
// pages by ascending id. Each page begins after the last id of the previous page, so
// that processes created or deleted in between do not hide others.
func (c *selector) matching(ctx context.Context, pattern string) ([]catalog.Template, error) {
	var found []catalog.Template
	after := int64(0)
	for {
		page, total, err := c.store.SearchTemplates(ctx, c.business, catalog.Search{
			Conditions: append(literally(pattern), catalog.Condition{
				Attribute: catalog.AttrID, Comparison: catalog.More, Values: []catalog.Value{catalog.Number(after)},
			}),
			Limit: catalog.MaxTemplatePage,
		})
		if err != nil {
			return nil, fmt.Errorf("search processes of business %s: %w", c.business.Namespace(), err)
		}
		for i := range page {
			if matches, _ := path.Match(pattern, page[i].Name()); matches { // the pattern was validated before
				found = append(found, page[i])
			}
		}
		// A page may have fewer processes than its limit, because processes may be
		// deleted while it is read.
		if total <= catalog.MaxTemplatePage || len(page) == 0 || len(found) > c.left {
			break
		}
		after = page[len(page)-1].ID
	}
	slices.SortFunc(found, func(a, b catalog.Template) int { return cmp.Compare(a.Name(), b.Name()) })
	return found, nil
}

// literally returns a search condition that every match of the pattern meets: the name
// contains the longest literal text of the pattern.
func literally(pattern string) []catalog.Condition {
	if strings.ContainsAny(pattern, `[\`) {
		return nil
	}
	c := catalog.Condition{Attribute: catalog.AttrName, Comparison: catalog.Is, Values: []catalog.Value{catalog.Text(pattern)}}
	if strings.ContainsAny(pattern, "*?") {
		texts := strings.FieldsFunc(pattern, func(r rune) bool { return r == '*' || r == '?' })
		if len(texts) == 0 {
			return nil
		}
		longest := slices.MaxFunc(texts, func(a, b string) int { return len(a) - len(b) })
		c.Comparison, c.Values = catalog.Contains, []catalog.Value{catalog.Text(longest)}
	}
	return []catalog.Condition{c}
}

func (c *selector) checkFilters(sel *procfleet.Selection, found *selected) {
	for _, name := range sel.Sets {
		if !c.sets[name] {
			found.add(v1.UnknownSet, nil, "there is no set %q in the topology of business %s", name, c.business.Namespace())
		}
	}
	for _, name := range sel.Modules {
		if c.modules[name] == nil {
			found.add(v1.UnknownModule, nil, "there is no module %q in the topology of business %s", name, c.business.Namespace())
		}
	}
}

// filters are the sets and modules that a selection names; nil means all.
type filters struct{ sets, modules map[string]bool }

// hostsOf returns the hosts of the modules with the names, or of all modules without names.
func (c *selector) hostsOf(names []string) []procfleet.Host {
	asked := nameSet(names)
	var hosts []procfleet.Host
	for name, modules := range c.modules {
		if asked != nil && !asked[name] {
			continue
		}
		for _, m := range modules {
			hosts = append(hosts, m.Hosts...)
		}
	}
	return hosts
}

func nameSet(names []string) map[string]bool {
	if len(names) == 0 {
		return nil
	}
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// placements returns the hosts of a process's modules that pass the filters. It adds
// problems for unknown modules and for modules without hosts.
func (c *selector) placements(t *catalog.Template, asked filters, found *selected) []catalog.Placement {
	var chosen []catalog.PlacedModule
	var unknown, empty []string
	for _, name := range t.Modules {
		if asked.modules != nil && !asked.modules[name] {
			continue
		}
		if c.modules[name] == nil {
			unknown = append(unknown, name)
		}
		for _, m := range c.modules[name] {
			if asked.sets != nil && !asked.sets[m.Set] {
				continue
			}
			chosen = append(chosen, m)
			if len(m.Hosts) == 0 {
				empty = append(empty, m.Path())
			}
		}
	}
	switch {
	case len(t.Modules) == 0:
		found.add(v1.NotBound, t, "is bound to no module")
	case len(unknown) > 0 && !c.known:
		found.add(v1.UnknownModule, t, "is bound to %s, and business %s has no topology", several(unknown), c.business.Namespace())
	case len(unknown) > 0:
		found.add(v1.UnknownModule, t, "is bound to %s, which the topology of business %s does not contain", several(unknown), c.business.Namespace())
	case len(chosen) == 0:
		found.add(v1.FilteredOut, t, "is bound to %s, and the requested sets and modules exclude all of them", several(t.Modules))
	}
	if len(empty) > 0 {
		found.add(v1.NoHosts, t, "has no hosts in %s", several(empty))
	}
	return catalog.Placements(chosen)
}

// among returns the placements on the hosts; no hosts = all placements. It adds a problem if
// the process runs on none of them.
func (c *selector) among(hosts []procfleet.Host, t *catalog.Template, placed []catalog.Placement, found *selected) []catalog.Placement {
	if len(hosts) == 0 || len(placed) == 0 {
		return placed
	}
	asked := make(map[procfleet.Host]bool, len(hosts))
	for _, h := range hosts {
		asked[h] = true
	}
	placed = slices.DeleteFunc(placed, func(p catalog.Placement) bool { return !asked[p.Host] })
	if len(placed) == 0 {
		found.add(v1.FilteredOut, t, "none of the %d requested hosts is in its modules", len(asked))
	}
	return placed
}

// labeled returns the placements on hosts that the filters of labels match. It adds a problem
// if the process runs on none of them.
func (c *selector) labeled(ctx context.Context, texts []string, t *catalog.Template, placed []catalog.Placement, found *selected) ([]catalog.Placement, error) {
	if len(texts) == 0 || len(placed) == 0 {
		return placed, nil
	}
	filters := make([]label.Filter, len(texts))
	for i, text := range texts {
		var err error
		if filters[i], err = label.ParseFilter(text); err != nil {
			return nil, &dialect.Error{Kind: dialect.InvalidField, Field: "select.labels", Problem: err.Error()}
		}
	}
	hosts := make([]procfleet.Host, len(placed))
	for i := range placed {
		hosts[i] = placed[i].Host
	}
	if err := c.labels.read(ctx, hosts); err != nil {
		return nil, err
	}
	placed = slices.DeleteFunc(placed, func(p catalog.Placement) bool { return !c.labels.matches(p.Host, filters) })
	if len(placed) == 0 {
		found.add(v1.FilteredOut, t, "labels match none of the %d hosts in its modules", len(hosts))
	}
	return placed, nil
}

// several joins names. It lists at most five and counts the others.
func several(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// refusal returns the error that rejects a selection, or nil. The whole selection is
// rejected if one of its processes does not exist or cannot be operated, because the
// caller expects an operation on each of them. A process without modules is no error.
func (s *selected) refusal(field string) error {
	wrong := slices.DeleteFunc(slices.Clone(s.problems), func(p v1.PlanProblem) bool {
		return p.Reason != v1.UnknownProcess && p.Reason != v1.UnfitSpec
	})
	if len(wrong) > 0 {
		return &dialect.Error{Kind: dialect.InvalidField, Field: field, Problem: inShort(wrong)}
	}
	if len(s.parts) == 0 {
		return &dialect.Error{Kind: dialect.InvalidField, Field: field, Problem: "selects no operation: " + inShort(s.problems)}
	}
	return nil
}

// inShort joins the problems that fit an error and counts the others.
func inShort(problems []v1.PlanProblem) string {
	texts := make([]string, 0, len(problems))
	for i := range problems {
		p := &problems[i]
		text := p.Message
		if p.ProcessID != 0 {
			text = strings.TrimSuffix(fmt.Sprintf("process %d %s", p.ProcessID, p.Name), " ") + " " + p.Message
		}
		texts = append(texts, text)
	}
	text, more := dialect.JoinProblems(texts, "; ")
	if more > 0 {
		text += fmt.Sprintf(" (and %d more problems, which a plan shows)", more)
	}
	return text
}

func selectField(sub *procfleet.Submission, i int) string {
	if len(sub.Operations) == 1 {
		return "select"
	}
	return fmt.Sprintf("operations[%d].select", i)
}
