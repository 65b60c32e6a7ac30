// Command matrix reads the output of `go test -json` for every TestFaultMatrix and
// writes the fault matrix into its section of a document. It writes nothing if a row
// failed or is missing.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet/test/internal/page"
)

func main() {
	if err := run(os.Stdin, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(in io.Reader, args []string) error {
	if len(args) != 1 {
		return errors.New("the argument is the document with the section")
	}
	outcomes, err := read(in)
	if err != nil {
		return err
	}
	text, err := list(outcomes)
	if err != nil {
		return err
	}
	return page.Write(args[0], "matrix", text)
}

// outcome is the combined result of the tests of one row.
type outcome struct {
	passed, failed int
	skipped        string // reason of a skipped test
}

// testEvent is a line of `go test -json`.
type testEvent struct {
	Action, Package, Test, Output string
}

var rowName = regexp.MustCompile(`^TestFaultMatrix/F(\d+)_[^/]+$`)

func read(in io.Reader) (map[int]*outcome, error) {
	outcomes, reasons := map[int]*outcome{}, map[string]string{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e testEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%w: %q", err, lines.Text())
		}
		match := rowName.FindStringSubmatch(e.Test)
		if match == nil {
			if e.Action == "fail" && e.Test == "" {
				fmt.Fprintln(os.Stderr, e.Package, "failed")
			}
			continue
		}
		number, err := strconv.Atoi(match[1])
		if err != nil {
			return nil, err
		}
		o := outcomes[number]
		if o == nil {
			o = &outcome{}
			outcomes[number] = o
		}
		name := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			if _, why, found := strings.Cut(e.Output, "NOT CHECKED: "); found {
				reasons[name] = strings.TrimSpace(why)
			}
		case "pass":
			o.passed++
		case "fail":
			o.failed++
			fmt.Fprintln(os.Stderr, name, "failed")
		case "skip":
			o.skipped = reasons[name]
		}
	}
	return outcomes, lines.Err()
}

// list returns the text of the section.
func list(outcomes map[int]*outcome) (string, error) {
	var text strings.Builder
	text.WriteString(groupList())
	var wrong []error
	for _, f := range faults {
		o, notRun := outcomes[f.number], ""
		switch {
		case f.measured != "":
			notRun = f.measured
		case o == nil:
			wrong = append(wrong, fmt.Errorf("no test for F%d", f.number))
		case o.failed > 0:
			wrong = append(wrong, fmt.Errorf("failed: F%d", f.number))
		case o.passed == 0:
			notRun = o.skipped
		}
		if notRun != "" {
			fmt.Fprintf(&text, "* F%d was not run: %s\n", f.number, notRun)
		}
	}
	return text.String(), errors.Join(wrong...)
}
