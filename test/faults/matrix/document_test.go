package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxNotRun is the maximum number of faults without a test.
const maxNotRun = 10

func TestDocumentMatchesTheMatrix(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	item := regexp.MustCompile(`(?m)^\* F\d+[ :].*$`)
	items := item.FindAllString(string(text), -1)
	if len(items) != len(faults) {
		t.Fatalf("%d items, want %d: make fault-matrix writes them", len(items), len(faults))
	}
	notRun := 0
	for i, f := range faults {
		text, _, skipped := strings.Cut(items[i], ". Not run: ")
		if text != f.item() {
			t.Errorf("item %q is not that of F%d: make fault-matrix writes it", items[i], f.number)
		}
		if skipped {
			notRun++
		}
	}
	if notRun > maxNotRun {
		t.Errorf("%d faults were not run, at most %d may be", notRun, maxNotRun)
	}
}

func TestEveryFaultHasATestOrAReason(t *testing.T) {
	t.Parallel()
	tested := map[string]bool{}
	name := regexp.MustCompile(`"F(\d+)_[a-z0-9_]+"`)
	for _, folder := range []string{"agent", filepath.Join("test", "faults")} {
		err := filepath.WalkDir(filepath.Join("..", "..", "..", folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, match := range name.FindAllStringSubmatch(string(text), -1) {
				tested[match[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range faults {
		if has := tested[fmt.Sprint(f.number)]; has == (f.measured != "") {
			t.Errorf("F%d has a test: %v, and a reason for none: %q", f.number, has, f.measured)
		}
	}
}
