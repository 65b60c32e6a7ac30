package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// scopes holds the programs that start a command in a transient systemd scope. The zero
// value disables scopes.
type scopes struct {
	systemdRun string // full path
	setpriv    string // full path; "" = not installed
}

// UseScopes makes Start run each command that is not Contained in a systemd scope of its
// own. Processes that the command leaves running then do not belong to the agent's unit and
// survive its stop. UseScopes creates a scope as a test, blocks until systemd responds or
// ctx ends, and returns an error if scopes cannot be used. Call it before Start.
func (r *Runner) UseScopes(ctx context.Context) error {
	path, err := exec.LookPath("systemd-run")
	if err != nil {
		return fmt.Errorf("start in scopes: %w", err)
	}
	if os.Geteuid() != 0 {
		return errors.New("start in scopes: systemd scopes require root")
	}
	if _, err := QueryHost(ctx, path, "--scope", "--quiet", "--no-ask-password", "--", "true"); err != nil {
		return fmt.Errorf("start in scopes: %s: %w", path, err)
	}
	r.scopes.systemdRun = path
	r.scopes.setpriv, _ = exec.LookPath("setpriv") // "" if it is not installed
	return nil
}

// prefix returns the words that precede the command line of a command in a scope; nil if
// the command runs without a scope. systemd-run registers its own process and executes the
// command, so the leader's pid, group and session are unchanged. Only root may register a
// scope, so setpriv changes the account afterwards.
func (s scopes) prefix(c Command, account Account) []string {
	if s.systemdRun == "" || c.Contained || account.UID != 0 && s.setpriv == "" {
		return nil
	}
	words := []string{s.systemdRun, "--scope", "--quiet", "--no-ask-password", "--property=TasksMax=infinity", "--"}
	if account.UID == 0 {
		return words
	}
	groups := make([]string, len(account.Groups))
	for i, gid := range account.Groups {
		groups[i] = strconv.FormatUint(uint64(gid), 10)
	}
	choice := "--clear-groups"
	if len(groups) > 0 {
		choice = "--groups=" + strings.Join(groups, ",")
	}
	return append(words, s.setpriv, fmt.Sprintf("--reuid=%d", account.UID), fmt.Sprintf("--regid=%d", account.GID), choice, "--")
}

// scopedCommand returns words as a command in a scope. systemd-run and setpriv run as root,
// so they get neither the environment nor the directory of the operation: with
// LD_LIBRARY_PATH the account's library would run as root. The shell sets both after the
// change of account. It reads them as a script from stdin, since every account of the host
// can read command lines.
func scopedCommand(prefix []string, c Command, account Account, env, words []string) (*exec.Cmd, error) {
	setup, err := setupScript(c.Dir, account, env)
	if err != nil {
		return nil, err
	}
	args := slices.Concat(prefix, []string{"/bin/sh", "-c", ". /proc/self/fd/0; exec </dev/null; " + wrapper, "sh"}, words)
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx,gosec // as in Runner.command
	cmd.Dir, cmd.Env, cmd.Stdin = "/", []string{"PATH=" + defaultPath}, setup
	return cmd, nil
}

// identifier matches the names of variables that a shell can set.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// setupScript returns an unnamed file with the shell commands that enter dir and set
// env. The caller closes it.
func setupScript(dir string, account Account, env []string) (*os.File, error) {
	barred := fmt.Sprintf("setup path %s is not accessible to account %s", dir, account.Name)
	var text strings.Builder
	fmt.Fprintf(&text, "cd %s || { echo %s; exit %d; }\n", shellQuote(dir), shellQuote(barred), exitNotExecutable)
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		if !identifier.MatchString(name) {
			return nil, fmt.Errorf("env: %q cannot be set by a shell, which a command in a systemd scope needs: use letters, digits and underscores", name)
		}
		fmt.Fprintf(&text, "export %s=%s\n", name, shellQuote(value))
	}
	fd, err := unix.MemfdCreate("setup", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("pass the environment: %w", err)
	}
	file := os.NewFile(uintptr(fd), "setup")
	if _, err := file.WriteString(text.String()); err != nil {
		file.Close()
		return nil, fmt.Errorf("pass the environment: %w", err)
	}
	return file, nil
}

func shellQuote(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
