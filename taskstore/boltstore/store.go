// Package boltstore is a task store in a file of package boltdb, for one machine. Reads
// return copies.
package boltstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/taskstore"
)

var _ taskstore.Store = (*Store)(nil)

// Options holds the optional settings of a store.
type Options struct {
	// ForgetHost removes what other stores have of a host whose agents announced nothing
	// for [taskstore.InstanceMemory]. key is its [boltdb.HostKey]. nil removes nothing.
	ForgetHost func(t *boltdb.Tx, key []byte) error
}

// Store is a task store in one file. Create it with [New] or [Open]. It is safe for
// concurrent use.
type Store struct {
	db     *boltdb.DB
	opt    Options
	leases leases
}

// New returns the task store in a file. [Store.Close] closes the file.
func New(db *boltdb.DB, opt Options) (*Store, error) {
	s := &Store{db: db, opt: opt}
	err := db.Add(boltdb.Part{
		Buckets:  buckets(),
		IsAnswer: isAnswer,
		Purge:    []boltdb.PurgeStep{purgeTasks, s.purgeHosts},
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Open opens a file with [boltdb.Open] and returns the task store in it, without a
// catalog. It is for tests: hosts that it forgets keep their reports.
func Open(path string, opt boltdb.Options) (*Store, error) {
	db, err := boltdb.Open(path, opt)
	if err != nil {
		return nil, err
	}
	s, err := New(db, Options{})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// Close completes the changes in progress and closes the file. Later calls of other
// methods return [taskstore.ErrUnavailable]. Closing again does nothing.
func (s *Store) Close() error { return s.db.Close() }

// Now returns the store's time.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	return s.db.Now(), nil
}

// RememberHost adds a record of a host whose presence ends now, unless the host has a
// record. [Options.ForgetHost] is called when the record expires.
func RememberHost(t *boltdb.Tx, h procfleet.Host) error {
	key := boltdb.HostKey(h)
	if r, err := (&tx{t}).host(key); err != nil || r != nil {
		return err
	}
	return t.Put(bucketHosts, key, &hostRecord{Last: taskstore.Announcement{Host: h}, Since: t.Now, Until: t.Now})
}

// isAnswer reports whether err is an error of the contract.
func isAnswer(err error) bool {
	return slices.ContainsFunc([]error{
		taskstore.ErrNotFound, taskstore.ErrConflict, taskstore.ErrRejected, taskstore.ErrExpired, taskstore.ErrCursor,
	}, func(answer error) bool { return errors.Is(err, answer) })
}

// view calls fn with a read-only transaction on the last committed state.
func view[T any](ctx context.Context, s *Store, fn func(t *tx) (T, error)) (T, error) {
	return boltdb.View(ctx, s.db, func(t *boltdb.Tx) (T, error) { return fn(&tx{t}) })
}

// update runs fn with [boltdb.Update].
func update[T any](ctx context.Context, s *Store, fn func(t *tx) (T, error)) (T, error) {
	return boltdb.Update(ctx, s.db, func(t *boltdb.Tx) (T, error) { return fn(&tx{t}) })
}

// change is update for changes without a result.
func change(ctx context.Context, s *Store, fn func(t *tx) error) error {
	return boltdb.Change(ctx, s.db, func(t *boltdb.Tx) error { return fn(&tx{t}) })
}
