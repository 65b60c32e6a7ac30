package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const commandPage = "../../docs/reference/cli.md"

// notOnCommandPage are the commands that the page omits: the commands of cobra, and the benchmarks.
var notOnCommandPage = []string{"help", "completion"}

// TestThePageOfCommandsIsTrue compares the page with the command tree; with
// -update it writes the table.
func TestThePageOfCommandsIsTrue(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(commandPage)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- commands -->\n", "<!-- end of commands -->\n"
	before, rest, found := strings.Cut(string(data), begin)
	table, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("no place for the commands")
	}
	want := "| command | what it does | flags |\n| --- | --- | --- |\n" + commandRows(newRoot())
	if *update {
		if err := os.WriteFile(commandPage, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("write the table with go test ./cmd/procfleet -run ThePageOfCommands -update\n%s", diff)
	}
}

// commandRows returns a table row for each runnable command below cmd.
func commandRows(cmd *cobra.Command) string {
	var rows strings.Builder
	for _, c := range cmd.Commands() {
		if c.Hidden || slices.Contains(notOnCommandPage, c.Name()) {
			continue
		}
		if c.Runnable() {
			fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", strings.TrimSuffix(c.UseLine(), " [flags]"), c.Short, flagsOf(c))
		}
		rows.WriteString(commandRows(c))
	}
	return rows.String()
}

// flagsOf returns the flags of a command for its row. For a role, such as worker, it returns a
// link to the page of settings. It omits the flags for the connection to a dispatcher, which
// are the same for all commands.
func flagsOf(c *cobra.Command) string {
	if slices.Contains(rolesOfPage, c.Name()) && c.Parent().Name() == "procfleet" {
		return "[settings](configuration.md)"
	}
	var names []string
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains([]string{"help", "token", "context", "output", "json"}, f.Name) && !strings.HasPrefix(f.Name, "server") {
			names = append(names, "`--"+f.Name+"`")
		}
	})
	return strings.Join(names, ", ")
}
