// Package plaintext escapes foreign text for terminals and logs: a terminal obeys
// control characters, and a line break ends a line of a log.
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

// steers reports whether a character is a control, a line separator, or changes
// the direction of writing. Its escape, \u and four digits, means the same in
// JSON.
func steers(r rune) bool {
	return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Line returns text in one line: characters that steer are escaped, and bytes
// that are not UTF-8 become U+FFFD.
func Line(text string) string {
	if strings.IndexFunc(text, steers) < 0 && utf8.ValidString(text) {
		return text
	}
	return string(escape(nil, []byte(text), ""))
}

// escape appends text to b; characters of kept stay what they are.
func escape(b, text []byte, kept string) []byte {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if steers(r) && !strings.ContainsRune(kept, r) {
			b = fmt.Appendf(b, `\u%04x`, r)
		} else {
			b = utf8.AppendRune(b, r)
		}
		text = text[size:]
	}
	return b
}

// Writer passes lines on in which nothing steers but line breaks and tabs.
type Writer struct {
	under io.Writer

	mu   sync.Mutex
	rest []byte // of a character whose end is still to come
}

// NewWriter returns a Writer above another one.
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

// Under is the writer below a [Writer], for those who steer it themselves, and
// out itself if it is none.
func Under(out io.Writer) io.Writer {
	if w, ok := out.(*Writer); ok {
		return w.under
	}
	return out
}

// JSON replaces in a document what JSON lets pass and terminals obey.
func JSON(document []byte) []byte {
	if bytes.IndexFunc(document, func(r rune) bool { return r >= 0x7f && steers(r) }) < 0 {
		return document
	}
	return escape(make([]byte, 0, len(document)+16), document, "\n\t\r")
}

// URL returns a URL without its user part, query and fragment, which may hold
// secrets, for answers, logs and errors. It returns "" for text that is no
// absolute URL, since nothing says where a secret begins in it.
func URL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shown.String()
}
