package proc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// linked is a folder in which an account, uid 65534, has put symbolic links.
func linked(t *testing.T) (dir string) {
	t.Helper()
	testenv.NeedRoot(t) // only root may change the owner of files
	dir = t.TempDir()
	const account = 65534
	file := func(name string, owner int) {
		path := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		check(t, os.WriteFile(path, []byte("4711\n"), 0o644))
		check(t, os.Chown(path, owner, owner))
		check(t, os.Chown(filepath.Dir(path), owner, owner))
	}
	link := func(target, name string, owner int) {
		path := filepath.Join(dir, name)
		check(t, os.Symlink(target, path))
		check(t, os.Lchown(path, owner, owner))
	}
	file("root/pid", 0)
	file("account/pid", account)
	link("root", "by-root", 0)
	link("account", "by-root-to-account", 0)
	link("root", "by-account", account)
	link(filepath.Join(dir, "root"), "by-account-absolute", account)
	link("account", "current", account)
	link("root/pid", "secret.pid", account)
	link("by-account", "over-root", 0)
	link("loop", "loop", 0)
	link("current", "by-another", account-1)
	return dir
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnAccountsLinksLeadRootToItsOwnFilesOnly(t *testing.T) {
	t.Parallel()
	dir := linked(t)
	const refused = "a symbolic link of uid 6553"
	for path, want := range map[string]string{
		"root/pid":                   "",
		"account/pid":                "",
		"by-root/pid":                "",
		"by-root/../account/pid":     "",
		"by-root-to-account/pid":     "",
		"current/pid":                "",
		"by-account/pid":             refused,
		"by-account/../root/pid":     refused,
		"by-account-absolute/pid":    refused,
		"secret.pid":                 refused,
		"over-root/pid":              refused,
		"by-another/pid":             refused,
		"current/../secret.pid":      refused,
		"loop/pid":                   "too many levels of symbolic links",
		"root":                       "it is not a regular file",
		"current/nothing":            "no such file",
		"account/pid/below-no-files": "not a directory",
	} {
		for how, open := range map[string]func(string) (*os.File, error){"openat2": openPath, "walk": walk} {
			place, err := open(dir + "/" + path)
			if want == "" && err != nil || want != "" && path != "root" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s %s: %v, want %q", how, path, err, want)
			}
			if err == nil {
				place.Close()
			}
		}
		text, _, err := readPidFile(dir + "/" + path)
		if (err == nil) != (want == "") || err == nil && string(text) != "4711\n" {
			t.Errorf("read %s: %q %v", path, text, err)
		}
	}
}

func TestAFileIsNotRenamedThroughAnAccountsLink(t *testing.T) {
	t.Parallel()
	dir := linked(t)
	for _, c := range []struct {
		path  string
		moved bool
	}{ // in this order: the links of the first two lead to the last
		{"by-account/pid", false},
		{"by-account-absolute/pid", false},
		{"current/pid", true},
		{"root/pid", true},
	} {
		err := RenameInDir(filepath.Join(dir, c.path), "pid.stale")
		_, gone := os.Stat(filepath.Join(dir, c.path))
		if (err == nil) != c.moved || os.IsNotExist(gone) != c.moved {
			t.Errorf("%s: %v, then %v, want it moved: %v", c.path, err, gone, c.moved)
		}
	}
	if err := RenameInDir(filepath.Join(dir, "secret.pid"), "other"); err != nil { // the link itself is the account's
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "root/pid.stale")); err != nil || string(text) != "4711\n" {
		t.Errorf("root's file, renamed once on purpose: %q %v", text, err)
	}
}
