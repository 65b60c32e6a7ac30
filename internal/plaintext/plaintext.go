// Package plaintext escapes untrusted text for terminals and logs: terminals execute
// control characters, and a line break would forge a log line.
package plaintext

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// isControl reports whether a character is a control character, a line separator, or
// changes the writing direction. Its escape, \u and four digits, is also valid
// in JSON.
func isControl(r rune) bool {
	return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Line returns text as one line: it escapes the characters of isControl, and replaces
// invalid UTF-8 by U+FFFD.
func Line(text string) string {
	if strings.IndexFunc(text, isControl) < 0 && utf8.ValidString(text) {
		return text
	}
	return string(escape(nil, []byte(text), ""))
}

// Text returns text of several lines: it escapes as [Line] does, except for line breaks and
// tabs.
func Text(text string) string { return string(escape(nil, []byte(text), "\n\t")) }

// escape appends text to b, and escapes the characters of isControl except those in kept.
func escape(b, text []byte, kept string) []byte {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if isControl(r) && !strings.ContainsRune(kept, r) {
			b = fmt.Appendf(b, `\u%04x`, r)
		} else {
			b = utf8.AppendRune(b, r)
		}
		text = text[size:]
	}
	return b
}

// Writer escapes control characters except line breaks and tabs.
type Writer struct {
	under io.Writer

	mu   sync.Mutex
	rest []byte // incomplete character at the end of the last Write
}

// NewWriter returns a Writer that writes to under.
func NewWriter(under io.Writer) *Writer { return &Writer{under: under} }

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.rest, p...)
	end := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if b := text[len(text)-back]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(text[len(text)-back:]) {
				end = len(text) - back
			}
			break
		}
	}
	w.rest = bytes.Clone(text[end:])
	if _, err := w.under.Write(escape(nil, text[:end], "\n\t")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Under returns the writer inside a [Writer], for callers that send control
// characters, or out itself if it is not a Writer.
func Under(out io.Writer) io.Writer {
	if w, ok := out.(*Writer); ok {
		return w.under
	}
	return out
}

// JSON escapes characters that JSON permits in strings and terminals execute.
func JSON(document []byte) []byte {
	if bytes.IndexFunc(document, func(r rune) bool { return r >= 0x7f && isControl(r) }) < 0 {
		return document
	}
	return escape(make([]byte, 0, len(document)+16), document, "\n\t\r")
}

// URL returns a URL for responses, logs and errors: without user info, query and
// fragment, which may contain secrets. It returns "" for text that is not an absolute
// URL, since a secret could then be anywhere in it.
func URL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shown.String()
}
