package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/cmd/internal/command"
)

// print writes v in the format of --output; text writes it for people. A command whose
// output is no list has no names.
func (s *serverFlags) print(out io.Writer, v any, text func(io.Writer) error) error {
	switch s.output {
	case outputJSON, outputYAML:
		return s.writeDocument(out, v)
	case outputName:
		return command.Usagef("--output name: this command has no list of names")
	}
	return text(out)
}

// writeDocument writes v as JSON or YAML.
func (s *serverFlags) writeDocument(out io.Writer, v any) error {
	if s.output == outputJSON {
		return writeJSON(out, v)
	}
	text, err := yaml.Marshal(v)
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// writeLine writes v as one line of JSON, or as one document of a YAML stream.
func (s *serverFlags) writeLine(out io.Writer, v any) error {
	if s.output == outputJSON {
		return json.NewEncoder(out).Encode(v)
	}
	fmt.Fprintln(out, "---")
	return s.writeDocument(out, v)
}

func writeJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

// collect returns all rows in a non-nil slice, so that JSON has [] for none.
func collect[T any](rows iter.Seq2[T, error]) ([]T, error) {
	all := []T{}
	for row, err := range rows {
		if err != nil {
			return all, err
		}
		all = append(all, row)
	}
	return all, nil
}

// tableRows is the number of rows of a table by [writeTables].
const tableRows = 1000

// writeTables writes one table per thousand rows, as they arrive, and one without rows if
// there are none.
func writeTables[T any](out io.Writer, rows iter.Seq2[T, error], write func(io.Writer, []T) error) error {
	var table []T
	written := false
	for row, err := range rows {
		if err != nil {
			return errors.Join(write(out, table), err)
		}
		if table = append(table, row); len(table) == tableRows {
			if err := write(out, table); err != nil {
				return err
			}
			table, written = table[:0], true
		}
	}
	if len(table) == 0 && written {
		return nil
	}
	return write(out, table)
}

// oneLine converts text of hosts and callers to the text of a table cell: without line
// breaks and control characters, and at most 240 characters long.
func oneLine(text string) string {
	const longest = 240 // characters
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if cut := []rune(text); len(cut) > longest {
		return string(cut[:longest-1]) + "…"
	}
	return text
}

func yesOrNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// openInput opens the file path, or returns stdin for "-".
func openInput(stdin io.Reader, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(stdin), nil
	}
	return os.Open(path) //nolint:gosec // a file that the user names
}

func readInput(stdin io.Reader, path string) ([]byte, error) {
	in, err := openInput(stdin, path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(in)
}
