package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// editTemplates creates and changes processes, and binds them to modules.
func (e *exchange) editTemplates(ctx context.Context, q *dialect.TemplateEdits, business string) (dialect.TemplatesEdited, error) {
	ctx, cancel := e.detached(ctx)
	defer cancel()
	if err := e.auditChange(ctx, editsOf("edit processes", q.Business, q.Edits)); err != nil {
		return dialect.TemplatesEdited{}, err
	}
	edits, err := e.api.store.EditTemplates(ctx, q.Business, q.Edits)
	if q.IfThere && errors.Is(err, catalog.ErrNoTemplate) {
		return dialect.TemplatesEdited{}, nil
	}
	if err != nil {
		return dialect.TemplatesEdited{}, fmt.Errorf("edit %d processes of business %s: %w", len(q.Edits), business, err)
	}
	e.noteEdits(q.Business, edits)
	task, err := e.bindingsChanged(ctx, q.Business, q.Edits, edits)
	if err != nil {
		return dialect.TemplatesEdited{}, e.notNotified(err)
	}
	return dialect.TemplatesEdited{Edits: edits, Task: task}, nil
}

func (e *exchange) noteEdits(b catalog.Business, done []catalog.Edited) {
	ids, bound, unbound := make([]int64, len(done)), 0, 0
	for i := range done {
		ids[i] = done[i].ID
		bound += len(done[i].Bound)
		unbound += len(done[i].Unbound)
	}
	e.catalogLog(b).WithFields(logrus.Fields{
		"processes": ids, "bound": bound, "unbound": unbound,
	}).Info("catalog changed")
}

func (e *exchange) catalogLog(b catalog.Business) logrus.FieldLogger {
	return e.log().WithFields(logrus.Fields{"application": e.who.Application, "user": e.who.User, "business": b.Namespace()})
}

// notNotified returns the error for a call whose edits are stored although the agents
// could not be notified.
func (e *exchange) notNotified(err error) error {
	e.log().WithError(err).Warn("binding notification not published")
	return &dialect.Error{
		Kind:       dialect.Unavailable,
		Problem:    "the binding is stored, but agents could not be notified: " + failure(err).Problem + "; repeat the call to notify them",
		RetryAfter: retryUnavailable,
	}
}

func (e *exchange) deleteTemplate(ctx context.Context, q *dialect.TemplateQuery, business string) (bool, error) {
	ctx, cancel := e.detached(ctx)
	defer cancel()
	if err := e.auditChange(ctx, changeOf("delete process", business, nil, strconv.FormatInt(q.ID, 10))); err != nil {
		return false, err
	}
	existed, err := e.api.store.DeleteTemplate(ctx, q.Business, q.ID)
	if err != nil {
		return false, fmt.Errorf("delete process %d of business %s: %w", q.ID, business, err)
	}
	e.catalogLog(q.Business).WithFields(logrus.Fields{"process": q.ID, "existed": existed}).Info("process deleted from the catalog")
	return existed, nil
}

func (*exchange) decodeShowTemplate(_ context.Context, codec dialect.ShowTemplate, in *dialect.Request) (dialect.TemplateQuery, error) {
	return codec.Decode(in)
}

func (e *exchange) showTemplate(ctx context.Context, codec dialect.ShowTemplate, q *dialect.TemplateQuery, _ string) error {
	t, err := e.api.template(ctx, q.Business, q.ID)
	if err != nil {
		return err
	}
	reply, err := codec.Encode(q, t, e.id)
	if err != nil {
		return err
	}
	e.reply(reply)
	return nil
}

// template reads one process; it returns nil if the process does not exist.
func (a *api) template(ctx context.Context, b catalog.Business, id int64) (*catalog.Template, error) {
	found, err := a.store.Templates(ctx, b, []int64{id})
	if err != nil {
		return nil, fmt.Errorf("read process %d of business %s: %w", id, b.Namespace(), err)
	}
	return found[0], nil
}

func (*exchange) decodeSearchTemplates(_ context.Context, codec dialect.SearchTemplates, in *dialect.Request) (dialect.TemplateSearch, error) {
	return codec.Decode(in)
}

func (e *exchange) searchTemplates(ctx context.Context, codec dialect.SearchTemplates, q *dialect.TemplateSearch, business string) error {
	all := q.Search.Limit == 0
	if all {
		q.Search.Limit = catalog.MaxTemplatePage
	}
	page, total, err := e.api.store.SearchTemplates(ctx, q.Business, q.Search)
	if err != nil {
		return fmt.Errorf("search processes of business %s: %w", business, err)
	}
	if all && total-q.Search.Start > q.Search.Limit {
		return e.allTemplates(ctx, codec, q)
	}
	e.reply(codec.Encode(q, page, total, e.id))
	return nil
}

// allTemplates streams all processes that a search finds. It determines their ids at
// one moment and then reads the processes in parts, each part in its state at the time
// of reading.
func (e *exchange) allTemplates(ctx context.Context, codec dialect.SearchTemplates, q *dialect.TemplateSearch) error {
	ids, err := e.api.store.FindTemplates(ctx, q.Business, q.Search)
	if err != nil {
		return fmt.Errorf("find processes of business %s: %w", q.Business.Namespace(), err)
	}
	err = e.stream(func(w io.Writer) error {
		return codec.EncodeAll(w, q, q.Search.Start+len(ids), e.templates(q.Business, ids))
	})
	if err != nil {
		e.log().WithField("business", q.Business.Namespace()).WithError(err).Warn("response truncated")
		panic(http.ErrAbortHandler)
	}
	return nil
}

// templates reads processes in parts. The query timeout bounds each part, not the time
// in which the caller reads the response. It omits processes that were deleted in the
// meantime.
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

func (e *exchange) showModules(ctx context.Context, q *dialect.TemplateQuery, _ string) (dialect.TemplateModules, error) {
	t, err := e.api.template(ctx, q.Business, q.ID)
	if err != nil {
		return dialect.TemplateModules{}, err
	}
	where, err := placed(ctx, e.api.store, q.Business)
	if err != nil {
		return dialect.TemplateModules{}, err
	}
	return dialect.TemplateModules{Template: t, Topology: where}, nil
}

// refusedEdit converts a catalog error about edits; it returns nil for other errors.
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
