// Command matrix reads the output of `go test -json` for every TestFaultMatrix and
// writes the fault matrix as a document. It writes nothing if a row failed or is
// missing.
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
)

func main() {
	if err := run(os.Stdin, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(in io.Reader, args []string) error {
	if len(args) != 1 {
		return errors.New("the argument is the document to write")
	}
	outcomes, err := read(in)
	if err != nil {
		return err
	}
	text, err := document(outcomes)
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], []byte(text), 0o644) //nolint:gosec // a document is for everybody
}

// outcome is the combined result of the tests of one row.
type outcome struct {
	passed, failed int
	skipped        string // reason of a skipped test
	seconds        float64
	parts          float64 // duration of the longest subtest
}

// testEvent is a line of `go test -json`.
type testEvent struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

var rowName = regexp.MustCompile(`^TestFaultMatrix/F(\d+)_[^/]+(/.+)?$`)

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
		if match == nil || match[2] != "" && e.Elapsed == 0 {
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
		if match[2] != "" { // a subtest: a parallel one is not in the time of its row
			o.parts = max(o.parts, e.Elapsed)
			continue
		}
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
		o.seconds += e.Elapsed
	}
	return outcomes, lines.Err()
}

const preamble = `# Fault matrix

This page shows how an agent handles faults on its host. ` + "`make fault-matrix`" + ` causes each fault in a test, and writes this
page. The test of a row has the row's number (` + "`TestFaultMatrix/F12_…`" + `). Most tests are in [test/faults](../test/faults) and
use the built agent, a real NATS server and real processes. A test that needs none of them is in the package that it
tests.

The level of a row is what its tests need: U no processes, P real processes, R root, N namespaces, B the benchmark,
W commands for Windows. The seconds are the sum over all tests of a row; rows run concurrently.

| number | fault | level | outcome | seconds |
|---|---|---|---|---|
`

func document(outcomes map[int]*outcome) (string, error) {
	var text strings.Builder
	text.WriteString(preamble)
	var wrong []error
	for _, f := range faults {
		o := outcomes[f.number]
		result, seconds := "", "-"
		switch {
		case f.measured != "":
			result = "not run: " + f.measured
		case o == nil:
			wrong = append(wrong, fmt.Errorf("no test for F%d", f.number))
		case o.failed > 0:
			wrong = append(wrong, fmt.Errorf("failed: F%d", f.number))
		case o.passed == 0:
			result = "not run: " + o.skipped
		default:
			result, seconds = "pass", strconv.FormatFloat(max(o.seconds, o.parts), 'f', 1, 64)
		}
		fmt.Fprintf(&text, "| F%d | %s | %s | %s | %s |\n", f.number, f.text, f.level, result, seconds)
	}
	return text.String(), errors.Join(wrong...)
}
