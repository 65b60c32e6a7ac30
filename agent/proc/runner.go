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

// NewRunner returns a runner that resolves accounts through accounts. It prevents
// commands from inheriting the files that this program inherited.
func NewRunner(accounts *Accounts) (*Runner, error) {
	if err := keepInherited(); err != nil {
		return nil, fmt.Errorf("prevent commands from inheriting open files: %w", err)
	}
	return &Runner{accounts: accounts, watchdog: newWatchdog(), timezone: os.Getenv("TZ")}, nil
}

// Start runs a command. After an error nothing was run; the error names the field of
// the spec or the condition of the host that is at fault. It wraps ErrNoRoom if a
// retry may succeed, ErrSetup if not.
//
// ctx bounds the preparation only: a running command is ended by its Timeout or by
// KillGroup, and survives the agent.
func (r *Runner) Start(ctx context.Context, c Command) (*Execution, error) {
	running, err := r.start(ctx, c)
	return running, markRoom(err)
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
		go func() { _ = ours.wait(cmd) }() // reap it; its exit does not matter
		return nil, err
	}
	running := &Execution{leader: leader, done: make(chan struct{}), job: job}
	go running.wait(c, cmd, out, started)
	return running, nil
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
	// Detect a hanging directory here: in the child it would block all other starts,
	// since a fork blocks its parent until it is done.
	dirErr, err := guard(ctx, r.watchdog, c.Dir, func() error { return checkDir(c.Dir) })
	if err != nil {
		return Account{}, fmt.Errorf("setup path %s: %w", c.Dir, err)
	}
	if inHome && dirErr != nil {
		c.Dir, dirErr = rootDir(), nil // many service accounts have no home; login programs do the same
	}
	return account, dirErr
}

func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return markSetup(fmt.Errorf("setup path %s does not exist", dir))
	case errors.Is(err, os.ErrPermission):
		return nil // the account may have access although root has not; the start shows
	case err != nil:
		return fmt.Errorf("setup path: %w", err)
	case !info.IsDir():
		return markSetup(fmt.Errorf("setup path %s is not a directory", dir))
	}
	return nil
}
