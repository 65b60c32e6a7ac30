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
	want := commandItems(newRoot(), make(map[string]string))
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

// commandItems returns a list item for each command below cmd, except groups of commands.
// named contains the first command with each list of flags.
func commandItems(cmd *cobra.Command, named map[string]string) string {
	var items strings.Builder
	for _, c := range cmd.Commands() {
		if c.Hidden || slices.Contains(notOnCommandPage, c.Name()) {
			continue
		}
		if !isGroup(c) {
			path := strings.TrimPrefix(c.CommandPath(), "procfleet ")
			use := strings.TrimSuffix(strings.TrimPrefix(c.UseLine(), "procfleet "), " [flags]")
			flags := flagsOf(c)
			switch first := named[flags]; {
			case first != "":
				flags = "as `" + first + "`"
			case strings.Count(flags, ",") > 4:
				named[flags] = path
			}
			if flags != "" {
				flags = " (" + flags + ")"
			}
			fmt.Fprintf(&items, "* `%s`: %s%s\n", use, c.Short, flags)
		}
		items.WriteString(commandItems(c, named))
	}
	return items.String()
}

// isGroup reports whether a command requires a subcommand, as the root command does.
func isGroup(c *cobra.Command) bool {
	return reflect.ValueOf(c.RunE).Pointer() == reflect.ValueOf(c.Root().RunE).Pointer()
}

// flagsOf returns the flags of a command and of its group for its item. For a role, such as
// worker, it returns a link to the page of settings. It omits the flags for the connection to
// a dispatcher and for TLS with NATS, which are the same for all commands, and aliases.
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
	return strings.Join(names, ", ")
}
