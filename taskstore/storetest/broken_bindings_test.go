package storetest_test

import (
	"context"
	"slices"
	"sync"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// bindingAsPresence takes a binding for the word of an agent.
type bindingAsPresence struct{ taskstore.Store }

func (s bindingAsPresence) Bind(ctx context.Context, bs []taskstore.AgentBinding) error {
	var as []taskstore.Announcement
	for _, b := range bs {
		if err := b.Validate(); err != nil {
			return err
		}
		as = append(as, taskstore.Announcement{Host: b.Host, AgentID: b.AgentID, Instance: "bound"})
	}
	return s.Announce(ctx, as)
}

// boundForGood never takes a binding away; with first it asks no agent.
type boundForGood struct {
	taskstore.Store
	first bool
	bound *sync.Map
}

func (s boundForGood) Bind(ctx context.Context, bs []taskstore.AgentBinding) error {
	for _, b := range bs {
		s.bound.Store(b.AgentID, b.Host)
	}
	return s.Store.Bind(ctx, bs)
}

func (s boundForGood) Resolve(ctx context.Context, ids []string) ([]procfleet.Host, error) {
	hosts, err := s.Store.Resolve(ctx, ids)
	for i := range hosts {
		if h, ok := s.bound.Load(ids[i]); ok && (s.first || hosts[i].IsZero()) {
			hosts[i] = h.(procfleet.Host)
		}
	}
	return hosts, err
}

// boundByHost lets a host have the last id that was bound to it.
type boundByHost struct {
	taskstore.Store
	bound *sync.Map
}

func (s boundByHost) Bind(ctx context.Context, bs []taskstore.AgentBinding) error {
	for _, b := range bs {
		s.bound.Store(b.Host, b.AgentID)
	}
	return s.Store.Bind(ctx, bs)
}

func (s boundByHost) Resolve(ctx context.Context, ids []string) ([]procfleet.Host, error) {
	hosts, err := s.Store.Resolve(ctx, ids)
	for i := range hosts {
		if id, ok := s.bound.Load(hosts[i]); ok && id != ids[i] {
			hosts[i] = procfleet.Host{}
		}
	}
	return hosts, err
}

type bindingTheRest struct{ taskstore.Store }

func (s bindingTheRest) Bind(ctx context.Context, bs []taskstore.AgentBinding) error {
	bs = slices.DeleteFunc(slices.Clone(bs), func(b taskstore.AgentBinding) bool { return b.Validate() != nil })
	return s.Store.Bind(ctx, bs)
}
