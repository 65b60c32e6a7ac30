package datafile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/procfleet/procfleet/internal/datafile"
)

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestLockIsHeldUntilTheFileIsClosed(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	first, second := open(t, name), open(t, name)
	if err := datafile.TryLock(first); err != nil {
		t.Fatal(err)
	}
	if err := datafile.TryLock(second); !errors.Is(err, datafile.ErrHeld) {
		t.Fatalf("a second lock: %v", err)
	}
	if _, err := first.WriteString("held"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "held" {
		t.Errorf("what is in a locked file reads as %q: %v", text, err)
	}
	got := make(chan error)
	go func() { got <- datafile.Lock(second) }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatalf("the lock after the first was closed: %v", err)
	}
}

func TestLockOfOneWhoGoesIsTakenSoon(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	first, second := open(t, name), open(t, name)
	if err := datafile.TryLock(first); err != nil {
		t.Fatal(err)
	}
	if err := datafile.LockSoon(second); !errors.Is(err, datafile.ErrHeld) {
		t.Fatalf("a second lock: %v", err)
	}
	got := make(chan error)
	go func() { got <- datafile.LockSoon(second) }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatalf("the lock after the first was closed: %v", err)
	}
}

func TestNamesAreMadeDurable(t *testing.T) {
	t.Parallel()
	if err := datafile.SyncDir(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestOpenFileCanBeRenamedAndReplaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name, final := filepath.Join(dir, "new"), filepath.Join(dir, "final")
	if err := os.WriteFile(final, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := datafile.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := datafile.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that is there is made again: %v", err)
	}
	if _, err := f.WriteAt([]byte("new text"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name, final); err != nil {
		t.Fatalf("rename it while it is open: %v", err)
	}
	if _, err := datafile.Open(name, os.O_RDWR); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old name still opens: %v", err)
	}
	again, err := datafile.Open(final, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Truncate(3); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(final); err != nil || string(text) != "new" {
		t.Errorf("it reads as %q: %v", text, err)
	}
}
