package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// saveTries bounds the attempts to save processes by name while other callers
// create or delete them at the same time.
const saveTries = 5

// saveTemplates creates the named processes, and changes the ones that exist.
func (e *exchange) saveTemplates(ctx context.Context, q *dialect.NamedTemplates, _ string) (dialect.TemplatesSaved, error) {
	ctx, cancel := e.detached(ctx)
	defer cancel()
	for try := 1; ; try++ {
		done, err := e.saveNamed(ctx, q)
		switch {
		case !overtaken(err):
			return done, err
		case try == saveTries:
			return dialect.TemplatesSaved{}, &dialect.Error{
				Kind: dialect.Unavailable, Problem: "other callers create and delete these processes at the same time; nothing was done, try again later", RetryAfter: retryUnavailable,
			}
		}
	}
}

// overtaken reports whether another caller created or deleted a process after its name
// was looked up.
func overtaken(err error) bool {
	duplicate, ok := errors.AsType[*catalog.DuplicateError](err)
	return ok && slices.Equal(duplicate.Attributes, []catalog.Attribute{catalog.AttrName}) || errors.Is(err, catalog.ErrNoTemplate)
}

// saveNamed looks the names up and stores the differences.
func (e *exchange) saveNamed(ctx context.Context, q *dialect.NamedTemplates) (dialect.TemplatesSaved, error) {
	known, err := e.api.templatesNamed(ctx, q)
	if err != nil {
		return dialect.TemplatesSaved{}, err
	}
	edits, saved := namedEdits(q.Templates, known)
	if q.Plan {
		return dialect.TemplatesSaved{Templates: saved}, nil
	}
	edited := make([]catalog.Edited, len(edits))
	for i := range edits {
		edited[i].ID = edits[i].ID
	}
	if slices.ContainsFunc(saved, func(s dialect.TemplateSaved) bool { return s.Outcome != v1.SavedSame }) {
		if err = e.auditChange(ctx, editsOf("save processes", q.Business, edits)); err != nil {
			return dialect.TemplatesSaved{}, err
		}
		if edited, err = e.api.store.EditTemplates(ctx, q.Business, edits); err != nil {
			return dialect.TemplatesSaved{}, fmt.Errorf("save %d processes of business %s: %w", len(edits), q.Business.Namespace(), err)
		}
		e.noteEdits(q.Business, edited)
	}
	for i := range saved {
		saved[i].ID = edited[i].ID
	}
	// Include unchanged processes: an earlier call may have stored them and failed to
	// notify the agents.
	task, err := e.bindingsChanged(ctx, q.Business, edits, edited)
	if err != nil {
		return dialect.TemplatesSaved{}, e.notNotified(err)
	}
	return dialect.TemplatesSaved{Templates: saved, Task: task}, nil
}

// templatesNamed returns the existing processes of the business that the request names,
// by name.
func (a *api) templatesNamed(ctx context.Context, q *dialect.NamedTemplates) (map[string]*catalog.Template, error) {
	names := make([]catalog.Value, len(q.Templates))
	for i := range q.Templates {
		names[i] = catalog.Text(q.Templates[i].Name())
	}
	found, _, err := a.store.SearchTemplates(ctx, q.Business, catalog.Search{
		Conditions: []catalog.Condition{{Attribute: catalog.AttrName, Comparison: catalog.In, Values: names}}, Limit: catalog.MaxTemplatePage,
	})
	if err != nil {
		return nil, fmt.Errorf("look up %d processes of business %s: %w", len(names), q.Business.Namespace(), err)
	}
	known := make(map[string]*catalog.Template, len(found))
	for i := range found {
		known[found[i].Name()] = &found[i]
	}
	return known, nil
}

// namedEdits returns the edits that create or change the wanted processes, and the
// outcome of each edit.
func namedEdits(wanted []dialect.NamedTemplate, known map[string]*catalog.Template) ([]catalog.Edit, []dialect.TemplateSaved) {
	edits := make([]catalog.Edit, len(wanted))
	saved := make([]dialect.TemplateSaved, len(wanted))
	for i := range wanted {
		w, is := &wanted[i], known[wanted[i].Name()]
		if is == nil {
			edits[i] = catalog.Edit{Set: w.Set, Bind: w.Modules}
			saved[i].Outcome = v1.SavedNew
			continue
		}
		edits[i], saved[i].Changes = namedEdit(w, is)
		saved[i].ID, saved[i].Outcome = is.ID, v1.SavedSame
		if len(saved[i].Changes) > 0 {
			saved[i].Outcome = v1.SavedChanged
		}
	}
	return edits, saved
}

// namedEdit returns the edit that changes an existing process to the wanted one, and
// the attributes that it changes. The edit also binds the modules that are already
// bound, so that their agents are notified again.
func namedEdit(w *dialect.NamedTemplate, is *catalog.Template) (catalog.Edit, []catalog.Attribute) {
	edit := catalog.Edit{ID: is.ID, Set: make(map[catalog.Attribute]catalog.Value)}
	var changes []catalog.Attribute
	for _, rule := range catalog.AttributeRules() {
		a := rule.Attribute
		if v, said := w.Set[a]; said && v != is.Values[a] {
			edit.Set[a] = v
			changes = append(changes, a)
		}
	}
	if w.Modules != nil {
		edit.Bind = w.Modules
		for _, module := range is.Modules {
			if !slices.Contains(w.Modules, module) {
				edit.Unbind = append(edit.Unbind, module)
			}
		}
		if !slices.Equal(w.Modules, is.Modules) {
			changes = append(changes, catalog.AttrModule)
		}
	}
	return edit, changes
}
