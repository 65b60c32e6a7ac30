// Command slow reads the events of test runs (go test -json) and prints the seconds of
// each package and of the slowest tests as Markdown. The time of compiling is not in them.
//
//	go run ./test/internal/slow [-in CONTRIBUTING.md] [-compile SECONDS] FILE…
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/test/internal/page"
)

const (
	module   = "github.com/procfleet/procfleet/"
	packages = 20 // rows of packages
	tests    = 30 // rows of tests
	section  = "slowest tests"
)

func main() {
	file := flag.String("in", "", "document whose section is replaced; default: standard output")
	compile := flag.Int("compile", 0, "seconds of compiling and linking all tests")
	flag.Parse()
	if err := run(flag.Args(), *compile, *file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(logs []string, compile int, file string) error {
	var all []timed
	for _, name := range logs {
		log, err := os.Open(name)
		if err != nil {
			return err
		}
		ended, err := read(log)
		log.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, ended...)
	}
	table := render(all, compile)
	if file == "" {
		fmt.Print(table)
		return nil
	}
	return page.Write(file, section, table)
}

// timed is a package, or a test of it, that ended.
type timed struct {
	Package, Test string
	Elapsed       float64 // seconds
}

// read returns the packages and the tests without subtests in a stream of events.
func read(r io.Reader) ([]timed, error) {
	var ended []timed
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			timed
			Action string
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, err
		}
		if (event.Action == "pass" || event.Action == "fail") && !strings.Contains(event.Test, "/") {
			event.Package = strings.TrimPrefix(event.Package, module)
			ended = append(ended, event.timed)
		}
	}
	return ended, lines.Err()
}

func render(all []timed, compile int) string {
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	var b strings.Builder
	if compile > 0 {
		fmt.Fprintf(&b, "Compiling and linking all tests took %d s.\n\n", compile)
	}
	var rows, rest int
	var seconds float64
	b.WriteString("| package | seconds |\n| --- | --- |\n")
	for _, t := range all {
		switch {
		case t.Test != "":
		case rows < packages:
			rows++
			fmt.Fprintf(&b, "| %s | %.0f |\n", t.Package, t.Elapsed)
		default:
			rest++
			seconds += t.Elapsed
		}
	}
	if rest > 0 {
		fmt.Fprintf(&b, "| %d others together | %.0f |\n", rest, seconds)
	}
	b.WriteString("\n| test | package | seconds |\n| --- | --- | --- |\n")
	rows = 0
	for _, t := range all {
		if t.Test != "" && rows < tests {
			rows++
			fmt.Fprintf(&b, "| %s | %s | %.1f |\n", t.Test, t.Package, t.Elapsed)
		}
	}
	return b.String()
}
