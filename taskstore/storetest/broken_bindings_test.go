package storetest_test

import (
	"context"
	"slices"
	"sync"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// bindingAsPresence treats the binding of an id as an announcement by the agent.
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

// boundForGood never removes a binding.
type boundForGood struct {
	taskstore.Store
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
		if h, ok := s.bound.Load(ids[i]); ok && hosts[i].IsZero() {
			hosts[i] = h.(procfleet.Host)
		}
	}
	return hosts, err
}

// announcedFirst accepts an agent's announcement of an id that is bound to another host.
type announcedFirst struct{ taskstore.Store }

func (s announcedFirst) Resolve(ctx context.Context, ids []string) ([]procfleet.Host, error) {
	hosts, err := s.Store.Resolve(ctx, ids)
	if err != nil {
		return nil, err
	}
	claimants, err := s.Claimants(ctx, ids)
	for i := range claimants {
		if len(claimants[i]) == 1 {
			hosts[i] = claimants[i][0]
		}
	}
	return hosts, err
}

// lastClaimant assigns an id to the agent that announced it last.
type lastClaimant struct {
	taskstore.Store
	last *sync.Map
}

func (s lastClaimant) Announce(ctx context.Context, as []taskstore.Announcement) error {
	for _, a := range as {
		s.last.Store(a.AgentID, a.Host)
	}
	return s.Store.Announce(ctx, as)
}

func (s lastClaimant) Resolve(ctx context.Context, ids []string) ([]procfleet.Host, error) {
	hosts, err := s.Store.Resolve(ctx, ids)
	if err != nil {
		return nil, err
	}
	claimants, err := s.Claimants(ctx, ids)
	for i := range claimants {
		if h, ok := s.last.Load(ids[i]); ok && len(claimants[i]) > 1 {
			hosts[i] = h.(procfleet.Host)
		}
	}
	return hosts, err
}

type claimless struct{ taskstore.Store }

func (claimless) Claimants(_ context.Context, ids []string) ([][]procfleet.Host, error) {
	return make([][]procfleet.Host, len(ids)), nil
}

// incarnationBlind does not distinguish a restarted agent process of an instance from the
// previous one.
type incarnationBlind struct{ taskstore.Store }

func (s incarnationBlind) Announce(ctx context.Context, as []taskstore.Announcement) error {
	as = slices.Clone(as)
	for i := range as {
		as[i].Incarnation = ""
	}
	return s.Store.Announce(ctx, as)
}

// restartIsNew treats a restarted agent process as a new instance.
type restartIsNew struct{ taskstore.Store }

func (s restartIsNew) Announce(ctx context.Context, as []taskstore.Announcement) error {
	as = slices.Clone(as)
	for i := range as {
		as[i].Instance += as[i].Incarnation
	}
	return s.Store.Announce(ctx, as)
}

// boundByHost returns only the last id that was bound to a host.
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
