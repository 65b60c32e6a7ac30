package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// ShortenOutput gives up all but the last keep bytes of the output file of a running process if
// the file uses more than limit bytes on disk. Offsets in the file do not change, except on
// systems without holes in files, where the file becomes empty. A missing file is no error.
func ShortenOutput(path string, limit, keep int64) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("shorten output: %w", err)
	}
	if !info.Mode().IsRegular() || diskUsage(info) <= limit {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0) //nolint:gosec // output file of a command, at a path chosen by the agent
	if err != nil {
		return fmt.Errorf("shorten output: %w", err)
	}
	defer f.Close()
	if punch(f, info.Size()-keep) == nil {
		return nil
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("shorten output: %w", err)
	}
	return nil
}

// ReadOutput reads up to limit bytes of an output file from an offset. It skips output that
// was given up: from is the offset of data. size is the length of the file.
func ReadOutput(path string, offset int64, limit int) (data []byte, from, size int64, err error) {
	f, err := os.Open(path) //nolint:gosec // output file of a command, at a path chosen by the agent
	if err != nil {
		return nil, 0, 0, fmt.Errorf("read output: %w", err)
	}
	defer f.Close()
	return ReadPart(f, offset, limit)
}

// ReadPart is ReadOutput for an open file.
func ReadPart(f *os.File, offset int64, limit int) (data []byte, from, size int64, err error) {
	if size, err = f.Seek(0, io.SeekEnd); err != nil {
		return nil, 0, 0, fmt.Errorf("read output: %w", err)
	}
	from = offset
	if from > size { // the file was emptied
		from = 0
	}
	at := min(skipHole(f, from), size)
	data, err = io.ReadAll(io.NewSectionReader(f, at, int64(limit)))
	if at > from || from == 0 { // a hole ends within a block, the rest of which is zero
		n := len(data)
		data = bytes.TrimLeft(data, "\x00")
		at += int64(n - len(data))
	}
	return data, at, size, err
}

// CopyEnd writes the content of the file from, beginning at an offset, to the new file to.
func CopyEnd(to, from string, offset int64) error {
	in, err := os.Open(from) //nolint:gosec // output file of a command, at a path chosen by the agent
	if err != nil {
		return err
	}
	defer in.Close()
	if _, err := in.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // as above
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
