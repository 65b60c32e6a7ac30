package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxPidFile is the number of bytes of a pid file that are read at most.
const maxPidFile = 4 << 10

// parsePidFile returns the pid in a pid file: the first word of the first non-empty
// line. Byte order marks, CR, NUL bytes and UTF-16 with its mark are tolerated,
// since existing programs write them.
func parsePidFile(text []byte) (int, error) {
	words := bytes.FieldsFunc(plainText(text), func(r rune) bool {
		return r == ' ' || r == '\t' || r == '\r' || r == '\n' || r == 0
	})
	if len(words) == 0 {
		return 0, fmt.Errorf("it is empty")
	}
	pid, err := strconv.Atoi(string(words[0]))
	if errors.Is(err, strconv.ErrRange) {
		return 0, errors.New("it begins with a number that no process can have")
	}
	if err != nil { // do not quote it: the caller who named the path may not be allowed to read the file
		return 0, errors.New("it does not begin with a pid")
	}
	if pid < 2 || pid > maxPid {
		return 0, fmt.Errorf("it names pid %d, which no managed process can have", pid)
	}
	return pid, nil
}

// parsePidLines returns the pids of a pid file with one pid per line, without
// repetitions. Lines that do not begin with a pid are skipped.
func parsePidLines(text []byte) []int {
	var pids []int
	for line := range bytes.FieldsFuncSeq(plainText(text), func(r rune) bool { return r == '\n' || r == '\r' || r == 0 }) {
		if pid, err := parsePidFile(line); err == nil && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// MoveDeadPidFile renames a pid file within its folder, and replaces an existing file called
// name. It moves only a file whose pids belong to no live process: an error says what it found.
func MoveDeadPidFile(path, name string) error {
	text, _, err := readPidFile(path)
	if err == nil {
		_, err = parsePidFile(text)
	}
	if err != nil {
		return err
	}
	for _, pid := range parsePidLines(text) {
		if isLive(pid) {
			return fmt.Errorf("pid %d is a live process", pid)
		}
	}
	return RenameInDir(path, name)
}

// isLive reports whether a pid belongs to a process or a thread. Without proof, for example
// for a process that the agent may not see, it returns true.
func isLive(pid int) bool {
	st, err := ReadStat(pid)
	if err != nil {
		return !errors.Is(err, ErrGone) || hiddenPid(pid)
	}
	return !dead(st.State) && !st.Kernel
}

// plainText removes byte order marks, and the zeros of UTF-16.
func plainText(text []byte) []byte {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if wide, ok := bytes.CutPrefix(text, []byte("\xff\xfe")); ok {
		return bytes.ReplaceAll(wide, []byte{0}, nil) // a pid is ASCII
	}
	return text
}

var errNoPidFile = errors.New("it does not exist")

// files holds the setup path and the content of the pid file of a target, read under the
// watchdog.
type files struct {
	setup   string // setup path with symbolic links resolved
	pid     int    // 0 = no usable pid
	pids    []int  // pids of all lines that begin with a pid
	written time.Time
	err     error // reason why pid is 0
}

// blocked reports whether the pid file is unreadable, as opposed to missing or without a
// usable pid.
func (f files) blocked() bool {
	return f.err != nil && (errors.Is(f.err, errFileBlocked) || errors.Is(f.err, os.ErrPermission) ||
		diskTrouble(f.err) || exhausted(f.err))
}

func readFiles(setupPath, pidPath string) files {
	var got files
	if setupPath != "" {
		got.setup = filepath.Clean(setupPath)
		if resolved, err := filepath.EvalSymlinks(setupPath); err == nil {
			got.setup = resolved
		}
	}
	if pidPath == "" {
		got.err = errNoPidFile
		return got
	}
	var text []byte
	if text, got.written, got.err = readPidFile(pidPath); got.err == nil {
		got.pid, got.err = parsePidFile(text)
		got.pids = parsePidLines(text)
	}
	return got
}

// FilesWritten returns the modification time of each file; the zero time for unreadable
// files. It fails after about 2 s on a hanging file system. Unlike PidFileWritten it follows
// every symbolic link: use the result only to decide whether to read a pid file again.
func (f *Finder) FilesWritten(ctx context.Context, paths []string) ([]time.Time, error) {
	return guard(ctx, f.watchdog, fileTimeout, strings.Join(paths, "\x00"), func() []time.Time {
		written := make([]time.Time, len(paths))
		for i, path := range paths {
			written[i] = fileWritten(path)
		}
		return written
	})
}

// PidFileWritten returns the modification time of a pid file; the zero time if the file is
// missing or unreadable. It blocks for at most about 2 s on a hanging file system.
func (f *Finder) PidFileWritten(ctx context.Context, path string) time.Time {
	written, err := guard(ctx, f.watchdog, fileTimeout, path, func() time.Time { return pidFileWritten(path) })
	if err != nil {
		return time.Time{}
	}
	return written
}
