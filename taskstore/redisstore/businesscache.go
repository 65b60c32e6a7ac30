package redisstore

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore/internal/recent"
	"github.com/procfleet/procfleet/taskstore/internal/templates"
)

// businessCache is what this process has read of one business. A call asks
// Redis only for what has changed since.
type businessCache struct {
	mu       sync.Mutex
	topology markedTopology
	view     knownView
	loading  *loading // nil while no call loads the view
}

// markedTopology is a topology that was read; nil before.
type markedTopology struct {
	*catalog.Topology
	mark string
}

// knownView is a view that has all writes up to one, and maybe some later ones.
type knownView struct {
	*templates.View
	token    string
	revision int64
}

// loading is a read of all templates; err may be read when done is closed.
type loading struct {
	done chan struct{}
	err  error
}

// cache returns the cache of a business.
func (s *Store) cache(b catalog.Business) *businessCache {
	s.cachesEnd.Reset(recent.For)
	now := time.Now()
	s.caches.Forget(now)
	return s.caches.Use(b, now)
}

// evictCaches evicts the caches that were not used lately; [Store.cache] does
// so only while businesses are used.
func (s *Store) evictCaches() { s.caches.Forget(time.Now()) }

func (c *businessCache) knownTopology() markedTopology {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topology
}

// keepTopology may replace a newer topology; the next call notices that by its
// mark.
func (c *businessCache) keepTopology(t markedTopology) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topology = t
}

func (c *businessCache) knownView() knownView {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

// beginLoading returns the loading in progress, or begins one.
func (c *businessCache) beginLoading() (l *loading, begun bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loading == nil {
		c.loading, begun = &loading{done: make(chan struct{})}, true
	}
	return c.loading, begun
}

func (c *businessCache) endLoading(l *loading, view knownView, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view, c.loading = view, nil
	l.err = err
	close(l.done)
}

// forgetView evicts a view unless another call has replaced it.
func (c *businessCache) forgetView(v *templates.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view.View == v {
		c.view = knownView{}
	}
}

// bringForward applies changes since the write of known, unless the view has
// later ones by now. false means that they must be read again: another call
// has brought the view forward, but not as far, and after a fail-over in
// between its changes may be lost.
//
// The reply of one script call is the state at its last write, so its changes
// are later as a whole or not at all. Replies of several calls may contain
// single changes of later writes, which the next changes contain again.
func (c *businessCache) bringForward(known knownView, since changes) (knownView, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.view.View != known.View:
		return knownView{}, false
	case since.revision <= c.view.revision:
		return c.view, true
	case c.view.token != known.token:
		return knownView{}, false
	}
	c.view.Apply(since.changed, since.deleted)
	c.view.token, c.view.revision = since.token, since.revision
	return c.view, true
}
