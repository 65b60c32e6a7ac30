package boltdb

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/procfleet/procfleet/internal/packing"
	"github.com/procfleet/procfleet/taskstore"
)

func openFile(t *testing.T) *DB {
	t.Helper()
	db, err := Open(filepath.Join(t.TempDir(), "tasks.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// held keeps the writer busy until release is called.
func held(t *testing.T, s *DB) (release func()) {
	t.Helper()
	running, gate := make(chan struct{}), make(chan struct{})
	over := make(chan error, 1)
	go func() {
		over <- Change(t.Context(), s, func(*Tx) error { close(running); <-gate; return nil })
	}()
	<-running
	return func() {
		close(gate)
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

func TestAChangeThatFailsHarmsNoOther(t *testing.T) {
	t.Parallel()
	s := openFile(t)
	release := held(t, s)
	broken := errors.New("broken")
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = Change(t.Context(), s, func(t *Tx) error {
				if err := t.Bucket(BucketMeta).Put(fmt.Appendf(nil, "test %d", i), []byte{1}); err != nil {
					return err
				}
				if i%5 == 0 {
					return broken
				}
				return nil
			})
		})
	}
	release()
	wg.Wait()
	for i, err := range errs {
		if bad := i%5 == 0; errors.Is(err, broken) != bad || errors.Is(err, taskstore.ErrUnavailable) != bad {
			t.Errorf("change %d: %v", i, err)
		}
	}
	err := s.bolt.View(func(b *bbolt.Tx) error {
		for i := range errs {
			if there := b.Bucket(BucketMeta).Get(fmt.Appendf(nil, "test %d", i)) != nil; there == (i%5 == 0) {
				t.Errorf("what change %d wrote is there: %v", i, there)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestACallerLeavesWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	s := openFile(t)
	release := held(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	ran := false
	go func() { over <- Change(ctx, s, func(*Tx) error { ran = true; return nil }) }()
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled change: %v", err)
	}
	release()
	if err := Change(t.Context(), s, func(*Tx) error { return nil }); err != nil || ran {
		t.Errorf("a change that nobody awaits ran: %v, %v", ran, err)
	}
}

func TestAFileInUseIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Open(path, Options{}); err == nil {
		t.Error("the file was opened twice", second.Close())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err = Open(filepath.Join(path, "no", "folder"), Options{}); err == nil {
		t.Error("a file in no folder was opened", s.Close())
	}
}

func TestAFileOfAnotherFormatIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	later := func(t *Tx) error { return t.Bucket(BucketMeta).Put(keyFormat, Number8(packing.Format+1)) }
	if err := errors.Join(Change(t.Context(), s, later), s.Close()); err != nil {
		t.Fatal(err)
	}
	want := "has format 2, this procfleet reads format 1: start the procfleet that wrote it, or give another data folder"
	if s, err := Open(path, Options{}); err == nil {
		t.Error("a file of another format was opened", s.Close())
	} else if !strings.HasSuffix(err.Error(), want) || errors.Is(err, taskstore.ErrUnavailable) {
		t.Errorf("error %q does not end with %q", err, want)
	}
}
