package proc

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/japanese"
	"golang.org/x/text/encoding/korean"
	"golang.org/x/text/encoding/simplifiedchinese"
	"golang.org/x/text/encoding/traditionalchinese"
)

const (
	// MaxOutput is the room, in bytes, that an output file may take before all
	// but its end goes.
	MaxOutput = 16 << 20

	// keptOutput is how much of the end is kept then, in bytes.
	keptOutput = 64 << 10

	// maxLength is the length at which an output file is emptied after all: file
	// systems have a limit, beyond which writing fails.
	maxLength = 1 << 40

	firstSizeCheck = 20 * time.Millisecond
	minSizeCheck   = 5 * time.Millisecond
	maxSizeCheck   = time.Second
)

// outputFile is the output of a running command.
type outputFile struct {
	path string
	file *os.File
	size int64         // at the last check
	hole int64         // how much of its beginning takes no room any more
	wait time.Duration // before the next check; 0 before the first
	kept []byte        // end of what was cut off
}

// bound shortens the file when it takes too much room and returns when to look
// again: soon when it grows fast, else each time after twice as long, up to a second.
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
	o.hole = min(o.hole, o.size) // somebody else may have emptied it
	if o.size-o.hole > MaxOutput {
		o.shorten()
	}
	if grown > MaxOutput/64 {
		o.wait = minSizeCheck
	}
	return o.wait
}

// shorten makes a hole of all but the end of the file. The end stays where it
// is, so that nothing is lost, however fast it grows meanwhile. Where there are
// no holes the file is emptied, and what is written between reading its end and
// that is lost.
func (o *outputFile) shorten() {
	old := o.size - keptOutput
	if o.size < maxLength && punch(o.file, old) == nil {
		o.hole = old
		return
	}
	o.kept = readEnd(o.path, keptOutput)
	// Writers append, so they go on at the new end.
	if os.Truncate(o.path, 0) == nil {
		o.size, o.hole = 0, 0
	}
}

// tail returns the last limit bytes of everything written, as valid UTF-8.
func (o *outputFile) tail(limit int) string {
	end := readEnd(o.path, limit)
	if missing := limit - len(end); missing > 0 {
		end = append(o.kept[max(0, len(o.kept)-missing):len(o.kept):len(o.kept)], end...)
	}
	return cleanText(decodeOutput(end, len(end) == limit), limit)
}

// readEnd reads the last limit bytes of a file; nothing when it cannot.
func readEnd(path string, limit int) []byte {
	f, err := os.Open(path) //nolint:gosec // what a command wrote, for which the agent chose the place
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
// bytes, the end kept. What is in another encoding shows replacement characters.
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

// TrimOutput empties an output file that a daemon still writes to when it takes
// more room than limit bytes, and reports whether it did. Call it about once a
// minute while the daemon lives. A missing file is no error.
func TrimOutput(path string, limit int64) (bool, error) {
	info, err := os.Lstat(path)
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("trim output: %w", err)
	}
	if !info.Mode().IsRegular() || room(info) <= limit {
		return false, nil
	}
	if err := os.Truncate(path, 0); err != nil {
		return false, fmt.Errorf("trim output: %w", err)
	}
	return true, nil
}

// codePages are the code pages that consoles of Windows have, by number.
var codePages = map[uint32]encoding.Encoding{
	437: charmap.CodePage437, 850: charmap.CodePage850, 852: charmap.CodePage852, 855: charmap.CodePage855,
	858: charmap.CodePage858, 860: charmap.CodePage860, 862: charmap.CodePage862, 863: charmap.CodePage863,
	865: charmap.CodePage865, 866: charmap.CodePage866, 874: charmap.Windows874,
	1250: charmap.Windows1250, 1251: charmap.Windows1251, 1252: charmap.Windows1252, 1253: charmap.Windows1253,
	1254: charmap.Windows1254, 1255: charmap.Windows1255, 1256: charmap.Windows1256, 1257: charmap.Windows1257, 1258: charmap.Windows1258,
	932: japanese.ShiftJIS, 936: simplifiedchinese.GBK, 949: korean.EUCKR, 950: traditionalchinese.Big5,
	54936: simplifiedchinese.GB18030,
}

// decodeCodePage makes UTF-8 of a text that is written in a code page, unless
// it is UTF-8 already, as more and more programs write. cut says that it may
// begin in the middle of a character. An unknown page changes nothing.
func decodeCodePage(page uint32, text []byte, cut bool) []byte {
	known, ok := codePages[page]
	if !ok || isUTF8(text, cut) {
		return text
	}
	decoded, err := known.NewDecoder().Bytes(text)
	if err != nil {
		return text
	}
	return decoded
}

func isUTF8(text []byte, cut bool) bool {
	for rest := 0; cut && rest < utf8.UTFMax-1 && len(text) > 0 && !utf8.RuneStart(text[0]); rest++ {
		text = text[1:]
	}
	return utf8.Valid(text)
}
