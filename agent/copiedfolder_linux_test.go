package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Only on Linux is a data folder bound to its machine.
func TestACopiedFolderIsANewInstanceWithoutTheJournal(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	open := func(dir string) *folder {
		t.Helper()
		f, err := openFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		closeFolder(t, f)
		return f
	}
	first := open(dir)
	writeOtherJournal(t, dir)
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if f := open(moved); f.copied != "" || f.instance != first.instance {
		t.Errorf("a folder that was moved: %+v", f)
	}
	copied := filepath.Join(t.TempDir(), "copied")
	if err := os.CopyFS(copied, os.DirFS(moved)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(copied, 0o700); err != nil {
		t.Fatal(err)
	}
	aside := func() string { return filepath.Join(copied, "journal.of-"+first.instance) }
	f := open(copied)
	if f.copied == "" || f.instance == first.instance || !there(t, aside()) || there(t, f.journal()) {
		t.Errorf("a copy: %+v", f)
	}
	writeOtherJournal(t, copied)
	if again := open(copied); again.copied != "" || again.instance != f.instance {
		t.Errorf("the copy once more: %+v", again)
	}
	// An operator deletes the binding to make the agent accept a restored folder.
	restored := filepath.Join(t.TempDir(), "restored")
	if err := os.CopyFS(restored, os.DirFS(moved)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(restored, 0o700), os.Remove(filepath.Join(restored, "machine"))); err != nil {
		t.Fatal(err)
	}
	if f := open(restored); f.copied != "" || f.instance != first.instance {
		t.Errorf("a folder that an operator vouched for: %+v", f)
	}
}
