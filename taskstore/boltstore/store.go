// Package boltstore is the task store of one machine, and the catalog beside
// it: a single file that survives a kill at any moment.
//
// Every change is one function run by one goroutine, which puts all changes
// that wait into one transaction of bbolt and answers their callers when it
// is on disk. Reads see the last committed state and copy what they return,
// but for topologies, which are shared. To search the templates of a business
// there is a view of them in memory, see [templateView].
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
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/recent"
)

var (
	_ taskstore.Store = (*Store)(nil)
	_ catalog.Store   = (*Store)(nil)
)

// Options are the optional settings of a store.
type Options struct {
	// Log gets a line when expired tasks cannot be removed; default none.
	Log logrus.FieldLogger
	// Clock is the store's clock; nil is the machine's.
	Clock func() time.Time
}

// lockTimeout is how long Open waits for another process, which may be about
// to exit, to close the file.
const lockTimeout = 3 * time.Second

// format is the version of the file's layout.
const format = 1

// Store is a task store and a catalog in one file.
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

// Open opens the file at path, or makes it; its folder must be there. A file
// that another process has open is an error after a few seconds.
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
		// Where agents were, as versions before wrote it; agents announce themselves again.
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

// Close ends the store after the changes that are under way. Later calls
// return [taskstore.ErrUnavailable]; closing again does nothing.
func (s *Store) Close() error { return s.shut() }

func (s *Store) close() error {
	s.stop()
	s.own.Wait()
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close task store: %w", err)
	}
	return nil
}

// now is the store's time, in the microseconds that it keeps.
func (s *Store) now() time.Time { return s.clock().UTC().Truncate(time.Microsecond) }

// Now is the store's time.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	return s.now(), nil
}

// view runs fn on the last committed state.
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

// clean reports whether err is an error of the contract or of a context that
// ended, not one of the file. A change returns such errors before it writes.
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

// outward makes an error of the file (closed, disk full) an ErrUnavailable.
func outward(err error) error {
	if err == nil || clean(err) {
		return err
	}
	return fmt.Errorf("%w: %w", taskstore.ErrUnavailable, err)
}
