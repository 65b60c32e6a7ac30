package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hint explains an exit of 126 or 127 with what stands on the disk.
func hint(c Command, code int, output string) string {
	program := programOf(c)
	switch {
	case code != exitNotExecutable && code != exitNotFound:
		return ""
	case strings.Contains(output, "\r") || hasCRLF(program):
		return fmt.Sprintf("script %s has Windows line ends (\\r\\n); convert it with dos2unix", program)
	case code == exitNotExecutable && openForWriting(program):
		return fmt.Sprintf("%s is being written", program)
	case code == exitNotExecutable:
		return fmt.Sprintf("not executable: %s in %s", program, c.Dir)
	}
	return fmt.Sprintf("not found: %s in %s", program, c.Dir)
}

// programOf is the first word of the line, resolved against the directory when
// it is a path.
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

// hasCRLF reports whether a script's first line ends with a carriage return,
// which makes the kernel look for an interpreter of that name.
func hasCRLF(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	f, err := openRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 512))
	if err != nil {
		return false
	}
	first, _, found := bytes.Cut(head, []byte("\n"))
	return found && bytes.HasPrefix(first, []byte("#!")) && bytes.HasSuffix(first, []byte("\r"))
}

func openForWriting(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	f, err := openRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(tryLease(f), unix.EAGAIN)
}

// busyWait is how long a command waits for its program to be written.
const busyWait = time.Second

// awaitWritten waits a moment while the command's program is open for
// writing, as it is when an upgrade has just copied it: running it would fail
// with "text file busy". Waiting before is safe, running a line a second time
// is not.
func awaitWritten(ctx context.Context, c Command) error {
	program := programOf(c)
	deadline := time.NewTimer(busyWait)
	defer deadline.Stop()
	tick := time.NewTicker(busyWait / 10)
	defer tick.Stop()
	for openForWriting(program) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return nil
		case <-tick.C:
		}
	}
	return nil
}
