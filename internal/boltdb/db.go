// Package boltdb is the bbolt file of the task store and the catalog of one machine. The
// file survives a crash of the process or the machine at any moment.
//
// A single goroutine makes all changes. It runs all waiting changes in one transaction
// and replies to their callers when the transaction is on disk. Reads use the last
// committed state.
package boltdb

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/packing"
	"github.com/procfleet/procfleet/taskstore"
)

// Options holds the optional settings of a file.
type Options struct {
	// Log receives errors of the removal of expired data; nil discards them.
	Log logrus.FieldLogger
	// Clock is the clock of the stores in the file; default [time.Now].
	Clock func() time.Time
	// NoSync leaves it to the operating system when changes reach the disk: they survive
	// the death of the process, but not that of the host. For tests.
	NoSync bool
}

// lockTimeout is how long Open waits until another process closes the file. That
// process may be about to exit.
const lockTimeout = 3 * time.Second

// BucketMeta is the bucket for data about the file. It belongs to no [Part]. Its key
// "format" is [packing.Format].
var BucketMeta = []byte("meta")

var keyFormat = []byte("format")

// DB is an open file. Create it with [Open], and add each store with [DB.Add]. It is safe
// for concurrent use.
type DB struct {
	bolt  *bbolt.DB
	log   logrus.FieldLogger
	clock func() time.Time

	mu    sync.Mutex
	parts []Part

	jobs chan *job
	stop context.CancelFunc
	done <-chan struct{} // closed by stop
	own  sync.WaitGroup
	shut func() error
}

// Part is what one store has in the file.
type Part struct {
	// Buckets are created if they are missing.
	Buckets [][]byte
	// IsAnswer reports whether err is an error of the store's contract, as opposed to an
	// error of the file. A change returns such an error only before it writes.
	IsAnswer func(err error) bool
	// Evict removes data from memory that was not used recently; nil means that there is
	// none.
	Evict func(now time.Time)
	// Purge removes expired data from the file, step by step.
	Purge []PurgeStep
}

// Open opens the file at path. It creates the file if it is missing; the directory must
// exist. If another process has the file open, Open returns an error after 3 s.
func Open(path string, o Options) (*DB, error) {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		o.Log = silent
	}
	bolt, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType, NoSync: o.NoSync})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open task store %s: another process has it open; end that one or give another data folder", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open task store %s: %w", path, err)
	}
	if err := bolt.Update(prepare); err != nil {
		return nil, errors.Join(fmt.Errorf("open task store %s: %w", path, err), bolt.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	db := &DB{
		bolt: bolt, log: o.Log.WithField("component", "boltstore"), clock: o.Clock,
		jobs: make(chan *job), stop: stop, done: ctx.Done(),
	}
	db.shut = sync.OnceValue(db.close)
	db.own.Go(db.write)
	db.own.Go(func() { db.purgeForever(ctx) })
	return db, nil
}

func prepare(t *bbolt.Tx) error {
	meta, err := t.CreateBucketIfNotExists(BucketMeta)
	if err != nil {
		return err
	}
	v := meta.Get(keyFormat)
	if v == nil {
		return meta.Put(keyFormat, Number8(packing.Format))
	}
	if err := packing.CheckFormat("the file", binary.BigEndian.Uint64(v)); err != nil {
		return fmt.Errorf("%w: start the procfleet that wrote it, or give another data folder", err)
	}
	return nil
}

// Add creates the buckets of a store and purges its expired data from now on. Call it
// before the first change or read of the store.
func (db *DB) Add(p Part) error {
	err := db.bolt.Update(func(t *bbolt.Tx) error {
		for _, name := range p.Buckets {
			if _, err := t.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("open task store %s: %w", db.bolt.Path(), err)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.parts = append(db.parts, p)
	return nil
}

func (db *DB) added() []Part {
	db.mu.Lock()
	defer db.mu.Unlock()
	return slices.Clone(db.parts)
}

// Close completes the changes in progress and closes the file. Later changes and reads
// return [taskstore.ErrUnavailable]. Closing again does nothing.
func (db *DB) Close() error { return db.shut() }

func (db *DB) close() error {
	db.stop()
	db.own.Wait()
	if err := db.bolt.Close(); err != nil {
		return fmt.Errorf("close task store: %w", err)
	}
	return nil
}

// Now returns the time of the file's clock in microseconds, the resolution of stored
// times.
func (db *DB) Now() time.Time { return db.clock().UTC().Truncate(time.Microsecond) }

// Tx is a transaction. bbolt permits to use the data of its buckets only until the
// transaction ends.
type Tx struct {
	*bbolt.Tx
	Now time.Time
}

// Get decodes a JSON value and reports whether it exists.
func (t *Tx) Get(bucket, key []byte, v any) (found bool, err error) {
	raw := t.Bucket(bucket).Get(key)
	if raw == nil {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("%s %x: %w", bucket, key, err)
	}
	return true, nil
}

// Put stores a value as JSON.
func (t *Tx) Put(bucket, key []byte, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s %x: %w", bucket, key, err)
	}
	return t.Bucket(bucket).Put(key, raw)
}

// View calls fn with a read-only transaction on the last committed state.
func View[T any](ctx context.Context, db *DB, fn func(t *Tx) (T, error)) (T, error) {
	var v, none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	err := db.bolt.View(func(b *bbolt.Tx) (err error) {
		v, err = fn(&Tx{Tx: b, Now: db.Now()})
		return err
	})
	if err != nil {
		return none, db.outward(err)
	}
	return v, nil
}

// clean reports whether err is an error that the contract of a store defines, such as a
// conflict, or the error of an ended context. Every other error is a failure of the database
// file. A change returns a clean error only before it writes.
func (db *DB) clean(err error) bool {
	var field *procfleet.FieldError
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &field) {
		return true
	}
	return slices.ContainsFunc(db.added(), func(p Part) bool { return p.IsAnswer(err) })
}

// outward converts an error of the file, for example a full disk, to ErrUnavailable.
func (db *DB) outward(err error) error {
	if err == nil || db.clean(err) {
		return err
	}
	return fmt.Errorf("%w: %w", taskstore.ErrUnavailable, err)
}
