package proc

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Shell is the language of a control command.
type Shell string

// The shells a spec can name; see [Shell.RunsOn].
const (
	ShellSh  Shell = "sh"
	ShellBat Shell = "bat"
	ShellPS1 Shell = "ps1"
)

// RunsOn returns an error if commands in this language cannot run on the operating system,
// a [runtime.GOOS] value. "" is [ShellSh].
func (s Shell) RunsOn(system string) error {
	switch {
	case !slices.Contains([]Shell{"", ShellSh, ShellBat, ShellPS1}, s):
		return fmt.Errorf("%q is not a supported shell: use sh, bat or ps1", s)
	case system != "windows" && (s == ShellBat || s == ShellPS1):
		return fmt.Errorf("%q runs on Windows only, and this host runs %s: give its commands in sh", s, system)
	case system == "windows" && (s == "" || s == ShellSh):
		return errors.New("this Windows host runs no sh commands: give its commands in bat or ps1")
	}
	return nil
}

const (
	// MaxLine is the longest command line, in bytes.
	MaxLine = 32 << 10

	// OutputTail is the maximum size of Result.Output, in bytes.
	OutputTail = 4 << 10
)

// Command is one control command. It does not inherit the agent's environment.
type Command struct {
	Shell   Shell             // "" = ShellSh
	Line    string            // command line, passed to the shell unchanged
	Dir     string            // working directory, absolute: the setup path; "" = the account's home
	Account string            // user of the command; "" = DefaultAccount
	Env     map[string]string // variables that extend and override the account's basic environment

	// LoginProfile makes the shell read /etc/profile and the account's own profile first,
	// like `su -`.
	LoginProfile bool

	// OutputPath is the file for stdout and stderr. It is created or truncated, and owned by
	// the account. A pipe instead would block or kill a daemon once its reader has ended.
	OutputPath string

	// Ready is called after all checks of Start have passed, directly before the command is
	// spawned; nil = nothing is called.
	Ready func()

	Key string // value of KeyMark in the environment
	Op  string // value of OpMark

	// Contained is true if no process that the command starts may outlive it, as for
	// stop and status commands. Windows kills the remaining processes; on other systems
	// the caller ends the process group.
	Contained bool

	// Timeout ends the command's whole process group (SIGTERM, SIGKILL after KillGrace). 0 =
	// no timeout, for commands whose group may contain a main process that has to survive.
	Timeout time.Duration
}

// KillGrace is the time from SIGTERM to SIGKILL after a command's Timeout.
const KillGrace = 3 * time.Second

// check returns an error that names the first invalid field, without reading the
// host.
func (c Command) check() error {
	switch {
	case c.Line == "":
		return fmt.Errorf("command is empty")
	case len(c.Line) > MaxLine:
		return fmt.Errorf("command has %d bytes, more than %d", len(c.Line), MaxLine)
	case strings.Contains(c.Line, "\x00"):
		return fmt.Errorf("command contains a NUL byte")
	case c.Dir != "" && !filepath.IsAbs(c.Dir):
		return fmt.Errorf("setup_path %q is not absolute", c.Dir)
	case !filepath.IsAbs(c.OutputPath):
		return fmt.Errorf("output file %q is not absolute", c.OutputPath)
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("env: %q is not a valid variable", name)
		}
	}
	return nil
}

// environment returns basic with the variables of the spec and the marks. The spec cannot
// override the marks, because orphans are found by them.
func (c Command) environment(basic []string) []string {
	vars := map[string]string{}
	for _, entry := range basic {
		name, value, _ := strings.Cut(entry, "=")
		vars[variable(name)] = value
	}
	for name, value := range c.Env {
		vars[variable(name)] = value
	}
	if c.Key != "" {
		vars[KeyMark] = c.Key
	}
	if c.Op != "" {
		vars[OpMark] = c.Op
	}
	env := make([]string, 0, len(vars))
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// Result describes the end of a command.
type Result struct {
	ExitCode int            // exit code; -1 if a signal ended the command
	Signal   syscall.Signal // signal that ended the command; 0 if the command exited
	TimedOut bool           // true if Command.Timeout expired
	Elapsed  time.Duration
	Output   string // end of the output, at most OutputTail bytes of valid UTF-8
	Hint     string // explanation of an exit code of 126 or 127; "" otherwise

	// OutputHeld is true if a process, usually the started daemon, still has the output
	// file open. The file must then be retained and shortened (see [ShortenOutput]).
	OutputHeld bool
}

// OK reports whether the command exited with code 0 before its timeout.
func (r Result) OK() bool { return r.ExitCode == 0 && r.Signal == 0 && !r.TimedOut }

// String describes the end of the command for messages: "exit=127 (not found: …)".
func (r Result) String() string {
	var s string
	switch {
	case r.TimedOut:
		s = fmt.Sprintf("timeout=%s", r.Elapsed.Round(time.Second))
	case r.Signal != 0:
		s = fmt.Sprintf("signal=%s", signalName(r.Signal))
	default:
		s = fmt.Sprintf("exit=%d", r.ExitCode)
	}
	if r.Hint != "" {
		s += " (" + r.Hint + ")"
	}
	return s
}

var (
	// ErrSetup is wrapped by start errors that a retry cannot fix: the account or the
	// directory does not exist, or the agent may not run commands as the account.
	ErrSetup = errors.New("host is not set up for the command")

	// ErrNoResources is wrapped by start errors for lack of host resources: processes, memory,
	// file descriptors, disk. A retry may succeed.
	ErrNoResources = errors.New("host has no resources for another process")
)

// resourceErrors lists the system errors that become [ErrNoResources].
var resourceErrors = []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC}

// marked wraps err and mark; its text is the text of err.
type marked struct{ err, mark error }

func (m marked) Error() string   { return m.err.Error() }
func (m marked) Unwrap() []error { return []error{m.err, m.mark} }

// markSetup adds [ErrSetup] to an error of the preparation of a command, unless the host
// lacks resources.
func markSetup(err error) error {
	if err == nil || lacksResources(err) {
		return err
	}
	return marked{err: err, mark: ErrSetup}
}

// markResources adds [ErrNoResources] to an error if the host lacks resources.
func markResources(err error) error {
	if lacksResources(err) {
		return marked{err: err, mark: ErrNoResources}
	}
	return err
}

func lacksResources(err error) bool {
	return slices.ContainsFunc(resourceErrors, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// Exit codes of a shell that could not run a program.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// Unstartable reports whether the program is not executable, which a retry cannot fix.
func (r Result) Unstartable() bool { return r.ExitCode == exitNotExecutable }
