package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Runner starts control commands.
type Runner struct {
	accounts *Accounts
	watchdog *watchdog
	timezone string
}

// NewRunner returns a runner that resolves accounts through accounts. It marks
// the file descriptors that this program inherited as closed on exec, so that no
// command gets them.
func NewRunner(accounts *Accounts) (*Runner, error) {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		if err := closeOnExec(); err != nil {
			return nil, fmt.Errorf("keep open files from commands: %w", err)
		}
	}
	return &Runner{accounts: accounts, watchdog: newWatchdog(), timezone: os.Getenv("TZ")}, nil
}

// closeOnExec does on kernels before 5.11 what close_range does.
func closeOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		var fd int
		if _, err := fmt.Sscan(entry.Name(), &fd); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// Execution is a command under way. Its leader is the head of an own session and
// process group, so Identity serves [GroupMembers] and [KillGroup].
type Execution struct {
	leader Identity
	done   chan struct{}
	result Result
	output outputFile
}

// Identity is the command's leader: the shell, or what the shell became.
func (r *Execution) Identity() Identity { return r.leader }

// Done is closed when the leader has ended and Result is ready. Processes that
// it left behind do not delay it.
func (r *Execution) Done() <-chan struct{} { return r.done }

// Result is how the command ended. It must not be called before Done is closed.
func (r *Execution) Result() Result { return r.result }

// Output is the end of the output by now, as in [Result]: what the command has
// left in background may have written since it ended. It must not be called
// before Done is closed, and is empty once the file is gone.
func (r *Execution) Output() string { return r.output.tail(OutputTail) }

// Start runs a command. An error means that nothing was run; it says which
// field of the spec or which condition of the host is at fault, and wraps the
// system's error (EAGAIN, ENOMEM and EMFILE mean that the host is out of
// something and a later try may work).
//
// ctx bounds the preparation only: a command that runs is ended by its Timeout
// or by KillGroup, and survives the agent.
func (r *Runner) Start(ctx context.Context, c Command) (*Execution, error) {
	account, err := r.prepare(ctx, &c)
	if err != nil {
		return nil, err
	}
	out, err := openOutput(c.OutputPath, account)
	if err != nil {
		return nil, err
	}
	cmd := r.command(c, account, out)
	if err := awaitWritten(ctx, c); err != nil {
		out.Close()
		return nil, err
	}
	started := time.Now()
	if err := cmd.Start(); err != nil {
		out.Close()
		return nil, explainStart(c, account, err)
	}
	// It cannot be gone before the Wait below: at worst it is a zombie.
	leader, err := identifyChild(cmd.Process.Pid)
	if err != nil {
		err = errors.Join(err, cmd.Process.Kill(), out.Close())
		return nil, fmt.Errorf("command was ended because it could not be identified: %w", err)
	}
	resetNice(leader.PID)
	running := &Execution{leader: leader, done: make(chan struct{})}
	go running.wait(c, cmd, out, started)
	return running, nil
}

// identifyChild works on a child that may have ended, which Identify refuses.
func identifyChild(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	st, err := readStat(pid)
	return Identity{BootID: boot, PID: pid, Start: st.Start}, err
}

// prepare finds everything that would keep the command from running, and the
// directory to run it in.
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
	if uid := os.Geteuid(); uid != 0 && int(account.UID) != uid {
		return Account{}, fmt.Errorf("cannot switch to %s: agent runs as %s (uid %d); set the account, or run the agent as root",
			account.Name, r.ownName(ctx), uid)
	}
	inHome := c.Dir == ""
	if inHome {
		c.Dir = account.Home
	}
	// A directory that hangs must be found out here: in the child it would
	// block every other start, since a fork blocks its parent until it is done.
	verdict, err := guard(ctx, r.watchdog, c.Dir, func() error { return checkDir(c.Dir) })
	if err != nil {
		return Account{}, fmt.Errorf("setup path %s: %w", c.Dir, err)
	}
	if inHome && verdict != nil {
		c.Dir, verdict = "/", nil // service accounts often have none; login programs do the same
	}
	return account, verdict
}

func (r *Runner) ownName(ctx context.Context) string {
	if own, err := r.accounts.Lookup(ctx, ""); err == nil {
		return own.Name
	}
	return "a user without a name"
}

func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("setup path %s does not exist", dir)
	case errors.Is(err, os.ErrPermission):
		return nil // root may be barred where the account is not; the start tells
	case err != nil:
		return fmt.Errorf("setup path: %w", err)
	case !info.IsDir():
		return fmt.Errorf("setup path %s is not a directory", dir)
	}
	return nil
}

// wrapper sets what only a process itself can set and becomes the shell. The
// agent may be protected from the kernel's out-of-memory killer; its commands
// are not, as their daemons would inherit it.
const wrapper = `umask 022; { echo 0 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"`

func (r *Runner) command(c Command, account Account, out *os.File) *exec.Cmd {
	args := []string{"-c", wrapper, "sh", account.Shell}
	if c.LoginProfile {
		args = append(args, "-l")
	}
	// No context: the command must be able to outlive whatever asked for it.
	cmd := exec.Command("/bin/sh", append(args, "-c", c.Line)...) //nolint:noctx,gosec // see above; running the given line is the purpose
	cmd.Dir, cmd.Env = c.Dir, c.environment(account, r.timezone)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: account.UID, Gid: account.GID, Groups: account.Groups}
	}
	return cmd
}

// openOutput creates the output file. It belongs to the account so that
// programs may open /dev/stdout again; appending lets it be truncated while in
// use without leaving holes.
func openOutput(path string, account Account) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the output file: %w", err)
	}
	if os.Geteuid() == 0 {
		if err := f.Chown(int(account.UID), int(account.GID)); err != nil {
			f.Close()
			return nil, fmt.Errorf("create the output file: %w", err)
		}
	}
	return f, nil
}

// explainStart turns the bare error of a failed fork, which names the shell
// whatever went wrong, into the reason.
func explainStart(c Command, account Account, err error) error {
	switch {
	case errors.Is(err, syscall.EACCES):
		if reason := barredAt(c.Dir, account); reason != "" {
			return fmt.Errorf("setup path %s is not accessible to account %s: %s", c.Dir, account.Name, reason)
		}
		return fmt.Errorf("account %s may not enter setup path %s or run /bin/sh: %w", account.Name, c.Dir, err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("cannot switch to %s: the agent lacks the capabilities setuid and setgid: %w", account.Name, err)
	}
	return fmt.Errorf("start the command: %w", err)
}

// barredAt finds the directory on the way to dir that the account may not
// enter, by owner and mode.
func barredAt(dir string, account Account) string {
	if parent := filepath.Dir(dir); parent != dir {
		if reason := barredAt(parent, account); reason != "" {
			return reason
		}
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err.Error()
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || mayEnter(info.Mode(), owner, account) {
		return ""
	}
	return fmt.Sprintf("%s has mode %#o and owner %d:%d", dir, info.Mode().Perm(), owner.Uid, owner.Gid)
}

func mayEnter(mode os.FileMode, owner *syscall.Stat_t, account Account) bool {
	bit := os.FileMode(0o001)
	if owner.Uid == account.UID {
		bit = 0o100
	} else if account.inGroup(owner.Gid) {
		bit = 0o010
	}
	return mode&bit != 0
}

// resetNice gives the command normal priority when the agent has another one.
// Only root may raise it; elsewhere the command keeps the agent's.
func resetNice(pgid int) {
	// The kernel's answer is 20 minus the nice value.
	if own, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil && own != 20 {
		_ = unix.Setpriority(unix.PRIO_PGRP, pgid, 0)
	}
}

// wait owns the command until its leader ends: it reaps it, bounds the output
// file and enforces the timeout.
func (r *Execution) wait(c Command, cmd *exec.Cmd, out *os.File, started time.Time) {
	defer close(r.done)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		// The exit status is read from ProcessState; other errors cannot
		// happen, since there are no pipes to copy.
		_ = cmd.Wait()
	}()
	r.output = outputFile{path: c.OutputPath, file: out}
	r.result.TimedOut = r.watch(c, exited)
	r.result.Elapsed = time.Since(started)
	r.result.setStatus(cmd.ProcessState)
	r.result.Output = r.Output()
	r.result.Hint = hint(c, r.result.ExitCode, r.result.Output)
	out.Close()
	r.result.OutputHeld = OutputHeld(c.OutputPath)
}

// watch returns when the command has exited; it reports whether its timeout
// passed before, and then has ended the whole group.
func (r *Execution) watch(c Command, exited <-chan struct{}) (timedOut bool) {
	var expired <-chan time.Time
	if c.Timeout > 0 {
		timer := time.NewTimer(c.Timeout)
		defer timer.Stop()
		expired = timer.C
	}
	size := time.NewTimer(firstSizeCheck)
	defer size.Stop()
	var killers sync.WaitGroup
	defer killers.Wait()
	for {
		select {
		case <-exited:
			return timedOut
		case <-size.C:
			size.Reset(r.output.bound())
		case <-expired:
			timedOut, expired = true, nil
			killers.Go(r.expire)
		}
	}
}

// expire ends the group of a command whose time is up. What survives SIGKILL
// sits in the kernel, and the caller sees that Done stays open.
func (r *Execution) expire() {
	_ = KillGroup(context.Background(), r.leader, KillGrace)
}

func (res *Result) setStatus(state *os.ProcessState) {
	res.ExitCode = state.ExitCode() // -1 without a state, when somebody else reaped the command
	if state == nil {
		return
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		res.Signal = status.Signal()
	}
}
