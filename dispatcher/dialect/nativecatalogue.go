package dialect

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// nativeBusiness is the business that a path has for {biz}. The parameter
// account is whose business it is, [catalog.DefaultAccount] without.
func nativeBusiness(r *Request) (catalog.Business, error) {
	id, err := strconv.ParseInt(r.Wildcards["biz"], 10, 64)
	if err != nil {
		return catalog.Business{}, invalid("biz", "is not the id of a business, a number of 1 or more")
	}
	b := catalog.Business{Account: cmp.Or(r.Query.Get("account"), catalog.DefaultAccount), ID: id}
	if err := b.Validate(); err != nil {
		return catalog.Business{}, refused(err, func(field string) string {
			if field == "business" {
				return "biz"
			}
			return field
		})
	}
	return b, nil
}

// decodeCatalogueSearch asks for processes by name; the parameter name is a
// part of it, or with exact all of it.
func decodeCatalogueSearch(r *Request) (TemplateSearch, error) {
	b, err := nativeBusiness(r)
	if err != nil {
		return TemplateSearch{}, err
	}
	q := TemplateSearch{Business: b, Search: catalog.Search{Sort: catalog.AttrName}}
	if q.Search.Start, err = pageStart(r); err != nil {
		return TemplateSearch{}, err
	}
	if q.Search.Limit, err = pageLimit(r); err != nil {
		return TemplateSearch{}, err
	}
	exact, err := truth(r, "exact")
	if err != nil {
		return TemplateSearch{}, err
	}
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
	return q, nil
}

// nativeTemplate is a process of the catalogue as callers see it: its
// attributes stand beside what else is known of it.
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

// value appends an attribute's value.
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
	return Reply{Status: http.StatusOK, Body: append(b, '}')}
}

// Members of a process that are no attributes. What the list says beside them
// is ignored in what is saved, so that a list can be sent back.
const (
	memberModules = "modules"
	memberID      = "id"
	memberCreated = "created_at"
	memberChanged = "changed_at"
)

func decodeNamedTemplates(r *Request) (NamedTemplates, error) {
	b, err := nativeBusiness(r)
	if err != nil {
		return NamedTemplates{}, err
	}
	plan, err := truth(r, "plan")
	if err != nil {
		return NamedTemplates{}, err
	}
	q := NamedTemplates{Business: b, Plan: plan != nil && *plan}
	var params struct {
		Processes []map[string]json.RawMessage `json:"processes"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return NamedTemplates{}, err
	}
	switch n := len(params.Processes); {
	case n == 0:
		return NamedTemplates{}, invalid("processes", "is empty; name at least one process")
	case n > catalog.MaxEdits:
		return NamedTemplates{}, &Error{
			Kind: TooLarge, Field: "processes", Problem: fmt.Sprintf("are %d, at most %d are saved at once; divide the request", n, catalog.MaxEdits),
		}
	}
	first := make(map[string]int, len(params.Processes))
	for i, members := range params.Processes {
		field := fmt.Sprintf("processes[%d]", i)
		t, err := decodeNamedTemplate(members, field)
		if err != nil {
			return NamedTemplates{}, err
		}
		if earlier, twice := first[t.Name()]; twice {
			return NamedTemplates{}, invalid(field+".name", "%q is that of processes[%d] too", t.Name(), earlier)
		}
		first[t.Name()] = i
		q.Templates = append(q.Templates, t)
	}
	return q, nil
}

// decodeNamedTemplate reads one process, which stands at field.
func decodeNamedTemplate(members map[string]json.RawMessage, field string) (NamedTemplate, error) {
	t := NamedTemplate{Set: make(map[catalog.Attribute]catalog.Value, len(members))}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		var err error
		switch name {
		case memberID, memberCreated, memberChanged:
		case memberModules:
			t.Modules, err = decodeModules(members[name], field+"."+name)
		default:
			var v catalog.Value
			if err = v.UnmarshalJSON(members[name]); err != nil {
				err = invalid(field+"."+name, "%s", err.Error())
			}
			t.Set[catalog.Attribute(name)] = v
		}
		if err != nil {
			return NamedTemplate{}, err
		}
	}
	if wrong, ok := errors.AsType[*catalog.ValueError](catalog.CheckValues(t.Set, true)); ok {
		return NamedTemplate{}, invalid(field+"."+string(wrong.Attribute), "%s", wrong.Problem)
	}
	return t, nil
}

// decodeModules reads names of modules. Only null is nil.
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

// problemOf is what is wrong without the field, which the caller names.
func problemOf(err error) string {
	if f, ok := errors.AsType[*procfleet.FieldError](err); ok {
		return f.Problem
	}
	return err.Error()
}

func nativeTemplatesSaved(q *NamedTemplates, done TemplatesSaved, _ string) Reply {
	type saved struct {
		Name    string      `json:"name"`
		ID      int64       `json:"id,omitempty"`
		Outcome SaveOutcome `json:"outcome"`
		Changes []string    `json:"changes"` // members of a process
	}
	answer := struct {
		Processes []saved           `json:"processes"`
		Task      *procfleet.TaskID `json:"task"` // null if there is none
	}{Processes: make([]saved, len(done.Templates))}
	if done.Task != "" {
		answer.Task = &done.Task
	}
	for i, t := range done.Templates {
		changes := make([]string, len(t.Changes))
		for n, a := range t.Changes {
			if changes[n] = string(a); a == catalog.AttrModule {
				changes[n] = memberModules
			}
		}
		answer.Processes[i] = saved{q.Templates[i].Name(), t.ID, t.Outcome, changes}
	}
	return Reply{Status: http.StatusOK, Body: answer}
}
