//go:build unix

package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
)

// DefaultAccount runs the commands of a spec that names no account.
const DefaultAccount = "root"

// defaultPath is the PATH that login programs set for every user.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func resolveAccount(ctx context.Context, name string) (Account, error) {
	if strings.ContainsAny(name, ":\n\x00") || strings.HasPrefix(name, "-") {
		return Account{}, ErrNoAccount
	}
	line, err := passwdLine(ctx, name)
	if err != nil {
		return Account{}, err
	}
	account, err := parsePasswd(line)
	if err != nil {
		return Account{}, err
	}
	account.Groups, err = groupsOf(ctx, account)
	return account, err
}

// passwdLine returns the passwd(5) line of the account called name; "" means the agent's
// own uid.
func passwdLine(ctx context.Context, name string) (string, error) {
	field, want := 0, name
	if name == "" {
		field, want = 2, strconv.Itoa(os.Geteuid())
	}
	text, err := os.ReadFile("/etc/passwd")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) == 7 && fields[field] == want {
			return strings.Join(fields, ":"), nil
		}
	}
	line, err := QueryHost(ctx, "getent", "passwd", want)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil || line == "" {
		return "", ErrNoAccount
	}
	return line, nil
}

func parsePasswd(line string) (Account, error) {
	fields := strings.Split(strings.TrimSpace(line), ":")
	if len(fields) != 7 {
		return Account{}, fmt.Errorf("unexpected passwd entry with %d fields", len(fields))
	}
	uid, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("uid of the passwd entry: %w", err)
	}
	gid, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("gid of the passwd entry: %w", err)
	}
	return Account{
		Name: fields[0], UID: uint32(uid), GID: uint32(gid),
		Home: fields[5], Shell: usableShell(fields[6]),
	}, nil
}

// usableShell returns an account's shell if it understands `-c line`, else /bin/sh:
// service accounts have nologin or false.
func usableShell(shell string) string {
	if slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh"}, path.Base(shell)) {
		if info, err := os.Stat(shell); err == nil && info.Mode()&0o111 != 0 {
			return shell
		}
	}
	return "/bin/sh"
}

// groupsOf returns all groups of the account. A failed lookup is an error, because a
// command with too few groups would fail later and elsewhere.
func groupsOf(ctx context.Context, account Account) ([]uint32, error) {
	text, err := QueryHost(ctx, "id", "-G", account.Name)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("list its groups: %w", err)
	}
	groups := []uint32{account.GID}
	for word := range strings.FieldsSeq(text) {
		gid, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("list its groups: %w", err)
		}
		if !slices.Contains(groups, uint32(gid)) {
			groups = append(groups, uint32(gid))
		}
	}
	return groups, nil
}

func (a Account) inGroup(gid uint32) bool { return slices.Contains(a.Groups, gid) }

// QueryHost runs a program of the host without a shell, with LC_ALL=C, and returns its
// standard output without trailing newlines.
func QueryHost(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // no shell; account names beginning with "-" are refused before
	cmd.Env = []string{"PATH=" + defaultPath, "LC_ALL=C"}
	// WaitDelay bounds the wait for a killed program that hangs in the kernel, and for the
	// output of one that has ended: on a busy host it may arrive more than a second later.
	cmd.WaitDelay = accountTimeout
	out, err := ownChildren.output(cmd)
	return strings.TrimRight(string(out), "\n"), err
}

// basicEnvironment returns the environment of an account's commands, without the agent's
// own variables. An empty timezone means the time zone of the host.
func basicEnvironment(account Account, timezone string) []string {
	env := []string{
		"PATH=" + defaultPath, "HOME=" + account.Home, "USER=" + account.Name, "LOGNAME=" + account.Name,
		"SHELL=" + account.Shell, "LANG=C.UTF-8",
	}
	if timezone != "" {
		env = append(env, "TZ="+timezone)
	}
	return env
}

// variable returns the name unchanged: environment variables are case-sensitive.
func variable(name string) string { return name }
