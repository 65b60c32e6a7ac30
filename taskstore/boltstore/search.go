package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
	"github.com/procfleet/procfleet/taskstore/internal/templates"
)

const (
	// loadStep is how many templates are decoded at once when a view is loaded.
	loadStep = 1000
	// missedMost is how many changed templates wait at most for a search, before
	// the writer applies them to the view.
	missedMost = 250
)

// templateView is the templates of one business in memory, for searches. The
// first search loads it from the file; from then on every commit adds its
// changes, in order and before its callers get their results. The next search
// applies them to the view: many changes at once take hardly longer than one,
// and the writer must not delay all other changes for it.
//
// A transaction never waits for mu: a writer that grows the file waits for all
// transactions to end.
type templateView struct {
	loading chan struct{} // holds a token while a search loads the view

	mu       sync.RWMutex
	view     *templates.View  // nil until it is loaded
	revision uint64           // of the business, that view has
	follows  bool             // while it is loaded
	missed   []templateChange // that were committed and are not in the view
	waiting  int              // templates in missed
}

// templateChange is what one change made of templates of a business.
type templateChange struct {
	revision uint64 // that the business has after it
	changed  []catalog.Template
	removed  []int64
}

func newTemplateView() *templateView { return &templateView{loading: make(chan struct{}, 1)} }

// changed counts a change of the templates of a business, and has it reach
// the view of the business when it is committed.
func (s *Store) changed(b templateBook, c templateChange) (err error) {
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

// settle applies the missed changes to the view, if that is loaded. Ids are never
// reused, so removed templates stay removed.
func (v *templateView) settle() {
	if v.view == nil || len(v.missed) == 0 {
		return
	}
	var all templateChange
	for _, c := range v.missed {
		if c.revision > v.revision { // else it was read
			v.revision = c.revision
			all.changed, all.removed = append(all.changed, c.changed...), append(all.removed, c.removed...)
		}
	}
	v.view.Apply(all.changed, all.removed)
	v.missed, v.waiting = nil, 0
}

// load reads the templates of the business unless they are loaded. Changes that
// are committed meanwhile are applied afterwards.
func (v *templateView) load(ctx context.Context, s *Store, business catalog.Business) error {
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

// loaded lets concurrent searches of a loaded view run without waiting.
func (v *templateView) loaded() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.view != nil
}

// forget makes the next search load the view again.
func (v *templateView) forget() { v.view, v.missed, v.waiting = nil, nil, 0 }

// follow makes the view collect the changes committed from now on, unless it is
// loaded.
func (v *templateView) follow() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.follows = v.view == nil
	return v.follows
}

// readInto adds all templates to a view, and returns the revision that they
// have.
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

// templatePage is an answer to a search, unless the view was behind the file.
type templatePage struct {
	ids       []int64
	templates []catalog.Template // unless only ids are asked for
	total     int
	behind    bool
	revision  uint64 // of the business in the file
}

// SearchTemplates returns a page of the matching templates.
func (s *Store) SearchTemplates(ctx context.Context, business catalog.Business, search catalog.Search) ([]catalog.Template, int, error) {
	if err := search.Validate(); err != nil {
		return nil, 0, fmt.Errorf("search processes: %w", err)
	}
	page, err := s.find(ctx, business, search, true)
	return page.templates, page.total, err
}

// FindTemplates returns the ids of all matching templates.
func (s *Store) FindTemplates(ctx context.Context, business catalog.Business, search catalog.Search) ([]int64, error) {
	search.Limit = 1
	if err := search.Validate(); err != nil {
		return nil, fmt.Errorf("find processes: %w", err)
	}
	search.Limit = math.MaxInt
	page, err := s.find(ctx, business, search, false)
	return page.ids, err
}

// find searches a view with everything that was committed before. With rows it
// also reads the matching templates.
func (s *Store) find(ctx context.Context, business catalog.Business, search catalog.Search, rows bool) (templatePage, error) {
	if business.Validate() != nil {
		return templatePage{}, ctx.Err()
	}
	for {
		v := s.templates.Use(business, s.now())
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

// search finds templates in the view and, with rows, reads them from the file
// as it was when they were found.
func (v *templateView) search(ctx context.Context, s *Store, business catalog.Business, search catalog.Search, rows bool) (templatePage, error) {
	v.lockSettled() // no commit reaches the view until its state and that of the transaction were compared
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

// lockSettled locks the view, with all that reached it, for reading.
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

// catchUp waits for the writer, so that all that was committed before has
// reached the view. If that is not so (a commit failed and was done all the
// same, or the view was forgotten), it has to be loaded anew.
func (v *templateView) catchUp(ctx context.Context, s *Store, revision uint64) error {
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
