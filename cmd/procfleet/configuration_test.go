package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
)

var update = flag.Bool("update", false, "write the tables of docs/reference/configuration.md anew")

const configurationPage = "../../docs/reference/configuration.md"

var rolesOfPage = []string{"up", "dispatcher", "worker", "agent"}

func roleCommand(t *testing.T, name string) *cobra.Command {
	t.Helper()
	cmd, _, err := newRoot().Find([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	cmd.InheritedFlags() // adds the parent's to cmd.Flags
	return cmd
}

// settable calls fn for every setting of a role.
func settable(cmd *cobra.Command, fn func(*pflag.Flag)) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains([]string{"help", settings.Flag, settings.CheckFlag, settings.HelpAllFlag}, f.Name) {
			fn(f)
		}
	})
}

// The environment belongs to the process, so this test is not parallel.
func TestEverySettingOfEveryRoleCanComeFromFileAndVariable(t *testing.T) {
	values := map[string]string{"bool": "true", "int": "7", "int64": "7", "float64": "0.5", "duration": "7s", "string": "seven"}
	for _, role := range rolesOfPage {
		settable(roleCommand(t, role), func(f *pflag.Flag) {
			value, known := values[f.Value.Type()]
			if !known {
				t.Errorf("--%s: no value for type %s in this test", f.Name, f.Value.Type())
				return
			}
			if f.DefValue == value {
				value = "false"
			}
			t.Run(role+" "+f.Name, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "procfleet.yaml")
				if err := os.WriteFile(file, fmt.Appendf(nil, "%s: %s\n", f.Name, value), 0o600); err != nil {
					t.Fatal(err)
				}
				fromFile := roleCommand(t, role)
				if err := fromFile.ParseFlags([]string{"--config", file}); err != nil {
					t.Fatal(err)
				}
				if err := settings.Fill(fromFile); err != nil || fromFile.Flag(f.Name).Value.String() != value {
					t.Errorf("from the file: %s, %v", fromFile.Flag(f.Name).Value, err)
				}
				t.Setenv(settings.Variable(f.Name), value)
				fromVariable := roleCommand(t, role)
				if err := settings.Fill(fromVariable); err != nil || fromVariable.Flag(f.Name).Value.String() != value {
					t.Errorf("from the variable: %s, %v", fromVariable.Flag(f.Name).Value, err)
				}
			})
		})
	}
}

// TestThePageOfSettingsIsTrue compares the tables with the flags; with -update
// it writes them.
func TestThePageOfSettingsIsTrue(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	for _, role := range rolesOfPage {
		begin, end := fmt.Sprintf("<!-- settings of %s -->\n", role), fmt.Sprintf("<!-- end of %s -->\n", role)
		before, rest, found := strings.Cut(page, begin)
		table, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("no place for the settings of %s", role)
		}
		want := settingsTable(roleCommand(t, role))
		if *update {
			page = before + begin + want + end + after
			continue
		}
		if diff := cmp.Diff(want, table); diff != "" {
			t.Errorf("settings of %s; write them with go test ./cmd/procfleet -run ThePageOfSettings -update\n%s", role, diff)
		}
	}
	if *update {
		if err := os.WriteFile(configurationPage, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func settingsTable(cmd *cobra.Command) string {
	var table strings.Builder
	table.WriteString("| setting | variable | default | meaning |\n| --- | --- | --- | --- |\n")
	settable(cmd, func(f *pflag.Flag) {
		byDefault := ""
		if f.DefValue != "" {
			byDefault = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&table, "| `%s` | `%s` | %s | %s |\n", f.Name, settings.Variable(f.Name), byDefault, strings.ReplaceAll(f.Usage, "|", "\\|"))
	})
	return table.String()
}
