//go:build unix

package datafile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/datafile"
	"github.com/procfleet/procfleet/internal/testenv"
)

// A data folder is rejected if another account may write one of its ancestors: the account could rename the
// folder and replace it by its own.
func TestAFolderThatOthersCouldReplaceIsRefused(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	const nobody = 65534
	base := t.TempDir()
	folder := func(name string, mode os.FileMode, owner int) string {
		t.Helper()
		above := filepath.Join(base, name)
		data := filepath.Join(above, "middle", "data")
		if err := errors.Join(os.MkdirAll(data, 0o700), os.Chown(above, owner, owner), os.Chmod(above, mode)); err != nil {
			t.Fatal(err)
		}
		return data
	}
	link := func(name, target string, owner int) string {
		t.Helper()
		path := filepath.Join(base, name)
		if err := errors.Join(os.Symlink(target, path), os.Lchown(path, owner, owner)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own := folder("own", 0o755, 0)
	everybody := folder("everybody", 0o777, 0)
	hop := filepath.Join(base, "everybody", "hop")
	if err := os.Symlink(own, hop); err != nil {
		t.Fatal(err)
	}
	for dir, says := range map[string]string{
		own:                                      "",
		folder("sticky", 0o777|os.ModeSticky, 0): "",
		link("good", filepath.Join("own", "middle", "data"), 0): "",
		everybody:                        filepath.Join(base, "everybody") + ", which has mode 0777",
		folder("group", 0o775, 0):        filepath.Join(base, "group") + ", which has mode 0775",
		folder("foreign", 0o755, nobody): filepath.Join(base, "foreign") + ", which belongs to uid 65534",
		folder("stickyforeign", 0o755|os.ModeSticky, nobody): filepath.Join(base, "stickyforeign") + ", which belongs to uid 65534",
		link("foreignlink", own, nobody):                     filepath.Join(base, "foreignlink") + ", which belongs to uid 65534",
		link("twolinks", hop, 0):                             filepath.Join(base, "everybody") + ", which has mode 0777",
	} {
		err := datafile.OwnFolder(dir)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", dir, err, says)
		}
	}
}
