package bus

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of a failed submission, in addition to the producer's headers.
const (
	headerError     = "Procfleet-Error"
	headerErrorCode = "Procfleet-Error-Code"
	headerSequence  = "Procfleet-Sequence"
	// headerMessageID is the Nats-Msg-Id of the producer's message.
	headerMessageID = "Procfleet-Msg-Id"
	// headerBody is "cut from <n> bytes" if the body was truncated to fit into
	// the stream, headerHeaders is "cut" if headers were omitted.
	headerBody    = "Procfleet-Body"
	headerHeaders = "Procfleet-Headers"
)

const (
	// maxReason and maxKeptID limit headerError and headerMessageID, in bytes.
	maxReason, maxKeptID = 2 << 10, 1 << 10
	// maxHeaders limits the headers of a message in a stream, in bytes.
	maxHeaders = 64<<10 - 1
	// storedExtra exceeds the stream's overhead per message, in addition to
	// headers and body.
	storedExtra = 1 << 10
)

// SubmissionFailed publishes a rejected submission with the reason and its code,
// and waits for the stream's acknowledgement. It truncates a message that is too
// large for the stream. The stream drops duplicates.
func (b *Bus) SubmissionFailed(ctx context.Context, s *Submission, code, reason string) error {
	limit, err := b.failedLimit(ctx)
	if err == nil {
		_, err = b.js.PublishMsg(ctx, failedMessage(s, code, reason, limit))
	}
	if err != nil {
		return publishError("store failed submission "+s.ID(), err)
	}
	return nil
}

// failedLimit returns the maximum size of headers and body of a message in
// [StreamSubmitFailed]. The stream would acknowledge a message larger than the
// stream itself and delete it at once.
func (b *Bus) failedLimit(ctx context.Context) (int, error) {
	stream, err := b.js.Stream(ctx, StreamSubmitFailed)
	if err != nil {
		return 0, err
	}
	limit, cfg := b.js.Conn().MaxPayload(), stream.CachedInfo().Config
	if cfg.MaxMsgSize > 0 {
		limit = min(limit, int64(cfg.MaxMsgSize))
	}
	if cfg.MaxBytes > 0 {
		limit = min(limit, cfg.MaxBytes-storedExtra)
	}
	return int(max(limit, 0)), nil
}

// failedMessage returns the message to store for a failed submission, of at most
// limit bytes. The reason has priority over the producer's headers, small headers
// over large ones, and headers over the body.
func failedMessage(s *Submission, code, reason string, limit int) *nats.Msg {
	msg := &nats.Msg{Subject: subjectSubmitFailed, Header: nats.Header{}, Data: s.Body}
	msg.Header.Set(headerError, headerText(reason, min(maxReason, limit/4)))
	msg.Header.Set(headerErrorCode, headerText(code, maxReason))
	msg.Header.Set(headerSequence, strconv.FormatUint(s.Sequence, 10))
	msg.Header.Set(jetstream.MsgIDHeader, "submission/"+s.ID())
	if id := s.Header.Get(jetstream.MsgIDHeader); id != "" {
		msg.Header.Set(headerMessageID, headerText(id, min(maxKeptID, limit/4)))
	}
	cutHeaders := headerBytes(nats.Header{headerBody: {bodyCut(s)}, headerHeaders: {"cut"}})
	size := headerBytes(msg.Header)
	for _, h := range givenHeaders(s) {
		if size+headerBytes(h) > min(maxHeaders, limit)-cutHeaders {
			msg.Header.Set(headerHeaders, "cut")
			continue
		}
		size += headerBytes(h)
		maps.Copy(msg.Header, h)
	}
	if size+cutHeaders+len(s.Body) > limit {
		msg.Header.Set(headerBody, bodyCut(s))
		msg.Data = s.Body[:min(len(s.Body), max(0, limit-size-cutHeaders))]
	}
	return msg
}

func bodyCut(s *Submission) string { return "cut from " + strconv.Itoa(len(s.Body)) + " bytes" }

// givenHeaders returns the producer's headers, smallest first. It omits headers
// that control how the server stores the message, headers of an earlier failure,
// and credentials: more people can read failures than submissions.
func givenHeaders(s *Submission) []nats.Header {
	var given []nats.Header
	dropped := []string{
		headerError, headerErrorCode, headerSequence, headerMessageID, headerBody, headerHeaders,
		"Authorization", "X-Bkapi-Authorization",
	}
	for name, values := range s.msg.Headers() {
		isDropped := slices.ContainsFunc(dropped, func(other string) bool { return strings.EqualFold(name, other) })
		if !isDropped && !strings.HasPrefix(strings.ToLower(name), "nats-") {
			given = append(given, nats.Header{name: values})
		}
	}
	slices.SortFunc(given, func(a, b nats.Header) int { return headerBytes(a) - headerBytes(b) })
	return given
}

func headerBytes(h nats.Header) int {
	n := len("NATS/1.0\r\n\r\n")
	for name, values := range h {
		for _, value := range values {
			n += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return n
}

// headerText converts text to one line of valid UTF-8 of up to most bytes.
func headerText(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
