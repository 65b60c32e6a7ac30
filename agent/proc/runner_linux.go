package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// closeOnExec sets the close-on-exec flag of all descriptors above 2. It replaces
// close_range on kernels before 5.11.
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

// identifyChild returns the identity of a child. Unlike Identify it also accepts a child
// that has ended.
func identifyChild(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	st, err := ReadStat(pid)
	return Identity{BootID: boot, PID: pid, Start: st.Start}, err
}

// wrapper is a shell script that sets umask and oom_score_adj and then executes its
// arguments. The agent may be protected from the kernel's out-of-memory killer; daemons
// that its commands start must not inherit the protection.
const wrapper = `umask 022; { echo 0 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"`

func (r *Runner) command(c Command, account Account, out *os.File) (*exec.Cmd, error) {
	words := []string{account.Shell}
	if c.LoginProfile {
		words = append(words, "-l")
	}
	words = append(words, "-c", c.Line)
	env := c.environment(basicEnvironment(account, r.timezone))
	var cmd *exec.Cmd
	if prefix := r.scopes.prefix(c, account); prefix != nil {
		var err error
		if cmd, err = scopedCommand(prefix, c, account, env, words); err != nil {
			return nil, err
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	} else {
		// No context: the command must be able to outlive its caller.
		cmd = exec.Command("/bin/sh", slices.Concat([]string{"-c", wrapper, "sh"}, words)...) //nolint:noctx,gosec // see above; running the given line is the purpose
		cmd.Dir, cmd.Env = c.Dir, env
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: account.UID, Gid: account.GID, Groups: account.Groups}
		}
	}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, nil
}

// job is empty on Linux, where the process group contains the processes of a command.
type job struct{}

func (job) close() {}

func startIn(cmd *exec.Cmd, _ Command) (job, error) {
	if setup, ok := cmd.Stdin.(*os.File); ok {
		defer setup.Close() // the command has its own descriptor
	}
	return job{}, atNormalPriority(func() error { return ownChildren.start(cmd) })
}

// maySwitch returns an error if a command cannot run as the account.
func (r *Runner) maySwitch(ctx context.Context, account Account) error {
	if uid := os.Geteuid(); uid != 0 && int(account.UID) != uid {
		return fmt.Errorf("cannot switch to %s: agent runs as %s (uid %d); set the account, or run the agent as root",
			account.Name, r.ownName(ctx), uid)
	}
	return nil
}

// rootDir returns the directory of a command whose account has no home.
func rootDir() string { return "/" }

// preventInheritance prevents commands from inheriting open files and ignored signals of
// this program.
func preventInheritance() error {
	stopIgnoringSignals()
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return closeOnExec()
	}
	return nil
}

// stopIgnoringSignals installs empty handlers for signals that this program was started to
// ignore, for example by nohup: executed programs would ignore them too, and a
// daemon that ignores SIGHUP cannot be reloaded. The runtime handles all other
// signals.
var stopIgnoringSignals = sync.OnceFunc(func() {
	unread := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(unread, s)
		}
	}
})

// explainStart returns an error with the cause of a failed start; the original error always
// names the shell.
func explainStart(c Command, account Account, err error) error {
	switch {
	case errors.Is(err, syscall.EACCES):
		if reason := barredAt(c.Dir, account); reason != "" {
			return markSetup(fmt.Errorf("setup path %s is not accessible to account %s: %s", c.Dir, account.Name, reason))
		}
		return markSetup(fmt.Errorf("account %s may not enter setup path %s or run /bin/sh: %w", account.Name, c.Dir, err))
	case errors.Is(err, syscall.EPERM):
		return markSetup(fmt.Errorf("cannot switch to %s: the agent lacks the capabilities setuid and setgid: %w", account.Name, err))
	}
	return fmt.Errorf("start the command: %w", err)
}

// barredAt describes the first directory on the path to dir that the account may not enter,
// by owner and mode; "" if the account may enter all.
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

// atNormalPriority calls start with nice value 0: a process inherits the priority of the
// thread that starts it, and may fork before the agent could change its priority. Only root
// may raise a priority; otherwise the command inherits the agent's.
func atNormalPriority(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const thread, normal = 0, 0
	// The system call returns 20 minus the nice value.
	if own, err := unix.Getpriority(unix.PRIO_PROCESS, thread); err == nil && own != 20 {
		if unix.Setpriority(unix.PRIO_PROCESS, thread, normal) == nil {
			defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, thread, 20-own) }() // restoring the previous value is always allowed
		}
	}
	return start()
}

func (r *Runner) ownName(ctx context.Context) string {
	if own, err := r.accounts.Lookup(ctx, ""); err == nil {
		return own.Name
	}
	return "a user without a name"
}
