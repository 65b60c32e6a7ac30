package main

import (
	"context"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/taskstore"
)

// withCatalog is what a dispatcher needs of a task store. One that keeps
// nothing apart from tasks yet registers nothing.
func withCatalog(store taskstore.Store) dispatcher.Store {
	if whole, ok := store.(dispatcher.Store); ok {
		return whole
	}
	if kept, ok := store.(dispatcher.Catalog); ok {
		return unbound{store, kept}
	}
	return unbound{store, nothingKept{}}
}

type unbound struct {
	taskstore.Store
	dispatcher.Catalog
}

func (unbound) Bind(context.Context, []taskstore.AgentBinding) error { return taskstore.ErrUnavailable }

type nothingKept struct{ dispatcher.Catalog }

func (nothingKept) Register(_ context.Context, ds []catalog.Definition, _ bool) ([][]bool, error) {
	existed := make([][]bool, len(ds))
	for i := range ds {
		existed[i] = make([]bool, len(ds[i].Hosts))
	}
	return existed, nil
}

func (nothingKept) Registrations(_ context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	return make([]*catalog.Registration, len(ps)), nil
}

func (nothingKept) RegisteredHosts(context.Context, string, string, procfleet.Host, int) ([]procfleet.Host, error) {
	return nil, nil
}

func (nothingKept) Unregister(context.Context, []catalog.Process) ([]bool, error) {
	return nil, taskstore.ErrUnavailable
}

func (nothingKept) SetGroups(context.Context, []catalog.HostGroups) error {
	return taskstore.ErrUnavailable
}

func (nothingKept) Groups(context.Context, string, []procfleet.Host) ([]catalog.HostGroups, error) {
	return nil, taskstore.ErrUnavailable
}

func (nothingKept) Entries(context.Context, []catalog.Process) ([]catalog.Entry, error) {
	return nil, taskstore.ErrUnavailable
}

func (nothingKept) EntryPage(context.Context, string, int, int) ([]catalog.Entry, int, error) {
	return nil, 0, taskstore.ErrUnavailable
}
