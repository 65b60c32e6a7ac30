// Package page writes the sections of documents that programs generate.
package page

import (
	"bytes"
	"fmt"
	"os"
	"slices"
)

// Write replaces the text between the lines <!-- section --> and <!-- end of section -->
// of the document in a file, and changes nothing else. The text ends with a newline.
func Write(file, section, text string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := fmt.Appendf(nil, "<!-- %s -->\n", section), fmt.Appendf(nil, "<!-- end of %s -->\n", section)
	before, rest, begun := bytes.Cut(old, begin)
	_, after, ended := bytes.Cut(rest, end)
	if !begun || !ended {
		return fmt.Errorf("write a section of %s: the document has no lines %q and %q", file, bytes.TrimSpace(begin), bytes.TrimSpace(end))
	}
	return os.WriteFile(file, slices.Concat(before, begin, []byte(text), end, after), 0o600) // the file exists and keeps its mode
}
