package boltcatalog

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/boltdb"
)

func openFile(t *testing.T, path string, opt boltdb.Options) *Catalog {
	t.Helper()
	db, err := boltdb.Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(db, Options{})
	if err != nil {
		t.Fatal(err, db.Close())
	}
	return s
}

func openAt(t *testing.T, ahead *atomic.Int64) *Catalog {
	t.Helper()
	s := openFile(t, filepath.Join(t.TempDir(), "tasks.db"), boltdb.Options{
		Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	})
	t.Cleanup(func() {
		if err := s.db.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// held keeps the writer busy until release is called.
func held(t *testing.T, s *Catalog) (release func()) {
	t.Helper()
	running, gate := make(chan struct{}), make(chan struct{})
	over := make(chan error, 1)
	go func() {
		over <- change(t.Context(), s, func(*tx) error { close(running); <-gate; return nil })
	}()
	<-running
	return func() {
		close(gate)
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

func keysIn(t *testing.T, s *Catalog, bucket []byte) int {
	t.Helper()
	n, err := boltdb.View(t.Context(), s.db, func(t *boltdb.Tx) (int, error) { return t.Bucket(bucket).Stats().KeyN, nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}
