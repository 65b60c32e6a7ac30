package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/agent/proc"
)

func check(ctx context.Context, h Host) []Finding {
	findings := checkUnit(ctx, h.PID)
	for _, one := range []func(context.Context, Host) *Finding{
		checkReaping, checkPIDFD, checkHiddenProcs, checkFileLimit, checkDataFolder, checkClock,
	} {
		if f := one(ctx, h); f != nil {
			findings = append(findings, *f)
		}
	}
	return findings
}

// reapPatience is how long a dead orphan may wait to be reaped. A process
// that reaps at all does so at once; the machine may be busy.
const reapPatience = 10 * time.Second

// checkReaping makes an orphan that ends at once and looks whether it goes
// away.
func checkReaping(ctx context.Context, _ Host) *Finding {
	text, err := proc.AskHost(ctx, "sh", "-c", "sleep 0.1 >/dev/null 2>&1 & echo $!")
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return nil
	}
	orphan, err := proc.ReadStat(pid)
	if err != nil {
		return nil // it was reaped already
	}
	deadline := time.Now().Add(reapPatience)
	for {
		now, err := proc.ReadStat(pid)
		switch {
		case err != nil || now.Start != orphan.Start:
			return nil
		case now.State == 'Z' && time.Now().After(deadline):
			return &Finding{
				Check: Reaping,
				What:  fmt.Sprintf("process %d does not reap the dead children of others", now.PPID),
				Why: "every process that ends stays in the process table until the host cannot make new ones; " +
					"programs that only ask whether a pid is there take them for alive",
				Do: "run an init as the first process of the container (docker run --init, shareProcessNamespace), or the agent itself",
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
		_ = unix.Close(fd) // nothing was written
		return nil
	}
	return &Finding{
		Check: PIDFD,
		What:  fmt.Sprintf("the kernel gives no handles of processes (pidfd_open: %v)", err),
		Why:   "a signal may hit another process that got the pid of one that has just ended, and deaths are noticed by looking from time to time only",
		Do:    "use Linux 5.3 or newer; in a container, a seccomp profile that allows pidfd_open and pidfd_send_signal",
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
		Check: HiddenProcs,
		What:  "/proc is mounted with hidepid, and the agent does not run as root",
		Why:   "processes of other accounts look as if they did not run, so they would be started a second time",
		Do:    "run the agent as root, or mount /proc with gid= of a group that the agent is in",
	}
}

// hidesProcs reads /proc/self/mounts.
func hidesProcs(mounts string) bool {
	hidden := false
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[1] != "/proc" || fields[2] != "proc" {
			continue
		}
		hidden = false // a later mount hides the one before
		for option := range strings.SplitSeq(fields[3], ",") {
			value, ok := strings.CutPrefix(option, "hidepid=")
			hidden = hidden || ok && value != "0" && value != "off"
		}
	}
	return hidden
}

// enoughFiles is what a thousand supervised processes need, with room.
const enoughFiles = 8192

func checkFileLimit(_ context.Context, h Host) *Finding {
	pid := h.PID
	if pid == 0 {
		return nil // whoever asks has other limits than an agent would
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return nil
	}
	hard, limited := openFiles(string(text))
	if !limited || hard >= enoughFiles {
		return nil
	}
	return &Finding{
		Check: FileLimit,
		What:  fmt.Sprintf("the agent may have %d files open", hard),
		Why:   "each supervised process takes one, each running command two or more; without them commands fail and deaths are noticed late",
		Do:    fmt.Sprintf("LimitNOFILE=1048576 in the agent's unit, or ulimit -n; at least %d", enoughFiles),
	}
}

// openFiles reads the hard limit from /proc/PID/limits; the Go runtime raises
// the soft one to it.
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

// fileSystems that are no place for a journal, by the magic number of statfs.
var fileSystems = map[int64]struct{ name, why string }{
	unix.TMPFS_MAGIC: {"tmpfs", inMemory}, unix.RAMFS_MAGIC: {"ramfs", inMemory},
	unix.NFS_SUPER_MAGIC: {"NFS", overNetwork}, unix.SMB_SUPER_MAGIC: {"SMB", overNetwork},
	unix.SMB2_SUPER_MAGIC: {"SMB", overNetwork}, unix.CIFS_SUPER_MAGIC: {"CIFS", overNetwork},
	unix.AFS_SUPER_MAGIC: {"AFS", overNetwork}, unix.CODA_SUPER_MAGIC: {"Coda", overNetwork},
	unix.CEPH_SUPER_MAGIC: {"Ceph", overNetwork}, unix.V9FS_MAGIC: {"9P", overNetwork},
}

const (
	inMemory    = "after a reboot the agent does not know which processes it kept alive and which commands it has run"
	overNetwork = "while the network is away no command is taken, and a second agent on another host may not find the lock"
)

func checkDataFolder(_ context.Context, h Host) *Finding {
	if h.DataDir == "" {
		return nil
	}
	dir := existing(h.DataDir)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil // the agent itself says why it cannot use it
	}
	f := Finding{Check: DataFolder, Do: "a folder on a local disk, with --data"}
	// Statfs has the magic number as 32 bits with or without sign.
	if bad, ok := fileSystems[int64(uint32(fs.Type))]; ok { //nolint:gosec // the kernel means 32 bits, whatever the field has on this processor
		f.What, f.Why = fmt.Sprintf("the data folder %s is on %s", h.DataDir, bad.name), bad.why
		return &f
	}
	if fs.Flags&unix.ST_RDONLY != 0 {
		f.What, f.Why = fmt.Sprintf("the data folder %s cannot be written", h.DataDir), "every command that would change the host is refused"
		return &f
	}
	return nil
}

// existing is the folder, or the next one above it that exists.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return dir
		}
		i := strings.LastIndexByte(strings.TrimRight(dir, "/"), '/')
		switch {
		case i > 0:
			dir = dir[:i]
		case i == 0:
			return "/"
		default:
			return "."
		}
	}
}

// released is before every release of this program.
var released = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

func checkClock(context.Context, Host) *Finding {
	now := time.Now()
	if now.After(released) {
		return nil
	}
	return &Finding{
		Check: Clock,
		What:  "the clock says " + now.UTC().Format(time.DateOnly),
		Why:   "periodic processes run at wrong times, and what the journal keeps for days is not kept",
		Do:    "set the clock and keep it synchronised (chrony, systemd-timesyncd)",
	}
}
