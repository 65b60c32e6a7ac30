package proc

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/internal/testenv"
)

func TestAFileIsReadWithTheRightsOfTheAccount(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	for _, open := range []string{dir, filepath.Dir(dir)} { // for other accounts
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	runner, err := NewRunner(NewAccounts())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, mode os.FileMode) {
		if err := os.WriteFile(at(name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("open", 0o644)
	write("secret", 0o600)
	for _, err := range []error{
		os.Symlink("open", at("link")), os.Symlink(dir, at("linked")), os.Mkdir(at("closed"), 0o700), unix.Mkfifo(at("fifo"), 0o666),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write("closed/file", 0o644)
	for name, want := range map[string]string{
		"open": "", "linked/open": "is a symbolic link", "link": "is a symbolic link", "secret": "permission denied",
		"closed/file": "permission denied", "fifo": "is not a regular file", "closed": "is not a regular file", "none": "no such file",
	} {
		file, err := runner.OpenAs(t.Context(), "nobody", at(name))
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			text, err := io.ReadAll(file)
			if file.Close(); err != nil || string(text) != name {
				t.Errorf("%s: %q, %v", name, text, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if file, err := runner.OpenAs(t.Context(), "root", at("secret")); err != nil {
		t.Errorf("as root: %v", err)
	} else {
		file.Close()
	}
	if _, err := os.ReadFile(at("secret")); err != nil {
		t.Errorf("the test has lost its own rights: %v", err)
	}
}
