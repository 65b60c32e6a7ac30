package dispatcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// mayFor refuses what the caller must not do for a business. A business of
// another account than the default is limited by its namespace, so that those
// of several suppliers are told apart.
func (e *exchange) mayFor(b catalog.Business, action string) error {
	return e.who.may(b.Namespace(), action)
}

// editTemplates defines processes, changes them, and binds them to modules.
func (e *exchange) editTemplates(ctx context.Context, use dialect.EditTemplates, in *dialect.Request) error {
	q, err := use.Decode(in)
	if err != nil {
		return err
	}
	if err := e.mayFor(q.Business, apps.Catalogue); err != nil {
		return err
	}
	ctx, cancel := e.undisturbed(ctx)
	defer cancel()
	if err := e.auditChange(ctx, editsOf("edit processes", q.Business, q.Edits)); err != nil {
		return err
	}
	edits, err := e.api.store.EditTemplates(ctx, q.Business, q.Edits)
	if q.IfThere && errors.Is(err, catalog.ErrNoTemplate) {
		e.reply(use.Encode(&q, dialect.TemplatesEdited{}, e.id))
		return nil
	}
	if err != nil {
		return fmt.Errorf("edit %d processes of business %s: %w", len(q.Edits), q.Business.Namespace(), err)
	}
	e.noteEdits(&q, edits)
	task, err := e.bindingsChanged(ctx, q.Business, q.Edits, edits)
	if err != nil {
		return e.untold(err)
	}
	e.reply(use.Encode(&q, dialect.TemplatesEdited{Edits: edits, Task: task}, e.id))
	return nil
}

// noteEdits tells who changed the catalogue.
func (e *exchange) noteEdits(q *dialect.TemplateEdits, done []catalog.Edited) {
	ids, bound, unbound := make([]int64, len(done)), 0, 0
	for i := range done {
		ids[i] = done[i].ID
		bound += len(done[i].Bound)
		unbound += len(done[i].Unbound)
	}
	e.noteCatalogue(q.Business).WithFields(logrus.Fields{
		"processes": ids, "bound": bound, "unbound": unbound,
	}).Info("catalog changed")
}

// noteCatalogue begins a line about a change in a business's catalogue.
func (e *exchange) noteCatalogue(b catalog.Business) logrus.FieldLogger {
	return e.log().WithFields(logrus.Fields{"application": e.who.code, "user": e.who.user, "business": b.Namespace()})
}

// untold is the failure of a call whose edits are stored, while agents could
// not be told of them.
func (e *exchange) untold(err error) error {
	e.log().WithError(err).Warn("binding notification not published")
	return &dialect.Error{
		Kind:       dialect.Unavailable,
		Problem:    "the binding is stored as it was asked for, but agents could not be told: " + failure(err).Problem + "; repeat the call to tell them",
		RetryAfter: retryAway,
	}
}

func (e *exchange) deleteTemplate(ctx context.Context, use dialect.DeleteTemplate, in *dialect.Request) error {
	q, err := use.Decode(in)
	if err != nil {
		return err
	}
	if err := e.mayFor(q.Business, apps.Catalogue); err != nil {
		return err
	}
	ctx, cancel := e.undisturbed(ctx)
	defer cancel()
	if err := e.auditChange(ctx, changeOf("delete process", q.Business.Namespace(), nil, strconv.FormatInt(q.ID, 10))); err != nil {
		return err
	}
	existed, err := e.api.store.DeleteTemplate(ctx, q.Business, q.ID)
	if err != nil {
		return fmt.Errorf("delete process %d of business %s: %w", q.ID, q.Business.Namespace(), err)
	}
	e.noteCatalogue(q.Business).WithFields(logrus.Fields{"process": q.ID, "existed": existed}).Info("process deleted from the catalog")
	e.reply(use.Encode(&q, existed, e.id))
	return nil
}

func (e *exchange) showTemplate(ctx context.Context, use dialect.ShowTemplate, in *dialect.Request) error {
	q, err := use.Decode(in)
	if err != nil {
		return err
	}
	t, err := e.template(ctx, &q)
	if err != nil {
		return err
	}
	reply, err := use.Encode(&q, t, e.id)
	if err != nil {
		return err
	}
	e.reply(reply)
	return nil
}

// template reads one process for a caller who may; nil if there is none.
func (e *exchange) template(ctx context.Context, q *dialect.TemplateQuery) (*catalog.Template, error) {
	if err := e.mayFor(q.Business, apps.Reading); err != nil {
		return nil, err
	}
	found, err := e.api.store.Templates(ctx, q.Business, []int64{q.ID})
	if err != nil {
		return nil, fmt.Errorf("read process %d of business %s: %w", q.ID, q.Business.Namespace(), err)
	}
	return found[0], nil
}

func (e *exchange) searchTemplates(ctx context.Context, use dialect.SearchTemplates, in *dialect.Request) error {
	q, err := use.Decode(in)
	if err != nil {
		return err
	}
	if err := e.mayFor(q.Business, apps.Reading); err != nil {
		return err
	}
	all := q.Search.Limit == 0
	if all {
		q.Search.Limit = catalog.MaxTemplatePage
	}
	page, total, err := e.api.store.SearchTemplates(ctx, q.Business, q.Search)
	if err != nil {
		return fmt.Errorf("search processes of business %s: %w", q.Business.Namespace(), err)
	}
	if all && total-q.Search.Start > q.Search.Limit {
		return e.allTemplates(ctx, use, &q)
	}
	e.reply(use.Encode(&q, page, total, e.id))
	return nil
}

// allTemplates answers with everything that a search finds, in parts: what was
// found at one moment, as it is when its part is read. What fails after the
// beginning can only be told by cutting the connection.
func (e *exchange) allTemplates(ctx context.Context, use dialect.SearchTemplates, q *dialect.TemplateSearch) error {
	ids, err := e.api.store.FindTemplates(ctx, q.Business, q.Search)
	if err != nil {
		return fmt.Errorf("find processes of business %s: %w", q.Business.Namespace(), err)
	}
	e.header(http.StatusOK)
	out := bufio.NewWriterSize(e.w, 64<<10)
	err = use.EncodeAll(out, q, q.Search.Start+len(ids), e.templates(q.Business, ids))
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		e.log().WithField("business", q.Business.Namespace()).WithError(err).Warn("response truncated")
		panic(http.ErrAbortHandler)
	}
	return nil
}

// templates reads processes part by part; the store has its time for each part,
// however long the caller takes to read. What was deleted meanwhile is left out.
func (e *exchange) templates(b catalog.Business, ids []int64) iter.Seq2[[]catalog.Template, error] {
	return func(yield func([]catalog.Template, error) bool) {
		for some := range slices.Chunk(ids, catalog.MaxTemplatePage) {
			ctx, cancel := context.WithTimeout(e.r.Context(), e.api.cfg.Timeouts.Query)
			found, err := e.api.store.Templates(ctx, b, some)
			cancel()
			part := make([]catalog.Template, 0, len(found))
			for _, t := range found {
				if t != nil {
					part = append(part, *t)
				}
			}
			if !yield(part, err) || err != nil {
				return
			}
		}
	}
}

func (e *exchange) showModules(ctx context.Context, use dialect.ShowModules, in *dialect.Request) error {
	q, err := use.Decode(in)
	if err != nil {
		return err
	}
	t, err := e.template(ctx, &q)
	if err != nil {
		return err
	}
	where, err := e.api.store.Topology(ctx, q.Business)
	if err != nil {
		return fmt.Errorf("read the topology of business %s: %w", q.Business.Namespace(), err)
	}
	reply, err := use.Encode(&q, t, where, e.id)
	if err != nil {
		return err
	}
	e.reply(reply)
	return nil
}

// refusedEdit classifies why a catalogue leaves templates as they are; nil if
// err is about something else.
func refusedEdit(err error) *dialect.Error {
	if errors.Is(err, catalog.ErrBound) {
		return &dialect.Error{Kind: dialect.Conflict, Problem: catalog.ErrBound.Error() + "; unbind it first"}
	}
	refused, ok := errors.AsType[*catalog.EditError](err)
	if !ok {
		return nil
	}
	f := &dialect.Error{Kind: dialect.InvalidField, Problem: refused.Error(), Edit: refused}
	if errors.Is(refused.Err, catalog.ErrNoTemplate) {
		f.Kind = dialect.NotFound
	} else if _, duplicate := errors.AsType[*catalog.DuplicateError](refused.Err); duplicate {
		f.Kind = dialect.Conflict
	}
	return f
}
