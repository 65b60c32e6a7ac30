// Package boltstore is a task store and a catalog in a single bbolt file, for one
// machine. The file survives a crash of the process or the machine at any moment.
//
// A single goroutine makes all changes. It runs all waiting changes in one transaction
// and replies to their callers when the transaction is on disk. Reads use the last
// committed state. They return copies, except of topologies, which are shared. For
// searches, the templates of a business are also held in memory, see [templateView].
package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/recent"
	"github.com/procfleet/procfleet/taskstore"
)

var (
	_ taskstore.Store = (*Store)(nil)
	_ catalog.Store   = (*Store)(nil)
)

// Options holds the optional settings of a store.
type Options struct {
	// Log receives errors of the removal of expired data; nil discards them.
	Log logrus.FieldLogger
	// Clock is the store's clock; default [time.Now].
	Clock func() time.Time
}

// lockTimeout is how long Open waits until another process closes the file. That
// process may be about to exit.
const lockTimeout = 3 * time.Second

// format is the version of the file's layout.
const format = 1

// Store is a task store and a catalog in one file. Create it with [Open]. It is safe
// for concurrent use.
type Store struct {
	db     *bbolt.DB
	log    logrus.FieldLogger
	clock  func() time.Time
	leases leases

	templates  *recent.Businesses[templateView]
	topologies *recent.Businesses[topologyMemo]

	jobs chan *job
	stop context.CancelFunc
	done <-chan struct{} // closed by stop
	own  sync.WaitGroup
	shut func() error
}

// Open opens the file at path. It creates the file if it is missing; the directory must
// exist. If another process has the file open, Open returns an error after 3 s.
func Open(path string, o Options) (*Store, error) {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		o.Log = silent
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open task store %s: another process has it open; end that one or give another data folder", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open task store %s: %w", path, err)
	}
	if err := prepare(db); err != nil {
		return nil, errors.Join(fmt.Errorf("open task store %s: %w", path, err), db.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		db: db, log: o.Log.WithField("component", "boltstore"), clock: o.Clock,
		templates: recent.New(newTemplateView), topologies: recent.New(newTopologyMemo),
		jobs: make(chan *job), stop: stop, done: ctx.Done(),
	}
	s.shut = sync.OnceValue(s.close)
	s.own.Go(s.write)
	s.own.Go(func() { s.purgeForever(ctx) })
	return s, nil
}

func prepare(db *bbolt.DB) error {
	return db.Update(func(t *bbolt.Tx) error {
		for _, name := range buckets() {
			if _, err := t.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		// Remove the announcements in the format of earlier versions; agents announce
		// themselves again.
		if err := t.DeleteBucket([]byte("agents")); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
			return err
		}
		meta := t.Bucket(bucketMeta)
		if v := meta.Get(keyFormat); v != nil && binary.BigEndian.Uint64(v) != format {
			return fmt.Errorf("the file has format %d, this version reads %d", binary.BigEndian.Uint64(v), format)
		}
		return meta.Put(keyFormat, number8(format))
	})
}

// Close completes the changes in progress and closes the file. Later calls of other
// methods return [taskstore.ErrUnavailable]. Closing again does nothing.
func (s *Store) Close() error { return s.shut() }

func (s *Store) close() error {
	s.stop()
	s.own.Wait()
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close task store: %w", err)
	}
	return nil
}

// now returns the store's time in microseconds, the resolution of stored times.
func (s *Store) now() time.Time { return s.clock().UTC().Truncate(time.Microsecond) }

// Now returns the store's time.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	return s.now(), nil
}

// view calls fn with a read-only transaction on the last committed state.
func view[T any](ctx context.Context, s *Store, fn func(t *tx) (T, error)) (T, error) {
	var v, none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	err := s.db.View(func(b *bbolt.Tx) (err error) {
		v, err = fn(&tx{Tx: b, now: s.now()})
		return err
	})
	if err != nil {
		return none, outward(err)
	}
	return v, nil
}

// clean reports whether err is an error of the store's contract or of an ended context,
// as opposed to an error of the file. A change returns such an error only before it
// writes.
func clean(err error) bool {
	for _, answer := range []error{
		taskstore.ErrNotFound, taskstore.ErrConflict, taskstore.ErrRejected, taskstore.ErrExpired, taskstore.ErrCursor,
		catalog.ErrBound, catalog.ErrNoModule,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	var (
		field   *procfleet.FieldError
		edit    *catalog.EditError
		version *catalog.VersionError
	)
	return errors.As(err, &field) || errors.As(err, &edit) || errors.As(err, &version)
}

// outward converts an error of the file, for example a full disk, to ErrUnavailable.
func outward(err error) error {
	if err == nil || clean(err) {
		return err
	}
	return fmt.Errorf("%w: %w", taskstore.ErrUnavailable, err)
}
