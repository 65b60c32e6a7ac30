package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// longestPage is the maximum number of lines of a page.
const longestPage = 400

// TestLinksOfDocumentsExist checks that the target of every link exists,
// including the heading, and every test file that a page names.
func TestLinksOfDocumentsExist(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		pages = append(pages, found...)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	testFile := regexp.MustCompile("`([a-z][a-z/]*/[a-z0-9_]+_test\\.go)`")
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(text), "\n"); lines > longestPage && strings.HasPrefix(page, "../docs/") {
			t.Errorf("%s has %d lines, more than %d: split it", page, lines, longestPage)
		}
		for _, found := range testFile.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join("..", found[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			path, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(path, ":") { // another site
				continue
			}
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: link to %s: %v", page, found[1], err)
			} else if anchor != "" && strings.HasSuffix(to, ".md") && !slices.Contains(anchors(t, to), anchor) {
				t.Errorf("%s: %s has no heading #%s", page, to, anchor)
			}
		}
	}
}
