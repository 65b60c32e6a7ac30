package dispatcher

import (
	"context"

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
