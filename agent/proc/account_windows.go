package proc

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/windows"
)

// DefaultAccount runs the commands of a spec that names no account: the
// account that the agent itself runs as.
const DefaultAccount = ""

// resolveAccount returns the agent's own account, and an error for every other account:
// Windows needs a password to run a program as another account.
func resolveAccount(_ context.Context, name string) (Account, error) {
	token := windows.GetCurrentProcessToken()
	user, err := token.GetTokenUser()
	if err != nil {
		return Account{}, fmt.Errorf("read the agent's own account: %w", err)
	}
	own, domain, _, err := user.User.Sid.LookupAccount("")
	if err != nil {
		return Account{}, fmt.Errorf("read the name of the agent's own account: %w", err)
	}
	system := user.User.Sid.IsWellKnown(windows.WinLocalSystemSid)
	if !meansAccount(name, domain, own, system) {
		return Account{}, fmt.Errorf("cannot switch to %s: agent runs as %s\\%s, and Windows runs nothing as another account without its password; "+
			"leave the account empty, or run the agent as that account", name, domain, own)
	}
	home, err := token.GetUserProfileDirectory()
	if err != nil {
		home = rootDir()
	}
	return Account{Name: own, Home: home}, nil
}

func (r *Runner) maySwitch(context.Context, Account) error { return nil } // see resolveAccount

// basicEnvironment returns the environment of the account's programs, without the agent's
// own variables.
func basicEnvironment(timezone string) ([]string, error) {
	env, err := windows.GetCurrentProcessToken().Environ(false)
	if err != nil {
		return nil, fmt.Errorf("read the environment of the account: %w", err)
	}
	if timezone != "" {
		env = append(env, "TZ="+timezone)
	}
	return env, nil
}

// variable returns the name in upper case: environment variables are not case-sensitive.
func variable(name string) string { return strings.ToUpper(name) }

// rootDir returns the directory of a command whose account has no home.
func rootDir() string {
	return cmp.Or(os.Getenv("SystemDrive"), "C:") + `\`
}
