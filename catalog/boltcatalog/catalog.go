// Package boltcatalog is a catalog in a file of package boltdb, for one machine. Reads
// return copies, except of topologies, which are shared. For searches, the templates of a
// business are also held in memory, see [templateView].
package boltcatalog

import (
	"context"
	"errors"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/recent"
	"github.com/procfleet/procfleet/internal/boltdb"
)

var _ catalog.Store = (*Catalog)(nil)

// Options holds the settings of a catalog.
type Options struct {
	// RememberHost ensures that another store calls [ForgetHost] when the host has not
	// reported for long. It is called again and again for each host with a report. nil
	// means that reports never expire.
	RememberHost func(t *boltdb.Tx, h procfleet.Host) error
}

// Catalog is a catalog in one file. Create it with [New]. It is safe for concurrent use.
type Catalog struct {
	db         *boltdb.DB
	opt        Options
	templates  *recent.Businesses[templateView]
	topologies *recent.Businesses[topologyMemo]
}

// New returns the catalog in a file.
func New(db *boltdb.DB, opt Options) (*Catalog, error) {
	s := &Catalog{db: db, opt: opt, templates: recent.New(newTemplateView), topologies: recent.New(newTopologyMemo)}
	err := db.Add(boltdb.Part{
		Buckets:  buckets(),
		IsAnswer: isAnswer,
		Evict:    s.evict,
		Purge:    []boltdb.PurgeStep{s.purgeReports, purgeFreezes},
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// evict removes businesses that were not used recently from memory.
func (s *Catalog) evict(now time.Time) {
	s.templates.Forget(now)
	s.topologies.Forget(now)
}

// isAnswer reports whether err is an error of the contract.
func isAnswer(err error) bool {
	var (
		edit    *catalog.EditError
		version *catalog.VersionError
	)
	return errors.Is(err, catalog.ErrBound) || errors.Is(err, catalog.ErrNoModule) || errors.As(err, &edit) || errors.As(err, &version)
}

// view calls fn with a read-only transaction on the last committed state.
func view[T any](ctx context.Context, s *Catalog, fn func(t *tx) (T, error)) (T, error) {
	return boltdb.View(ctx, s.db, func(t *boltdb.Tx) (T, error) { return fn(&tx{t}) })
}

// update runs fn with [boltdb.Update].
func update[T any](ctx context.Context, s *Catalog, fn func(t *tx) (T, error)) (T, error) {
	return boltdb.Update(ctx, s.db, func(t *boltdb.Tx) (T, error) { return fn(&tx{t}) })
}

// change is update for changes without a result.
func change(ctx context.Context, s *Catalog, fn func(t *tx) error) error {
	return boltdb.Change(ctx, s.db, func(t *boltdb.Tx) error { return fn(&tx{t}) })
}
