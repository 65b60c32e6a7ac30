package main

import (
	"fmt"
	"os"
	"reflect"
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
// -update it writes the list.
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
	want := commandItems(newRoot())
	if *update {
		if err := os.WriteFile(commandPage, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("write the list with go test ./cmd/procfleet -run ThePageOfCommands -update\n%s", diff)
	}
}

// maxFlags is the number of flags up to which the item of a command names them.
const maxFlags = 6

// commandItems returns a list item for each command below cmd, except groups of commands.
func commandItems(cmd *cobra.Command) string {
	var items strings.Builder
	for _, c := range cmd.Commands() {
		if c.Hidden || slices.Contains(notOnCommandPage, c.Name()) {
			continue
		}
		if !isGroup(c) {
			use := strings.TrimSuffix(strings.TrimPrefix(c.UseLine(), "procfleet "), " [flags]")
			flags := flagsOf(c)
			if flags != "" {
				flags = " (" + flags + ")"
			}
			fmt.Fprintf(&items, "* `%s`: %s%s\n", use, c.Short, flags)
		}
		items.WriteString(commandItems(c))
	}
	return items.String()
}

// isGroup reports whether a command requires a subcommand, as the root command does.
func isGroup(c *cobra.Command) bool {
	return reflect.ValueOf(c.RunE).Pointer() == reflect.ValueOf(c.Root().RunE).Pointer()
}

// flagsOf returns the flags of a command and of its group for its item. For a role, such as
// worker, it returns a link to the page of settings, and for other commands with more than
// maxFlags "". It omits the flags for the connection to a dispatcher and for TLS with NATS,
// which are the same for all commands, and aliases.
func flagsOf(c *cobra.Command) string {
	if slices.Contains(rolesOfPage, c.Name()) && c.Parent().Name() == "procfleet" {
		return "[settings](configuration.md)"
	}
	var names []string
	c.InheritedFlags() // adds the parents' to c.Flags
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if c.Root().PersistentFlags().Lookup(f.Name) == nil &&
			!slices.Contains([]string{"help", "token", "context", "output", "json", "dry-run", "nats-ca", "nats-cert", "nats-key"}, f.Name) && !strings.HasPrefix(f.Name, "server") {
			names = append(names, "`--"+f.Name+"`")
		}
	})
	if len(names) > maxFlags {
		return ""
	}
	return strings.Join(names, ", ")
}
