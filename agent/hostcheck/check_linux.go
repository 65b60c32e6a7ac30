package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/agent/proc"
)

func check(ctx context.Context, h Host) []Finding {
	findings := Unit(ctx, h.PID)
	for _, one := range []func(context.Context, Host) *Finding{
		checkReaping, checkPIDFD, checkHiddenProcs, checkFileLimit, checkDataFolder, checkClock,
	} {
		if f := one(ctx, h); f != nil {
			findings = append(findings, *f)
		}
	}
	return findings
}

// reapTimeout is the maximum wait until an orphan is reaped. An init reaps at once unless
// the host is busy.
const reapTimeout = 10 * time.Second

// checkReaping starts an orphan that ends at once, and returns a finding if the orphan is
// not reaped.
func checkReaping(ctx context.Context, _ Host) *Finding {
	text, err := proc.QueryHost(ctx, "sh", "-c", "sleep 0.1 >/dev/null 2>&1 & echo $!")
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return nil
	}
	orphan, err := proc.ReadStat(pid)
	if err != nil {
		return nil // already reaped
	}
	deadline := time.Now().Add(reapTimeout)
	for {
		now, err := proc.ReadStat(pid)
		switch {
		case err != nil || now.Start != orphan.Start:
			return nil
		case now.State == 'Z' && time.Now().After(deadline):
			return &Finding{
				Check:   Reaping,
				Problem: fmt.Sprintf("process %d does not reap orphans", now.PPID),
				Consequence: "every process that ends stays in the process table until the host cannot start new ones; " +
					"programs that only check the pid consider them running",
				Remedy: "run an init as the first process of the container (docker run --init, shareProcessNamespace), or the agent itself",
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func checkPIDFD(context.Context, Host) *Finding {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		_ = unix.Close(fd) // nothing was written, the error is ignored
		return nil
	}
	return &Finding{
		Check:       PIDFD,
		Problem:     fmt.Sprintf("the kernel provides no process handles (pidfd_open: %v)", err),
		Consequence: "a signal may hit another process with the pid of one that has just ended, and ends of processes are detected by polling only",
		Remedy:      "use Linux 5.3 or newer; in a container, a seccomp profile that allows pidfd_open and pidfd_send_signal",
	}
}

func checkHiddenProcs(context.Context, Host) *Finding {
	if os.Geteuid() == 0 {
		return nil
	}
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil || !hidesProcs(string(text)) {
		return nil
	}
	return &Finding{
		Check:       HiddenProcs,
		Problem:     "/proc is mounted with hidepid, and the agent does not run as root",
		Consequence: "processes of other accounts seem not to run, so they would be started a second time",
		Remedy:      "run the agent as root, or mount /proc with gid= of a group that the agent is in",
	}
}

// hidesProcs reports whether mounts, the text of /proc/self/mounts, has a /proc with hidepid.
func hidesProcs(mounts string) bool {
	hidden := false
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[1] != "/proc" || fields[2] != "proc" {
			continue
		}
		hidden = false // a later mount replaces an earlier one
		for option := range strings.SplitSeq(fields[3], ",") {
			value, ok := strings.CutPrefix(option, "hidepid=")
			hidden = hidden || ok && value != "0" && value != "off"
		}
	}
	return hidden
}

// enoughFiles is the number of open files that suffices for a thousand supervised
// processes, with a reserve.
const enoughFiles = 8192

func checkFileLimit(_ context.Context, h Host) *Finding {
	if h.PID == 0 {
		return nil // the agent does not run, and the limits of this program may differ
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", h.PID))
	if err != nil {
		return nil
	}
	hard, limited := openFiles(string(text))
	if !limited || hard >= enoughFiles {
		return nil
	}
	return &Finding{
		Check:       FileLimit,
		Problem:     fmt.Sprintf("the agent may have %d files open", hard),
		Consequence: "each supervised process needs one, each running command two or more; without them commands fail and ends of processes are detected late",
		Remedy:      fmt.Sprintf("LimitNOFILE=1048576 in the agent's unit, or ulimit -n; at least %d", enoughFiles),
	}
}

// openFiles returns the hard limit of open files in limits, the text of /proc/PID/limits.
// The Go runtime raises the soft limit to the hard limit.
func openFiles(limits string) (hard uint64, limited bool) {
	for line := range strings.Lines(limits) {
		rest, ok := strings.CutPrefix(line, "Max open files")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			return 0, false
		}
		hard, err := strconv.ParseUint(fields[1], 10, 64)
		return hard, err == nil
	}
	return 0, false
}

// unsafeFileSystems are file systems that are not suitable for a journal, by the magic
// number of statfs.
var unsafeFileSystems = map[int64]struct{ name, consequence string }{
	unix.TMPFS_MAGIC: {"tmpfs", inMemory}, unix.RAMFS_MAGIC: {"ramfs", inMemory},
	unix.NFS_SUPER_MAGIC: {"NFS", overNetwork}, unix.SMB_SUPER_MAGIC: {"SMB", overNetwork},
	unix.SMB2_SUPER_MAGIC: {"SMB", overNetwork}, unix.CIFS_SUPER_MAGIC: {"CIFS", overNetwork},
	unix.AFS_SUPER_MAGIC: {"AFS", overNetwork}, unix.CODA_SUPER_MAGIC: {"Coda", overNetwork},
	unix.CEPH_SUPER_MAGIC: {"Ceph", overNetwork}, unix.V9FS_MAGIC: {"9P", overNetwork},
}

const (
	inMemory    = "after a reboot the agent does not know which processes it supervised and which commands it has run"
	overNetwork = "while the network is unavailable no command is accepted, and the lock may not exclude an agent on another host"
)

func checkDataFolder(_ context.Context, h Host) *Finding {
	if h.DataDir == "" {
		return nil
	}
	dir := existing(h.DataDir)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil // the agent reports the error when it starts
	}
	f := Finding{Check: DataFolder, Remedy: "a folder on a local disk, with --data"}
	// The magic number in Statfs_t is 32 bits wide, signed or not.
	bad, unsafe := unsafeFileSystems[int64(uint32(fs.Type))] //nolint:gosec // the kernel uses 32 bits of the field
	switch {
	case unsafe:
		f.Problem, f.Consequence = fmt.Sprintf("the data folder %s is on %s", h.DataDir, bad.name), bad.consequence
	case fs.Flags&unix.ST_RDONLY != 0:
		f.Problem, f.Consequence = fmt.Sprintf("the data folder %s cannot be written", h.DataDir), "every command that would change the host is refused"
	default:
		return nil
	}
	return &f
}

// existing returns dir, or its closest ancestor that exists.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// earliest is a time before every release of this program.
var earliest = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

func checkClock(context.Context, Host) *Finding {
	now := time.Now()
	if now.After(earliest) {
		return nil
	}
	return &Finding{
		Check:       Clock,
		Problem:     "the clock says " + now.UTC().Format(time.DateOnly),
		Consequence: "periodic processes run at wrong times, and TLS certificates seem not yet valid",
		Remedy:      "set the clock and keep it synchronized (chrony, systemd-timesyncd)",
	}
}
