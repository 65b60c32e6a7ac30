// Package settings adds two sources to every flag of a command: an environment variable
// and a YAML file. A flag takes precedence over the environment, the environment over
// the file. The package records the origin of each value, and reports all errors at
// once, each with its origin.
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

// Flag is the name of the flag for the settings file; a command without this flag
// reads no file.
const Flag = "config"

// Names of the flags of a role that check the settings, or show all flags, instead of
// running the role.
const (
	CheckFlag   = "check-config"
	HelpAllFlag = "help-all"
)

// ErrUsage is wrapped by usage errors.
var ErrUsage = errors.New("see --help")

// onlyTyped are flags that cannot be set by a variable or the file: they select the
// action of a single call.
var onlyTyped = []string{"help", "version", CheckFlag, HelpAllFlag}

// Settings are the flags of one run of a command, with their origins and errors.
type Settings struct {
	flags    *pflag.FlagSet
	root     *cobra.Command
	origins  map[string]origin // by flag, for flags that were set
	wrong    map[string]bool   // flags with a reported error
	problems []problem
	alone    bool // the program has no other commands
	unread   bool // the file could not be read
}

// origin is the source of a value.
type origin struct {
	name string // for example --nats, PROCFLEET_NATS or procfleet.yaml:7: nats
	line int    // line in the file; 0 for other sources
}

type problem struct {
	origin
	text string
}

// Load sets the flags of cmd that are not on the command line from the environment and
// the file. An empty variable counts as not set.
func Load(cmd *cobra.Command) *Settings {
	s := &Settings{flags: cmd.Flags(), root: cmd.Root(), alone: cmd == cmd.Root(), origins: map[string]origin{}, wrong: map[string]bool{}}
	s.flags.VisitAll(func(flag *pflag.Flag) {
		name := Variable(flag.Name)
		value := os.Getenv(name)
		switch {
		case flag.Changed:
			s.origins[flag.Name] = origin{name: "--" + flag.Name}
		case value != "" && !slices.Contains(onlyTyped, flag.Name):
			s.set(flag, value, origin{name: name})
		}
	})
	if file := s.flags.Lookup(Flag); file != nil && file.Value.String() != "" {
		s.loadFile(file.Value.String())
	}
	return s
}

// Fill is [Load] for commands without further checks: it returns the errors, and writes
// warnings to the standard error of the command.
func Fill(cmd *cobra.Command) error {
	s := Load(cmd)
	s.Warn(cmd.ErrOrStderr())
	return s.Err()
}

// Warn writes the warnings of [Settings.Misnamed], one per line.
func (s *Settings) Warn(out io.Writer) {
	for _, text := range s.Misnamed() {
		fmt.Fprintf(out, "%s: warning: %s\n", s.root.Name(), text)
	}
}

// Given reports whether any source has set the flag.
func (s *Settings) Given(flag string) bool { return s.origins[flag].name != "" }

func (s *Settings) set(flag *pflag.Flag, value string, at origin) {
	s.origins[flag.Name] = at
	if err := s.flags.Set(flag.Name, value); err != nil {
		s.Wrong(flag.Name, "%s", wrongType(flag, value, err))
	}
}

// wrongType returns the error message for a value that a flag cannot parse.
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

// Wrong reports an error in a flag. It ignores further errors in the same flag, which
// may be consequences of the first error.
func (s *Settings) Wrong(flag, format string, args ...any) {
	if s.wrong[flag] {
		return
	}
	s.wrong[flag] = true
	at, set := s.origins[flag]
	if !set {
		at.name = "--" + flag
	}
	s.add(at, fmt.Sprintf(format, args...))
}

// Check reports err, if it is not nil, as an error in a flag.
func (s *Settings) Check(flag string, err error) {
	if err != nil {
		s.Wrong(flag, "%s", err)
	}
}

func (s *Settings) add(at origin, text string) {
	s.problems = append(s.problems, problem{origin: at, text: withoutSecrets(text)})
}

// Refused reports the errors of a Config's Validate. flags maps field names to flags;
// errors in other fields are ignored, because the command sets these fields later.
func (s *Settings) Refused(err error, flags map[string]string) {
	fields, rest := invalid.Fields(err)
	for _, f := range fields {
		if flag, has := flags[f.Name]; has {
			s.Check(flag, f.Problem)
		}
	}
	for _, r := range rest {
		s.add(origin{}, r.Error())
	}
}

// AtLeast reports flags with a value below least. It applies to whole numbers and
// durations, for which a Config would replace 0 by the default.
func (s *Settings) AtLeast(least int64, flags ...string) {
	for _, name := range flags {
		if value, ok := number(s.flags.Lookup(name)); ok && value < least {
			s.Wrong(name, "%s is too small", s.flags.Lookup(name).Value)
		}
	}
}

// Unread reports that the file could not be read, so that its settings are unknown.
func (s *Settings) Unread() bool { return s.unread }

// Err returns all errors joined to one that wraps [ErrUsage]: first the errors in the
// file, by line.
func (s *Settings) Err() error {
	if len(s.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(s.problems, func(a, b problem) int {
		switch {
		case a.line == 0 || b.line == 0:
			return b.line - a.line // errors in the file first
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
