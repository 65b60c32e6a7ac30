package proc

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxOutput is the size at which an output file is emptied, in bytes.
	MaxOutput = 16 << 20

	// keptOutput is how much of its end is remembered then, in bytes.
	keptOutput = 64 << 10

	firstSizeCheck = 20 * time.Millisecond
	minSizeCheck   = 5 * time.Millisecond
	maxSizeCheck   = time.Second
)

// outputFile is the output of a running command.
type outputFile struct {
	path string
	file *os.File
	size int64         // at the last check
	wait time.Duration // before the next; 0 before the first
	kept []byte        // end of what was cut off
}

// bound empties the file when it is too large and returns when to look again:
// soon when it grows fast, else each time after twice as long, up to a second.
// The first looks may come before a busy host has even begun the command, and
// must not be followed by a second in which nobody looks.
func (o *outputFile) bound() time.Duration {
	o.wait = min(2*max(o.wait, firstSizeCheck/2), maxSizeCheck)
	info, err := o.file.Stat()
	if err != nil {
		return o.wait
	}
	grown := info.Size() - o.size
	o.size = info.Size()
	if o.size > MaxOutput {
		o.kept = readEnd(o.path, keptOutput)
		// Writers append, so they go on at the new end.
		if o.file.Truncate(0) == nil {
			o.size = 0
		}
	}
	if grown > MaxOutput/64 {
		o.wait = minSizeCheck
	}
	return o.wait
}

// tail returns the last limit bytes of everything written, as valid UTF-8.
func (o *outputFile) tail(limit int) string {
	end := readEnd(o.path, limit)
	if missing := limit - len(end); missing > 0 {
		end = append(o.kept[max(0, len(o.kept)-missing):len(o.kept):len(o.kept)], end...)
	}
	return cleanText(end, limit)
}

// readEnd reads the last limit bytes of a file; nothing when it cannot.
func readEnd(path string, limit int) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size < int64(limit) {
		_, _ = f.Seek(0, io.SeekStart)
	} else {
		_, _ = f.Seek(-int64(limit), io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, int64(limit)))
	return text
}

// cleanText makes program output fit for a JSON string and a terminal: valid
// UTF-8 without control characters other than tab and line feed, at most limit
// bytes, the end kept. Output in another encoding shows replacement characters.
func cleanText(text []byte, limit int) string {
	for len(text) > 0 && !utf8.RuneStart(text[0]) && len(text) > limit-utf8.UTFMax {
		text = text[1:] // the rest of a character that was cut
	}
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ' || r == 0x7f:
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(text), "\uFFFD"))
	for len(clean) > limit {
		_, n := utf8.DecodeRuneInString(clean)
		clean = clean[n:]
	}
	return clean
}

// TrimOutput empties an output file that a daemon still writes to when it is
// larger than limit bytes, and reports whether it did. Call it about once a
// minute while the daemon lives. A missing file is no error.
func TrimOutput(path string, limit int64) (bool, error) {
	info, err := os.Lstat(path)
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("trim output: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() <= limit {
		return false, nil
	}
	if err := os.Truncate(path, 0); err != nil {
		return false, fmt.Errorf("trim output: %w", err)
	}
	return true, nil
}
