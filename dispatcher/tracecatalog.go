package dispatcher

import (
	"context"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
)

// These calls are timed and traced like those about tasks; see [watched].

func (w *watched) Register(ctx context.Context, ds []catalog.Definition, replace bool) (existed [][]bool, err error) {
	ctx, done := w.call(ctx, "register")
	defer func() { done(err) }()
	return w.Store.Register(ctx, ds, replace)
}

func (w *watched) Unregister(ctx context.Context, ps []catalog.Process) (existed []bool, err error) {
	ctx, done := w.call(ctx, "unregister")
	defer func() { done(err) }()
	return w.Store.Unregister(ctx, ps)
}

func (w *watched) Registrations(ctx context.Context, ps []catalog.Process) (rs []*catalog.Registration, err error) {
	ctx, done := w.call(ctx, "registrations")
	defer func() { done(err) }()
	return w.Store.Registrations(ctx, ps)
}

func (w *watched) RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) (hosts []procfleet.Host, err error) {
	ctx, done := w.call(ctx, "registered_hosts")
	defer func() { done(err) }()
	return w.Store.RegisteredHosts(ctx, namespace, name, after, limit)
}

func (w *watched) SetGroups(ctx context.Context, gs []catalog.HostGroups) (err error) {
	ctx, done := w.call(ctx, "set_groups")
	defer func() { done(err) }()
	return w.Store.SetGroups(ctx, gs)
}

func (w *watched) Groups(ctx context.Context, namespace string, hosts []procfleet.Host) (gs []catalog.HostGroups, err error) {
	ctx, done := w.call(ctx, "groups")
	defer func() { done(err) }()
	return w.Store.Groups(ctx, namespace, hosts)
}

func (w *watched) GroupsOf(ctx context.Context, hosts []procfleet.Host) (gs [][]catalog.HostGroups, err error) {
	ctx, done := w.call(ctx, "groups_of")
	defer func() { done(err) }()
	return w.Store.GroupsOf(ctx, hosts)
}

func (w *watched) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (until time.Time, err error) {
	ctx, done := w.call(ctx, "freeze")
	defer func() { done(err) }()
	return w.Store.Freeze(ctx, scopes, f)
}

func (w *watched) Lift(ctx context.Context, scopes []catalog.Scope) (existed []bool, err error) {
	ctx, done := w.call(ctx, "lift")
	defer func() { done(err) }()
	return w.Store.Lift(ctx, scopes)
}

func (w *watched) FreezePage(ctx context.Context, after catalog.Scope, limit int) (page []catalog.Freeze, err error) {
	ctx, done := w.call(ctx, "freeze_page")
	defer func() { done(err) }()
	return w.Store.FreezePage(ctx, after, limit)
}

func (w *watched) FreezesOf(ctx context.Context, hosts []procfleet.Host) (fs [][]catalog.Freeze, err error) {
	ctx, done := w.call(ctx, "freezes_of")
	defer func() { done(err) }()
	return w.Store.FreezesOf(ctx, hosts)
}

func (w *watched) Entries(ctx context.Context, ps []catalog.Process) (es []catalog.Entry, err error) {
	ctx, done := w.call(ctx, "entries")
	defer func() { done(err) }()
	return w.Store.Entries(ctx, ps)
}

func (w *watched) EntryPage(ctx context.Context, namespace string, start, limit int) (page []catalog.Entry, total int, err error) {
	ctx, done := w.call(ctx, "entry_page")
	defer func() { done(err) }()
	return w.Store.EntryPage(ctx, namespace, start, limit)
}

func (w *watched) Presences(ctx context.Context, hosts []procfleet.Host) (ps []taskstore.Presence, err error) {
	ctx, done := w.call(ctx, "presences")
	defer func() { done(err) }()
	return w.Store.Presences(ctx, hosts)
}

func (w *watched) Bind(ctx context.Context, bs []taskstore.AgentBinding) (err error) {
	ctx, done := w.call(ctx, "bind")
	defer func() { done(err) }()
	return w.Store.Bind(ctx, bs)
}

func (w *watched) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) (done []catalog.Edited, err error) {
	ctx, end := w.call(ctx, "edit_templates")
	defer func() { end(err) }()
	return w.Store.EditTemplates(ctx, b, edits)
}

func (w *watched) DeleteTemplate(ctx context.Context, b catalog.Business, id int64) (existed bool, err error) {
	ctx, done := w.call(ctx, "delete_template")
	defer func() { done(err) }()
	return w.Store.DeleteTemplate(ctx, b, id)
}

func (w *watched) Templates(ctx context.Context, b catalog.Business, ids []int64) (found []*catalog.Template, err error) {
	ctx, done := w.call(ctx, "templates")
	defer func() { done(err) }()
	return w.Store.Templates(ctx, b, ids)
}

func (w *watched) SearchTemplates(ctx context.Context, b catalog.Business, s catalog.Search) (page []catalog.Template, total int, err error) {
	ctx, done := w.call(ctx, "search_templates")
	defer func() { done(err) }()
	return w.Store.SearchTemplates(ctx, b, s)
}

func (w *watched) FindTemplates(ctx context.Context, b catalog.Business, s catalog.Search) (ids []int64, err error) {
	ctx, done := w.call(ctx, "find_templates")
	defer func() { done(err) }()
	return w.Store.FindTemplates(ctx, b, s)
}

func (w *watched) SetTopology(ctx context.Context, b catalog.Business, t catalog.Topology) (version int64, err error) {
	ctx, done := w.call(ctx, "set_topology")
	defer func() { done(err) }()
	return w.Store.SetTopology(ctx, b, t)
}

func (w *watched) SetModuleHosts(ctx context.Context, b catalog.Business, set, module string, hosts []procfleet.Host) (version int64, err error) {
	ctx, done := w.call(ctx, "set_module_hosts")
	defer func() { done(err) }()
	return w.Store.SetModuleHosts(ctx, b, set, module, hosts)
}

func (w *watched) Topology(ctx context.Context, b catalog.Business) (t *catalog.Topology, err error) {
	ctx, done := w.call(ctx, "topology")
	defer func() { done(err) }()
	return w.Store.Topology(ctx, b)
}
