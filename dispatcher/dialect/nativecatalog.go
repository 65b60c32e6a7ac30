package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// decodeCatalogSearch decodes a search for processes by name and module. The parameter
// name is a part of the name, or, with exact=true, the whole name.
func decodeCatalogSearch(r *Request) (TemplateSearch, error) {
	from := queryReader{Request: r}
	q := TemplateSearch{Business: from.business(), Search: catalog.Search{Sort: catalog.AttrName, Start: from.start(), Limit: from.limit()}}
	exact := from.truth("exact")
	by := func(a catalog.Attribute, c catalog.Comparison, text string) {
		if text != "" {
			q.Search.Conditions = append(q.Search.Conditions, catalog.Condition{Attribute: a, Comparison: c, Values: []catalog.Value{catalog.Text(text)}})
		}
	}
	comparison := catalog.Contains
	if exact != nil && *exact {
		comparison = catalog.Is
	}
	by(catalog.AttrName, comparison, r.Query.Get("name"))
	by(catalog.AttrModule, catalog.Is, r.Query.Get("module"))
	return q, from.err
}

// nativeTemplate appends a [v1.CatalogProcess]. The attributes are members of the
// process, in the order of the catalog's rules.
func nativeTemplate(b rendered, t *catalog.Template) rendered {
	b = append(b.comma(), '{').number("id", t.ID)
	for _, rule := range catalog.AttributeRules() {
		b = b.name(string(rule.Attribute)).value(t.Values[rule.Attribute])
	}
	b = append(b.name("modules"), '[')
	for _, module := range t.Modules {
		b = b.comma().quote(module)
	}
	return append(append(b, ']').alwaysTime("created_at", t.CreatedAt).alwaysTime("changed_at", t.ChangedAt), '}')
}

func (b rendered) value(v catalog.Value) rendered {
	if text, ok := v.AsText(); ok {
		return b.quote(text)
	}
	return append(b, v.String()...)
}

func nativeTemplates(q *TemplateSearch, page []catalog.Template, total int, _ string) Reply {
	b := append(rendered(`{`).name("processes"), '[')
	for i := range page {
		b = nativeTemplate(b, &page[i])
	}
	b = append(b, ']').number("total", int64(total)).text("next", nextStart(q.Search.Start, len(page), total))
	return ok(append(b, '}'))
}

// decodeNamedTemplates decodes a [v1.CatalogRequest]. It ignores the members of a
// process that are not attributes, such as its id, so that a caller can send a page
// back.
func decodeNamedTemplates(r *Request) (NamedTemplates, error) {
	from := queryReader{Request: r}
	q := NamedTemplates{Business: from.business()}
	plan := from.truth("plan")
	q.Plan = plan != nil && *plan
	var params struct {
		Processes []map[string]json.RawMessage `json:"processes"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return NamedTemplates{}, err
	}
	switch n := len(params.Processes); {
	case n == 0:
		return q, errors.Join(from.err, invalid("processes", "is empty; name at least one process"))
	case n > catalog.MaxEdits:
		return NamedTemplates{}, &Error{
			Kind: TooLarge, Field: "processes", Problem: fmt.Sprintf("are %d, at most %d are saved at once; divide the request", n, catalog.MaxEdits),
		}
	}
	errs := []error{from.err}
	first := make(map[string]int, len(params.Processes))
	for i, members := range params.Processes {
		field := fmt.Sprintf("processes[%d]", i)
		t, err := decodeNamedTemplate(members, field)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if earlier, twice := first[t.Name()]; twice {
			errs = append(errs, invalid(field+".name", "%q is that of processes[%d] too", t.Name(), earlier))
		}
		first[t.Name()] = i
		q.Templates = append(q.Templates, t)
	}
	return q, errors.Join(errs...)
}

// decodeNamedTemplate decodes the process whose path in the body is field.
func decodeNamedTemplate(members map[string]json.RawMessage, field string) (NamedTemplate, error) {
	t := NamedTemplate{Set: make(map[catalog.Attribute]catalog.Value, len(members))}
	known := []string{v1.MemberModules}
	for _, rule := range catalog.AttributeRules() {
		known = append(known, string(rule.Attribute))
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(members)) {
		var err error
		switch name {
		case v1.MemberID, v1.MemberCreatedAt, v1.MemberChangedAt:
		case v1.MemberModules:
			t.Modules, err = decodeModules(members[name], field+"."+name)
		default:
			if !slices.Contains(known, name) {
				errs = append(errs, unknown(field, name, known))
				continue
			}
			var v catalog.Value
			if err = v.UnmarshalJSON(members[name]); err != nil {
				err = invalid(field+"."+name, "%s", err.Error())
			}
			t.Set[catalog.Attribute(name)] = v
		}
		if err != nil {
			errs = append(errs, err)
		}
		if len(errs) > maxProblems {
			break
		}
	}
	if errs != nil {
		return NamedTemplate{}, errors.Join(errs...)
	}
	if wrong, ok := errors.AsType[*catalog.ValueError](catalog.CheckValues(t.Set, true)); ok {
		return NamedTemplate{}, invalid(field+"."+string(wrong.Attribute), "%s", wrong.Problem)
	}
	return t, nil
}

// decodeModules decodes module names, and returns them sorted and without duplicates;
// nil only for null.
func decodeModules(text json.RawMessage, field string) ([]string, error) {
	var modules []string
	if err := json.Unmarshal(text, &modules); err != nil {
		return nil, decodeError(err, field)
	}
	slices.Sort(modules)
	modules = slices.Compact(modules)
	if err := (catalog.Edit{ID: 1, Bind: modules}).Validate(); err != nil {
		return nil, invalid(field, "%s", problemOf(err))
	}
	return modules, nil
}

// problemOf returns the problem of an error without its field, for callers that report a
// field of their own.
func problemOf(err error) string {
	if f, ok := errors.AsType[*procfleet.FieldError](err); ok {
		return f.Problem
	}
	return err.Error()
}

func nativeTemplatesSaved(q *NamedTemplates, done TemplatesSaved, _ string) Reply {
	answer := v1.CatalogSaved{Processes: make([]v1.SavedProcess, len(done.Templates))}
	if done.Task != "" {
		answer.Task = &done.Task
	}
	for i, t := range done.Templates {
		changes := make([]string, len(t.Changes))
		for n, a := range t.Changes {
			if changes[n] = string(a); a == catalog.AttrModule {
				changes[n] = v1.MemberModules
			}
		}
		answer.Processes[i] = v1.SavedProcess{Name: q.Templates[i].Name(), ID: t.ID, Outcome: t.Outcome, Changes: changes}
	}
	return ok(answer)
}

// driftHosts is the default maximum number of listed hosts.
const driftHosts = 1000

func decodeCatalogID(r *Request) (TemplateQuery, error) {
	from := queryReader{Request: r}
	q := TemplateQuery{Business: from.business()}
	var err error
	if q.ID, err = strconv.ParseInt(r.ID, 10, 64); err != nil || q.ID < 1 {
		from.fail("id", "is not the id of a process, a number of 1 or more")
	}
	return q, from.err
}

func nativeTemplateDeleted(_ *TemplateQuery, existed bool, _ string) Reply {
	return ok(v1.CatalogDeleted{Deleted: existed})
}

func decodeDriftQuery(r *Request) (DriftQuery, error) {
	from := queryReader{Request: r}
	q := DriftQuery{Business: from.business(), Modules: r.Query["module"], Limit: driftHosts}
	var err error
	if q.ID, err = strconv.ParseInt(r.ID, 10, 64); err != nil || q.ID < 1 {
		from.fail("id", "is not the id of a process, a number of 1 or more")
	}
	if len(q.Modules) > catalog.MaxBound {
		from.fail("module", "is there more than %d times", catalog.MaxBound)
	}
	if text := r.Query.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 0 {
			from.fail("limit", "is not a number of 0 or more")
		}
	}
	return q, from.err
}

func nativeDrift(_ *DriftQuery, d *Drift, _ string) Reply {
	answer := v1.Drift{
		ID: d.ID, Namespace: d.Process.Namespace, Name: d.Process.Name, Total: d.Total, Counts: driftCounts(d.Counts),
		Modules: make([]v1.ModuleDrift, len(d.Modules)), MissingModules: append([]string{}, d.Missing...),
		Elsewhere: append([]procfleet.Host{}, d.Elsewhere...), Hosts: make([]v1.HostDrift, len(d.Hosts)),
	}
	for i, m := range d.Modules {
		answer.Modules[i] = v1.ModuleDrift{Set: m.Set, Module: m.Module, Total: m.Hosts, Counts: driftCounts(m.Counts)}
	}
	for i := range d.Hosts {
		h := &d.Hosts[i]
		answer.Hosts[i] = v1.HostDrift{
			Host: h.Host, AgentID: h.AgentID, Modules: h.Modules, State: h.State(), Remarks: append([]v1.DriftState{}, h.Remarks...),
			Reported: newNativeReported(h.Reported, h.ReportedAt),
		}
	}
	return ok(answer)
}

func driftCounts(n map[v1.DriftState]int) v1.DriftCounts {
	return v1.DriftCounts{
		AgentMissing: n[v1.DriftAgentMissing], Down: n[v1.DriftDown], Running: n[v1.DriftRunning],
		SpecDiffers: n[v1.DriftSpecDiffers], Unsupervised: n[v1.DriftUnsupervised],
	}
}
