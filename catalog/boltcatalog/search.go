package boltcatalog

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/catalog/internal/templates"
)

const (
	// loadStep is the number of templates that are decoded at once when a view is
	// loaded.
	loadStep = 1000
	// missedMost is the maximum number of changed templates that wait for the next
	// search before the writer applies them to the view.
	missedMost = 250
)

// templateView holds the templates of one business in memory, for searches. The first
// search loads it from the file. From then on every commit adds its changes, in order,
// before its callers receive their results. The next search applies them to the view.
// Applying many changes at once takes hardly longer than applying one, so the writer,
// which blocks all other changes, applies them itself only above missedMost.
//
// A transaction must not wait for mu: a writer that grows the file waits for all
// transactions to end, so both would wait forever.
type templateView struct {
	loading chan struct{} // capacity 1; full while a search loads the view

	mu       sync.RWMutex
	view     *templates.View  // nil until it is loaded
	revision uint64           // revision of the business that the view contains
	follows  bool             // the view collects changes although it is not loaded yet
	missed   []templateChange // committed changes that the view does not contain
	waiting  int              // number of templates in missed
}

// templateChange is the effect of one change on templates of a business.
type templateChange struct {
	revision uint64 // revision of the business after the change
	changed  []catalog.Template
	removed  []int64
}

func newTemplateView() *templateView { return &templateView{loading: make(chan struct{}, 1)} }

// changed increments the revision of a business. When the transaction is committed, the
// change is passed to the view of the business.
func (s *Catalog) changed(b templateBook, c templateChange) (err error) {
	if c.revision, err = b.nextRevision(); err != nil {
		return err
	}
	b.OnCommit(func() {
		if v := s.templates.Kept(b.of); v != nil {
			v.take(c)
		}
	})
	return nil
}

func (v *templateView) take(c templateChange) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.view == nil && !v.follows {
		return
	}
	v.missed = append(v.missed, c)
	if v.waiting += len(c.changed) + len(c.removed); v.waiting >= missedMost {
		v.settle()
	}
}

// settle applies the missed changes to the view if it is loaded. Ids are never reused,
// so removed templates stay removed.
func (v *templateView) settle() {
	if v.view == nil || len(v.missed) == 0 {
		return
	}
	var all templateChange
	for _, c := range v.missed {
		if c.revision > v.revision { // otherwise the view was loaded with the change
			v.revision = c.revision
			all.changed, all.removed = append(all.changed, c.changed...), append(all.removed, c.removed...)
		}
	}
	v.view.Apply(all.changed, all.removed)
	v.missed, v.waiting = nil, 0
}

// load loads the templates of the business unless they are loaded. Changes that are
// committed during the load are applied afterwards.
func (v *templateView) load(ctx context.Context, s *Catalog, business catalog.Business) error {
	if v.loaded() {
		return nil
	}
	select {
	case v.loading <- struct{}{}:
		defer func() { <-v.loading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !v.follow() {
		return nil
	}
	loaded := templates.NewView()
	revision, err := view(ctx, s, func(t *tx) (uint64, error) { return t.templateBook(business).readInto(ctx, loaded) })
	v.mu.Lock()
	defer v.mu.Unlock()
	v.follows = false
	if err != nil {
		v.forget()
		return err
	}
	v.view, v.revision = loaded, revision
	v.settle()
	return nil
}

// loaded reports whether the view is loaded. It only needs a read lock, so concurrent
// searches do not wait for each other.
func (v *templateView) loaded() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.view != nil
}

// forget discards the view, so that the next search loads it again.
func (v *templateView) forget() { v.view, v.missed, v.waiting = nil, nil, 0 }

// follow makes the view collect the changes that are committed from now on. It returns
// false if the view is already loaded.
func (v *templateView) follow() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.follows = v.view == nil
	return v.follows
}

// readInto adds all templates of the business to a view and returns their revision.
func (b templateBook) readInto(ctx context.Context, loaded *templates.View) (uint64, error) {
	some := make([]catalog.Template, 0, loadStep)
	c := b.Bucket(bucketTemplates).Cursor()
	for key, raw := c.Seek(b.business); bytes.HasPrefix(key, b.business); key, raw = c.Next() {
		template, err := pack.ReadTemplate(string(raw))
		if err != nil {
			return 0, fmt.Errorf("%s %x: %w", bucketTemplates, key, err)
		}
		if some = append(some, *template); len(some) < loadStep {
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		loaded.Apply(some, nil)
		some = some[:0]
	}
	loaded.Apply(some, nil)
	return b.revision(), nil
}

// templatePage is the result of a search, valid unless the view was older than the
// file.
type templatePage struct {
	ids       []int64
	templates []catalog.Template // nil if the caller asked for ids only
	total     int
	behind    bool
	revision  uint64 // revision of the business in the file
}

// SearchTemplates returns a page of the matching templates and the number of all
// matches.
func (s *Catalog) SearchTemplates(ctx context.Context, business catalog.Business, search catalog.Search) ([]catalog.Template, int, error) {
	if err := search.Validate(); err != nil {
		return nil, 0, fmt.Errorf("search processes: %w", err)
	}
	page, err := s.find(ctx, business, search, true)
	return page.templates, page.total, err
}

// FindTemplates returns the ids of all matching templates.
func (s *Catalog) FindTemplates(ctx context.Context, business catalog.Business, search catalog.Search) ([]int64, error) {
	search.Limit = 1
	if err := search.Validate(); err != nil {
		return nil, fmt.Errorf("find processes: %w", err)
	}
	search.Limit = math.MaxInt
	page, err := s.find(ctx, business, search, false)
	return page.ids, err
}

// find searches a view that contains every change committed before the call. With rows
// it also reads the matching templates.
func (s *Catalog) find(ctx context.Context, business catalog.Business, search catalog.Search, rows bool) (templatePage, error) {
	if business.Validate() != nil {
		return templatePage{}, ctx.Err()
	}
	for {
		v := s.templates.Use(business, s.db.Now())
		if err := v.load(ctx, s, business); err != nil {
			return templatePage{}, err
		}
		page, err := v.search(ctx, s, business, search, rows)
		if err != nil || !page.behind {
			return page, err
		}
		if err := v.catchUp(ctx, s, page.revision); err != nil {
			return templatePage{}, err
		}
	}
}

// search finds templates in the view. With rows it reads them from the file, in the
// state in which the view found them.
func (v *templateView) search(ctx context.Context, s *Catalog, business catalog.Business, search catalog.Search, rows bool) (templatePage, error) {
	v.lockSettled() // the lock keeps commits out of the view until its revision was compared with that of the transaction
	release := sync.OnceFunc(v.mu.RUnlock)
	defer release()
	return view(ctx, s, func(t *tx) (templatePage, error) {
		b := t.templateBook(business)
		if revision := b.revision(); v.view == nil || v.revision != revision {
			return templatePage{behind: true, revision: revision}, nil
		}
		ids, total := v.view.Search(search)
		release()
		if !rows {
			return templatePage{ids: ids}, nil
		}
		found, err := b.templates(ids)
		if err != nil {
			return templatePage{}, err
		}
		page := templatePage{total: total, templates: make([]catalog.Template, len(found))}
		for i, template := range found {
			if template == nil {
				return templatePage{}, fmt.Errorf("%s %x: process %d is missing", bucketTemplates, b.business, ids[i])
			}
			page.templates[i] = *template
		}
		return page, nil
	})
}

// lockSettled applies all missed changes and locks the view for reading.
func (v *templateView) lockSettled() {
	v.mu.RLock()
	for v.view != nil && len(v.missed) > 0 {
		v.mu.RUnlock()
		v.mu.Lock()
		v.settle()
		v.mu.Unlock()
		v.mu.RLock()
	}
}

// catchUp waits for the writer, so that the view receives all changes committed before.
// If it still lacks one (a commit failed and took effect nevertheless, or the view was
// discarded), catchUp discards the view, so that it is loaded again.
func (v *templateView) catchUp(ctx context.Context, s *Catalog, revision uint64) error {
	if err := change(ctx, s, func(*tx) error { return nil }); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.settle(); v.view != nil && v.revision < revision {
		v.forget()
	}
	return nil
}
