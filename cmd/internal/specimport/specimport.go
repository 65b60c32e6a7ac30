// Package specimport converts the configurations of supervisord and systemd to specs of
// processes.
package specimport

import (
	"cmp"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// Spec is a converted process, with the settings that the spec cannot express.
type Spec struct {
	procfleet.ProcessSpec
	Warnings []string
}

func newSpec(namespace, name string) *Spec {
	s := &Spec{ProcessSpec: procfleet.DefaultSpec()}
	s.Namespace, s.Name, s.Control.NoProfile = namespace, name, true
	s.Alive.StartCheckBegin, s.Alive.StartCheckEnd = procfleet.Duration(time.Second), procfleet.Duration(time.Second)
	return s
}

func (s *Spec) warn(format string, args ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
}

// background sets the start command of a program that runs in the foreground: the shell
// starts it in the background. The agent recognizes it by the mark of its environment, so it
// needs no pid file.
func (s *Spec) background(command, directory, output string) {
	line := command + " </dev/null >>" + quoted(cmp.Or(output, "/dev/null")) + " 2>&1 &"
	if directory != "" {
		line = "cd " + quoted(directory) + " && { " + line + " }"
	}
	s.Control.Start = line
	s.LogPath = output
	s.ProcName = path.Base(firstWord(command))
}

// firstWord returns the first word of a command, without quotes.
func firstWord(command string) string {
	command = strings.TrimSpace(command)
	if command == "" {
		return ""
	}
	if quote := command[0]; quote == '"' || quote == '\'' {
		word, _, _ := strings.Cut(command[1:], string(quote))
		return word
	}
	word, _, _ := strings.Cut(command, " ")
	return word
}

// quoted quotes a word for a shell.
func quoted(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:,=@%") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// YAML returns the spec as a file for procfleet, with the warnings as comments.
func (s *Spec) YAML() string {
	var b strings.Builder
	for _, warning := range s.Warnings {
		fmt.Fprintf(&b, "# %s\n", warning)
	}
	line := func(indent, key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s%s: %s\n", indent, key, value)
		}
	}
	text := func(indent, key, value string) {
		if value != "" {
			line(indent, key, scalar(value))
		}
	}
	text("", "namespace", s.Namespace)
	text("", "name", s.Name)
	text("", "proc_name", s.ProcName)
	text("", "pid_path", s.PidPath)
	text("", "log_path", s.LogPath)
	text("", "account", s.Account)
	b.WriteString("control:\n")
	text("  ", "start", s.Control.Start)
	text("  ", "stop", s.Control.Stop)
	text("  ", "reload", s.Control.Reload)
	line("  ", "no_profile", "true")
	if len(s.Control.Environment) > 0 {
		b.WriteString("  env:\n")
		for _, key := range sortedKeys(s.Control.Environment) {
			fmt.Fprintf(&b, "    %s: %s\n", key, scalar(s.Control.Environment[key]))
		}
	}
	b.WriteString("alive:\n")
	line("  ", "type", string(s.Alive.Type))
	for _, d := range []struct {
		key   string
		value procfleet.Duration
	}{
		{"op_timeout", s.Alive.OpTimeout},
		{"start_check_begin", s.Alive.StartCheckBegin},
		{"start_check_end", s.Alive.StartCheckEnd},
		{"stop_grace", s.Alive.StopGrace},
		{"start_interval", s.Alive.StartInterval},
	} {
		line("  ", d.key, time.Duration(d.value).String())
	}
	line("  ", "start_retries", fmt.Sprint(s.Alive.StartRetries))
	return b.String()
}
