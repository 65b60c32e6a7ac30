package proc

import (
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
	// MaxOutput is the size on disk, in bytes, above which an output file is shortened.
	MaxOutput = 16 << 20

	// retainedOutput is the size of the end that remains of a shortened file, in bytes.
	retainedOutput = 64 << 10

	// maxLength is the length, in bytes, from which on an output file is truncated instead
	// of punched: file systems limit the length of files.
	maxLength = 1 << 40

	firstSizeCheck = 20 * time.Millisecond
	minSizeCheck   = 5 * time.Millisecond
	maxSizeCheck   = time.Second
)

// outputFile is the output of a running command.
type outputFile struct {
	path     string
	file     *os.File
	size     int64         // file size at the last check
	hole     int64         // size of the hole at the beginning of the file
	wait     time.Duration // time until the next check; 0 before the first check
	retained []byte        // end of the output before a truncation
}

// bound shortens the file if it is too large and returns the time until the next check:
// short if the file grows fast, otherwise twice the previous time, up to a second. The
// first intervals are short, because the first checks may precede the command's output on a
// busy host.
func (o *outputFile) bound() time.Duration {
	o.wait = min(2*max(o.wait, firstSizeCheck/2), maxSizeCheck)
	info, err := o.file.Stat()
	if err != nil {
		return o.wait
	}
	grown := info.Size() - o.size
	o.size = info.Size()
	o.hole = min(o.hole, o.size) // the command may have truncated the file
	if o.size-o.hole > MaxOutput {
		o.shorten()
	}
	if grown > MaxOutput/64 {
		o.wait = minSizeCheck
	}
	return o.wait
}

// shorten replaces all but the end of the file by a hole. The end is not moved, so no
// output is lost while the command writes. On systems without holes the file is truncated,
// which loses the output that is written between reading the end and truncating.
func (o *outputFile) shorten() {
	old := o.size - retainedOutput
	if o.size < maxLength && punch(o.file, old) == nil {
		o.hole = old
		return
	}
	o.retained = readEnd(o.path, retainedOutput)
	// Writers append, so they continue at the new end.
	if os.Truncate(o.path, 0) == nil {
		o.size, o.hole = 0, 0
	}
}

// tail returns the last limit bytes of the output, as valid UTF-8.
func (o *outputFile) tail(limit int) string {
	end := readEnd(o.path, limit)
	if missing := limit - len(end); missing > 0 {
		end = append(o.retained[max(0, len(o.retained)-missing):len(o.retained):len(o.retained)], end...)
	}
	return cleanText(decodeOutput(end, len(end) == limit), limit)
}

// readEnd returns the last limit bytes of a file; nil if it cannot be read.
func readEnd(path string, limit int) []byte {
	f, err := os.Open(path) //nolint:gosec // output file of a command, at a path chosen by the agent
	if err != nil {
		return nil
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, size-int64(limit)), int64(limit)))
	return text
}

// cleanText returns valid UTF-8 without control characters other than tab and line
// feed, at most limit bytes from the end. Invalid bytes become replacement
// characters.
func cleanText(text []byte, limit int) string {
	for len(text) > 0 && !utf8.RuneStart(text[0]) && len(text) > limit-utf8.UTFMax {
		text = text[1:] // skip the rest of a cut character
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

// codePages are the code pages of Windows consoles, by number.
var codePages = map[uint32]encoding.Encoding{
	437: charmap.CodePage437, 850: charmap.CodePage850, 852: charmap.CodePage852, 855: charmap.CodePage855,
	858: charmap.CodePage858, 860: charmap.CodePage860, 862: charmap.CodePage862, 863: charmap.CodePage863,
	865: charmap.CodePage865, 866: charmap.CodePage866, 874: charmap.Windows874,
	1250: charmap.Windows1250, 1251: charmap.Windows1251, 1252: charmap.Windows1252, 1253: charmap.Windows1253,
	1254: charmap.Windows1254, 1255: charmap.Windows1255, 1256: charmap.Windows1256, 1257: charmap.Windows1257, 1258: charmap.Windows1258,
	932: japanese.ShiftJIS, 936: simplifiedchinese.GBK, 949: korean.EUCKR, 950: traditionalchinese.Big5,
	54936: simplifiedchinese.GB18030,
}

// decodeCodePage converts text from a code page to UTF-8, unless it is UTF-8
// already. cut is true if the text may begin in the middle of a character. Text of
// an unknown page is returned unchanged.
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
