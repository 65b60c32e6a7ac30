package page

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteReplacesOneSection(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "page.md")
	const text = "# Title\n<!-- one -->\nold\n<!-- end of one -->\nbetween\n<!-- two -->\n<!-- end of two -->\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(file, "one", "new\n"); err != nil {
		t.Fatal(err)
	}
	const want = "# Title\n<!-- one -->\nnew\n<!-- end of one -->\nbetween\n<!-- two -->\n<!-- end of two -->\n"
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("the page is %q, %v", got, err)
	}
	if err := Write(file, "three", "new\n"); err == nil {
		t.Error("a page without the section is no error")
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("a failed write changes the page to %q, %v", got, err)
	}
}
