package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	helpWords     = 12 // in the help of a flag
	helpOfUpLines = 40 // what a screen has
)

// TestHelpShowsEveryFlagInAFewWords also proves that every flag is in a group:
// the help omits flags that are in none.
func TestHelpShowsEveryFlagInAFewWords(t *testing.T) {
	t.Parallel()
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		if cmd.Name() == "help" || cmd.Name() == "completion" || len(path) == 1 && cmd.Hidden {
			return
		}
		helpFlag := "--help"
		if cmd.Flags().Lookup("help-all") != nil {
			helpFlag = "--help-all"
		}
		code, help, stderr := call(t, append(path, helpFlag)...)
		if code != 0 {
			t.Errorf("%v %s: exit %d, %s", path, helpFlag, code, stderr)
		}
		cmd.InheritedFlags() // adds the parents' flags to cmd.Flags
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if n := len(strings.Fields(f.Usage)); n > helpWords {
				t.Errorf("%v: the help of --%s has %d words, more than %d: %s", path, f.Name, n, helpWords, f.Usage)
			}
			if !strings.Contains(help, " --"+f.Name+" ") {
				t.Errorf("%v %s does not show --%s: is it in a group?", path, helpFlag, f.Name)
			}
		})
	}
	visit(newRoot())
}

func TestHelpOfRolesHasTheCommonFlagsOnly(t *testing.T) {
	t.Parallel()
	for _, role := range rolesOfPage {
		_, short, _ := call(t, role, "--help")
		_, long, _ := call(t, role, "--help-all")
		if strings.Count(short, "\n") > helpOfUpLines || strings.Count(long, "\n") <= strings.Count(short, "\n") {
			t.Errorf("%s --help has %d lines, --help-all %d\n%s", role, strings.Count(short, "\n"), strings.Count(long, "\n"), short)
		}
		for _, want := range []string{"--status-http", "--config", "--help-all"} {
			if !strings.Contains(short, want+" ") {
				t.Errorf("%s --help does not show %s", role, want)
			}
		}
		if regexp.MustCompile(`--[a-z-]+-cert `).MatchString(short) || !strings.Contains(long, "\nTLS:\n") {
			t.Errorf("%s: certificates are for --help-all", role)
		}
	}
}
