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
	_, section, _ := strings.Cut(string(text), "<!-- matrix -->\n")
	section, _, found := strings.Cut(section, "<!-- end of matrix -->\n")
	rest, same := strings.CutPrefix(section, groupList())
	if !found || !same {
		t.Fatalf("the section is not that of make fault-matrix: %s", section)
	}
	notRun := strings.Count(rest, "\n")
	if notRun != strings.Count(rest, " was not run: ") {
		t.Errorf("the section ends with other lines than those of faults that were not run: %s", rest)
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
