package bus

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of a submission that failed, beside those that it came with.
const (
	HeaderError     = "Procfleet-Error"
	HeaderErrorCode = "Procfleet-Error-Code"
	HeaderSequence  = "Procfleet-Sequence"
	// HeaderMessageID is the Nats-Msg-Id that the submission came with.
	HeaderMessageID = "Procfleet-Msg-Id"
	// HeaderBody is "omitted" if the server takes no message that is as big
	// as the submission with these headers.
	HeaderBody = "Procfleet-Body"
)

// maxReason bounds [HeaderError] in bytes.
const maxReason = 2 << 10

// SubmissionFailed keeps a submission that will not be accepted, with the
// reason and its code, and returns when that is acknowledged. A repeat is
// dropped by the stream.
func (b *Bus) SubmissionFailed(ctx context.Context, s *Submission, code, reason string) error {
	msg := &nats.Msg{Subject: subjectSubmitFailed, Header: failedHeader(s), Data: s.Body}
	msg.Header.Set(HeaderError, headerText(reason, maxReason))
	msg.Header.Set(HeaderErrorCode, headerText(code, maxReason))
	_, err := b.js.PublishMsg(ctx, msg)
	if errors.Is(err, nats.ErrMaxPayload) { // the server's limit sank after the message was stored
		msg.Data = nil
		msg.Header.Set(HeaderBody, "omitted")
		_, err = b.js.PublishMsg(ctx, msg)
	}
	if err != nil {
		return publishError("keep failed submission "+s.ID(), err)
	}
	return nil
}

// failedHeader keeps the headers as they came, but for those that would tell
// the server what to do with the copy.
func failedHeader(s *Submission) nats.Header {
	header := nats.Header{}
	for name, values := range s.msg.Headers() {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			header[name] = values
		}
	}
	for _, own := range []string{HeaderError, HeaderErrorCode, HeaderSequence, HeaderMessageID, HeaderBody} {
		for name := range header {
			if strings.EqualFold(name, own) { // of an earlier failure, published again
				delete(header, name)
			}
		}
	}
	if id := s.Header.Get(jetstream.MsgIDHeader); id != "" {
		header.Set(HeaderMessageID, id)
	}
	header.Set(HeaderSequence, strconv.FormatUint(s.Sequence, 10))
	header.Set(jetstream.MsgIDHeader, "submission/"+s.ID())
	return header
}

// headerText makes one line of valid UTF-8 of a text, of at most so many bytes.
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
