package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// OutputHeld reports whether a process has the file open for writing. It requests a read
// lease, which the kernel refuses while there are writers: one system call instead of
// reading all descriptors of the host. On file systems without leases it returns true, so
// that no file in use is removed; for a missing file it returns false.
func OutputHeld(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // output file of a command, at a path chosen by the agent
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return tryLease(f) != nil
}

// tryLease requests a read lease, which ends when the file is closed. EAGAIN means that a
// process has the file open for writing, any other error that leases are not supported.
func tryLease(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return err
}

// punch replaces the first n bytes of a file by a hole: they use no disk space and read as
// zeros, and the length of the file is unchanged.
func punch(f *os.File, n int64) error {
	_, err := retryEINTR(func() (int, error) {
		return 0, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, n)
	})
	return err
}

// diskUsage returns the disk space that a file uses, in bytes, excluding holes and space that
// the file system preallocates.
func diskUsage(info os.FileInfo) int64 {
	const block = 512 // bytes, independent of the file system's block size
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(info.Size(), st.Blocks*block)
	}
	return info.Size()
}

// decodeOutput returns the text unchanged: on Linux programs write UTF-8.
func decodeOutput(text []byte, _ bool) []byte { return text }

// openOutput creates the output file. The account owns the file, so that programs may open
// /dev/stdout again. It is opened for appending, so that it can be truncated while in use.
func openOutput(path string, account Account) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC|unix.O_NOFOLLOW, 0o600) //nolint:gosec // output file of a command; O_NOFOLLOW rejects a symbolic link
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

// hint returns an explanation of exit code 126 or 127 from the state of the command's
// files; "" for other codes.
func hint(c Command, code int, output string) string {
	program := programOf(c)
	switch {
	case code != exitNotExecutable && code != exitNotFound:
		return ""
	case strings.Contains(output, "\r") || inspectProgram(program, hasCRLF):
		return fmt.Sprintf("script %s has Windows line ends (\\r\\n); convert it with dos2unix", program)
	case code == exitNotExecutable && inspectProgram(program, openForWriting):
		return fmt.Sprintf("%s is being written", program)
	case code == exitNotExecutable:
		return fmt.Sprintf("not executable: %s in %s", program, c.Dir)
	}
	return fmt.Sprintf("not found: %s in %s", program, c.Dir)
}

// programOf returns the first word of the line, joined to the directory if it is a
// relative path.
func programOf(c Command) string {
	fields := strings.Fields(c.Line)
	if len(fields) == 0 {
		return ""
	}
	program := strings.Trim(fields[0], `"'`)
	if strings.Contains(program, "/") && !filepath.IsAbs(program) {
		return filepath.Join(c.Dir, program)
	}
	return program
}

// inspectProgram opens a program and returns the result of check; false if the path is not
// absolute or cannot be opened.
func inspectProgram(path string, check func(*os.File) bool) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	f, err := openRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return check(f)
}

// hasCRLF reports whether a script's first line ends with a carriage return, which
// becomes part of the interpreter's name.
func hasCRLF(f *os.File) bool {
	head, err := io.ReadAll(io.LimitReader(f, 512))
	if err != nil {
		return false
	}
	first, _, found := bytes.Cut(head, []byte("\n"))
	return found && bytes.HasPrefix(first, []byte("#!")) && bytes.HasSuffix(first, []byte("\r"))
}

// openForWriting reports whether a process has the file open for writing.
func openForWriting(f *os.File) bool { return errors.Is(tryLease(f), unix.EAGAIN) }

// busyWait bounds the wait of a command until its program is written.
const busyWait = time.Second

// awaitWritten waits at most busyWait while the command's program is open for writing, as
// during an upgrade: running it would fail with "text file busy". Waiting before the start
// is safe; a retry could run a line a second time.
func awaitWritten(ctx context.Context, c Command) error {
	program := programOf(c)
	for end := time.Now().Add(busyWait); inspectProgram(program, openForWriting) && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(busyWait / 10):
		}
	}
	return nil
}

// skipHole returns the offset of the first data at or after an offset; the end of the file if
// there is none.
func skipHole(f *os.File, offset int64) int64 {
	at, err := unix.Seek(int(f.Fd()), offset, unix.SEEK_DATA)
	if err != nil { // no data follows, or the file system has no holes
		return offset
	}
	return at
}
