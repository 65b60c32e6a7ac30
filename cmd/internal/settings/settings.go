// Package settings gives every flag of a command two more sources: an
// environment variable and a YAML file. A flag counts before the environment,
// the environment before the file. It remembers where each value came from, so
// that whatever is wrong with one is told together with its place, and all of
// it at once.
package settings

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/internal/invalid"
)

// Flag is the name of the flag that names the file; a command without it has
// no file.
const Flag = "config"

// Names of the flags of roles that check the settings, and show all flags,
// instead of running the role.
const (
	CheckFlag   = "check-config"
	HelpAllFlag = "help-all"
)

// ErrUsage is wrapped by errors of how a command was called.
var ErrUsage = errors.New("see --help")

// onlyTyped are flags that say what to do now. Neither the environment nor
// the file has them.
var onlyTyped = []string{"help", "version", CheckFlag, HelpAllFlag}

// Settings are the flags of one run of a command with where they came from and
// what is wrong with them.
type Settings struct {
	flags    *pflag.FlagSet
	root     *cobra.Command
	places   map[string]place // of the flags that were set
	wrong    map[string]bool  // flags that have their problem
	problems []problem
	alone    bool // the command is the whole program
	unread   bool // there is a file, and what it says is not known
}

// place is where a value came from.
type place struct {
	name string // --nats, PROCFLEET_NATS or procfleet.yaml:7: nats
	line int    // in the file; 0 = not from there
}

type problem struct {
	place
	text string
}

// Load sets the flags of cmd that were not given from the environment and the
// file. A variable that is empty counts as not set.
func Load(cmd *cobra.Command) *Settings {
	s := &Settings{flags: cmd.Flags(), root: cmd.Root(), alone: cmd == cmd.Root(), places: map[string]place{}, wrong: map[string]bool{}}
	s.flags.VisitAll(func(flag *pflag.Flag) {
		name := Variable(flag.Name)
		value := os.Getenv(name)
		switch {
		case flag.Changed:
			s.places[flag.Name] = place{name: "--" + flag.Name}
		case value != "" && !slices.Contains(onlyTyped, flag.Name):
			s.set(flag, value, place{name: name})
		}
	})
	if file := s.flags.Lookup(Flag); file != nil && file.Value.String() != "" {
		s.loadFile(file.Value.String())
	}
	return s
}

// Fill is [Load] for commands that check nothing else. It writes what is
// [Settings.Misnamed] to the command's standard error.
func Fill(cmd *cobra.Command) error {
	s := Load(cmd)
	s.Warn(cmd.ErrOrStderr())
	return s.Err()
}

// Warn writes what is [Settings.Misnamed], in a line each.
func (s *Settings) Warn(out io.Writer) {
	for _, text := range s.Misnamed() {
		fmt.Fprintf(out, "%s: warning: %s\n", s.root.Name(), text)
	}
}

// Given reports whether anybody set the flag.
func (s *Settings) Given(flag string) bool { return s.places[flag].name != "" }

func (s *Settings) set(flag *pflag.Flag, value string, at place) {
	s.places[flag.Name] = at
	if err := s.flags.Set(flag.Name, value); err != nil {
		s.Wrong(flag.Name, "%s", wrongType(flag, value, err))
	}
}

// wrongType says what a flag does not take, in words for the one who wrote it.
func wrongType(flag *pflag.Flag, value string, err error) string {
	what, known := map[string]string{
		"bool": "neither true nor false", "duration": "not a length of time, for example 30s",
		"int": "not a whole number", "int64": "not a whole number", "uint": "not a whole number from 0 on",
	}[flag.Value.Type()]
	if !known {
		return err.Error()
	}
	return fmt.Sprintf("%q is %s", value, what)
}

// Wrong says what is wrong with a flag's value. Of one flag the first word
// counts: what follows from a wrong value is not worth telling.
func (s *Settings) Wrong(flag, format string, args ...any) {
	if s.wrong[flag] {
		return
	}
	s.wrong[flag] = true
	at, set := s.places[flag]
	if !set {
		at.name = "--" + flag
	}
	s.add(at, fmt.Sprintf(format, args...))
}

func (s *Settings) add(at place, text string) {
	s.problems = append(s.problems, problem{place: at, text: withoutSecrets(text)})
}

// Refused says what a Config does not like. flags has the flag of every field
// that has one; other fields are not looked at, since they are filled in later.
func (s *Settings) Refused(err error, flags map[string]string) {
	fields, rest := invalid.Fields(err)
	for _, f := range fields {
		if flag, has := flags[f.Name]; has {
			s.Wrong(flag, "%s", f.Problem)
		}
	}
	for _, r := range rest {
		s.add(place{}, r.Error())
	}
}

// AtLeast demands a least value of flags that hold whole numbers or lengths of
// time, which are 0 where a Config would take its default.
func (s *Settings) AtLeast(least int64, flags ...string) {
	for _, name := range flags {
		if value, ok := number(s.flags.Lookup(name)); ok && value < least {
			s.Wrong(name, "%s is too small", s.flags.Lookup(name).Value)
		}
	}
}

// Unread reports that the file could not be read, so that nothing is known of
// what its settings would be.
func (s *Settings) Unread() bool { return s.unread }

// Err returns everything that is wrong in one error, which wraps [ErrUsage]:
// first what is in the file, in the order of its lines.
func (s *Settings) Err() error {
	if len(s.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(s.problems, func(a, b problem) int {
		switch {
		case a.line == 0 || b.line == 0:
			return b.line - a.line // those of the file first
		default:
			return a.line - b.line
		}
	})
	lines := make([]string, len(s.problems))
	for i, p := range s.problems {
		lines[i] = p.text
		if p.name != "" {
			lines[i] = p.name + ": " + p.text
		}
	}
	if len(lines) == 1 {
		return fmt.Errorf("%s (%w)", lines[0], ErrUsage)
	}
	return fmt.Errorf("%d settings are wrong (%w):\n%s", len(lines), ErrUsage, strings.Join(lines, "\n"))
}
