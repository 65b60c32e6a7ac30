package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// scopes are the programs that give a command a transient systemd scope; the
// zero value is for a host where none is needed.
type scopes struct {
	systemdRun string // full path
	setpriv    string // full path; "" = not installed
}

// UseScopes has commands that are not Contained run in scopes of their own,
// so that what they leave running is not part of the agent's unit and does
// not end with it. An error says why that cannot be: it tries once, and waits
// for systemd until ctx ends. Call it before Start.
func (r *Runner) UseScopes(ctx context.Context) error {
	path, err := exec.LookPath("systemd-run")
	if err != nil {
		return fmt.Errorf("start in scopes: %w", err)
	}
	if os.Geteuid() != 0 {
		return errors.New("start in scopes: only root may")
	}
	if _, err := askHost(ctx, path, "--scope", "--quiet", "--no-ask-password", "--", "true"); err != nil {
		return fmt.Errorf("start in scopes: %s: %w", path, err)
	}
	r.scopes.systemdRun = path
	r.scopes.setpriv, _ = exec.LookPath("setpriv") // its place in the command line is told by the zero value
	return nil
}

// prefix is what a command line begins with to run in a scope; nil if it does
// not. systemd-run registers itself and becomes the command, so the leader's
// pid, group and session stay what they are. Only root may register, so the
// account is changed afterwards.
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
