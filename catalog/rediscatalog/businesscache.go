package rediscatalog

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/recent"
	"github.com/procfleet/procfleet/catalog/internal/templates"
)

// businessCache holds the templates and the topology that this process has read of one
// business. A call reads only later changes from Redis.
type businessCache struct {
	mu       sync.Mutex
	topology markedTopology
	view     knownView
	loading  *loading // nil unless a call is loading the view
}

// markedTopology is a cached topology with its mark; the zero value means that none was
// read.
type markedTopology struct {
	*catalog.Topology
	mark string
}

// knownView is a view of all templates as of one write. It may also contain some later
// writes.
type knownView struct {
	*templates.View
	token    string
	revision int64
}

// loading is a read of all templates in progress. Read err only after done is closed.
type loading struct {
	done chan struct{}
	err  error
}

// cache returns the cache of a business and creates it if necessary.
func (s *Catalog) cache(b catalog.Business) *businessCache {
	s.cachesEnd.Reset(recent.For)
	now := time.Now()
	s.caches.Forget(now)
	return s.caches.Use(b, now)
}

// evictCaches evicts the caches that were not used recently. [Catalog.cache] does the
// same, but only when it is called.
func (s *Catalog) evictCaches() { s.caches.Forget(time.Now()) }

func (c *businessCache) knownTopology() markedTopology {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topology
}

// keepTopology caches a topology. It may replace a newer one; the next call detects
// that by the mark.
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

// beginLoading returns the loading in progress, or starts one and reports that.
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

// forgetView removes a view from the cache unless another call has replaced it.
func (c *businessCache) forgetView(v *templates.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view.View == v {
		c.view = knownView{}
	}
}

// bringForward applies changes to the cached view. The changes are those since the last
// write of known. If the view already contains later writes, bringForward leaves it as
// it is. It returns false if the caller must read the changes again: another call has
// replaced the view, or has applied changes up to an earlier write, and a fail-over in
// between may have lost writes of that call.
//
// The reply of one script call is the state as of its last write, so its changes are
// either all newer than the view or all older. The combined replies of several calls
// may contain single changes of later writes; the next read of changes contains them
// again, and applying them twice is harmless.
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
