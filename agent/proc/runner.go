package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

// Runner starts control commands.
type Runner struct {
	accounts *Accounts
	watchdog *watchdog
	timezone string
	scopes   scopes
}

// NewRunner returns a runner that looks up users in accounts. It prevents commands from
// inheriting the open files and ignored signals of this program.
func NewRunner(accounts *Accounts) (*Runner, error) {
	if err := preventInheritance(); err != nil {
		return nil, fmt.Errorf("prevent commands from inheriting open files: %w", err)
	}
	return &Runner{accounts: accounts, watchdog: newWatchdog(), timezone: os.Getenv("TZ")}, nil
}

// OpenAs opens a regular file for reading with the rights of an account. The path must be
// absolute and must not contain symbolic links. Opening other files, such as FIFOs, is an
// error without effects.
func (r *Runner) OpenAs(ctx context.Context, account, path string) (*os.File, error) {
	as, err := r.accounts.Lookup(ctx, account)
	if err != nil {
		return nil, err
	}
	return openAs(as, path)
}

// Start runs a command. After an error nothing was run; the error names the field of
// the spec or the condition of the host that is at fault. It wraps ErrNoResources if a
// retry may succeed, ErrSetup if not.
//
// ctx bounds the preparation only: a running command is ended by its Timeout or by
// KillGroup, and survives the agent.
func (r *Runner) Start(ctx context.Context, c Command) (*Execution, error) {
	running, err := r.start(ctx, c)
	return running, markResources(err)
}

func (r *Runner) start(ctx context.Context, c Command) (*Execution, error) {
	account, err := r.prepare(ctx, &c)
	if err != nil {
		return nil, err
	}
	out, err := openOutput(c.OutputPath, account)
	if err != nil {
		return nil, err
	}
	running, err := r.run(ctx, c, account, out)
	if err != nil {
		out.Close()
		return nil, err
	}
	return running, nil
}

func (r *Runner) run(ctx context.Context, c Command, account Account, out *os.File) (*Execution, error) {
	if err := awaitWritten(ctx, c); err != nil {
		return nil, err
	}
	cmd, err := r.command(c, account, out)
	if err != nil {
		return nil, err
	}
	if c.Ready != nil {
		c.Ready()
	}
	started := time.Now()
	job, err := startIn(cmd, c)
	if err != nil {
		return nil, explainStart(c, account, err)
	}
	// The pid is not reused before the Wait below: at worst it is a zombie.
	leader, err := identifyChild(cmd.Process.Pid)
	if err != nil {
		job.close()
		err = errors.Join(fmt.Errorf("command was ended because it could not be identified: %w", err), cmd.Process.Kill())
		go func() { _ = ownChildren.wait(cmd) }() // reap the child; its exit is ignored
		return nil, err
	}
	running := &Execution{leader: leader, done: make(chan struct{}), job: job}
	go running.wait(c, cmd, out, started)
	return running, nil
}

// Check returns the error that Start would return because of the command's fields, its account
// or its directory. It changes nothing on the host.
func (r *Runner) Check(ctx context.Context, c Command) error {
	_, err := r.prepare(ctx, &c)
	return markResources(err)
}

// prepare checks everything that would prevent the command from running, and
// resolves its account and directory.
func (r *Runner) prepare(ctx context.Context, c *Command) (Account, error) {
	if err := c.Shell.RunsOn(runtime.GOOS); err != nil {
		return Account{}, fmt.Errorf("shell: %w", err)
	}
	if err := c.check(); err != nil {
		return Account{}, err
	}
	account, err := r.accounts.Lookup(ctx, cmp.Or(c.Account, DefaultAccount))
	if err != nil {
		return Account{}, err
	}
	if err := r.maySwitch(ctx, account); err != nil {
		return Account{}, markSetup(err)
	}
	inHome := c.Dir == ""
	if inHome {
		c.Dir = account.Home
	}
	// Detect a hanging file system here: after the fork it would block the child, and all
	// other starts with it, since the parent waits for the child's exec.
	dirErr, err := guard(ctx, r.watchdog, commandDirTimeout, c.Dir, func() error { return checkDir(c.Dir) })
	if err != nil {
		return Account{}, fmt.Errorf("setup path %s: %w", c.Dir, err)
	}
	if inHome && dirErr != nil {
		c.Dir, dirErr = rootDir(), nil // many service accounts have no home; login programs use the root directory, too
	}
	return account, dirErr
}

func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return markSetup(fmt.Errorf("setup path %s does not exist", dir))
	case errors.Is(err, os.ErrPermission):
		return nil // the account may have access although root has not; if not, the start fails
	case err != nil:
		return fmt.Errorf("setup path: %w", err)
	case !info.IsDir():
		return markSetup(fmt.Errorf("setup path %s is not a directory", dir))
	}
	return nil
}
