package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/plaintext"
)

// table is a list for people. Its last columns are shown only by --output wide.
type table struct {
	header []string
	wide   int // number of columns of --output wide alone
	rows   [][]string
	names  []string // one per row, for --output name
	empty  string   // text if there are no rows
	footer string   // line after the rows; "" = none
}

func (t *table) add(name string, cells ...string) {
	for i := range cells {
		cells[i] = orDash(cells[i])
	}
	t.rows, t.names = append(t.rows, cells), append(t.names, name)
}

// printTable writes v as JSON or YAML, or the table in the format of --output.
func (s *serverFlags) printTable(out io.Writer, v any, t *table) error {
	switch s.output {
	case outputName:
		for _, name := range t.names {
			fmt.Fprintln(out, oneLine(name))
		}
		return nil
	case outputWide:
		return t.write(out, len(t.header))
	case outputTable:
		return t.write(out, len(t.header)-t.wide)
	}
	return s.print(out, v, nil)
}

// write writes the first columns of the table. On a terminal, states have colors.
func (t *table) write(out io.Writer, columns int) error {
	if len(t.rows) == 0 {
		_, err := fmt.Fprintln(out, t.empty)
		return err
	}
	widths := make([]int, columns)
	rows := append([][]string{t.header}, t.rows...)
	for _, row := range rows {
		for i := range columns {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	colored := hasColors(out)
	var text strings.Builder
	for n, row := range rows {
		for i, cell := range row[:columns] {
			cell = plaintext.Line(cell)
			space := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell))+2)
			if i == columns-1 {
				space = ""
			}
			if n > 0 && colored {
				cell = colorOf(cell) + cell + noColor
			}
			text.WriteString(cell + space)
		}
		text.WriteByte('\n')
	}
	if t.footer != "" {
		text.WriteString(plaintext.Line(t.footer) + "\n")
	}
	_, err := io.WriteString(plaintext.Under(out), text.String())
	return err
}

// hasColors reports whether out is a terminal whose user has not disabled colors
// (https://no-color.org).
func hasColors(out io.Writer) bool {
	return isTerminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

const (
	noColor = "\x1b[0m"
	red     = "\x1b[31m"
	green   = "\x1b[32m"
	yellow  = "\x1b[33m"
)

func colorOf(cell string) string {
	switch word, _, _ := strings.Cut(cell, ","); word {
	case "up", "running", "succeeded", "finished":
		return green
	case "down", "fatal", "failed", "rejected", "conflict", "timed_out", "unreachable":
		return red
	case "backoff", "uncertain", "exited", "frozen", "cancelled":
		return yellow
	}
	return ""
}

// repeatFlags make a command repeat its output.
type repeatFlags struct{ watch bool }

const repeatEvery = 2 * time.Second

func (f *repeatFlags) register(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.watch, "watch", "w", false, "output again every 2 s until Ctrl-C")
}

// run calls show once, or with --watch until Ctrl-C. On a terminal each output replaces the
// previous one.
func (f *repeatFlags) run(cmd *cobra.Command, show func(ctx context.Context, out io.Writer) error) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	if !f.watch {
		return show(ctx, out)
	}
	for {
		if isTerminal(out) {
			fmt.Fprint(plaintext.Under(out), "\x1b[H\x1b[2J")
		}
		if err := show(ctx, out); err != nil && ctx.Err() == nil {
			return err
		}
		if pause(ctx, repeatEvery) != nil {
			return nil //nolint:nilerr // Ctrl-C is the normal end of --watch
		}
	}
}

// The formats of --output.
const (
	outputTable = "table"
	outputWide  = "wide"
	outputJSON  = "json"
	outputYAML  = "yaml"
	outputName  = "name"
)

// outputValue is the value of --output. --json is its short form.
type outputValue struct{ s *serverFlags }

func (v outputValue) String() string {
	if v.s == nil {
		return outputTable
	}
	return v.s.output
}

func (v outputValue) Type() string { return "format" }

func (v outputValue) Set(text string) error {
	if formats := []string{outputTable, outputWide, outputJSON, outputYAML, outputName}; !slices.Contains(formats, text) {
		return command.Usagef("%.70q is not one of %s", text, strings.Join(formats, ", "))
	}
	v.s.output, v.s.json = text, text == outputJSON || text == outputYAML
	return nil
}

// jsonValue is the value of --json.
type jsonValue struct{ s *serverFlags }

func (v jsonValue) String() string   { return fmt.Sprint(v.s != nil && v.s.json) }
func (v jsonValue) Type() string     { return "bool" }
func (v jsonValue) IsBoolFlag() bool { return true }

func (v jsonValue) Set(text string) error {
	switch text {
	case "true":
		return outputValue(v).Set(outputJSON)
	case "false":
		return outputValue(v).Set(outputTable)
	}
	return command.Usagef("%.70q is neither true nor false", text)
}
