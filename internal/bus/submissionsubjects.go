package bus

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	subjectSubmit       = "procfleet.submit"
	subjectSubmitFailed = "procfleet.submit.failed"

	submitConsumer = "dispatchers"
	// submitAckPending limits the unacknowledged submissions of all dispatchers
	// together, including delayed ones; at the limit, JetStream delivers no more.
	submitAckPending = 1024

	failedAge = 7 * 24 * time.Hour
	// failedDuplicates covers a repeated publish after the death of a dispatcher
	// and the start of its replacement.
	failedDuplicates = 10 * time.Minute
	trialsAge        = 7 * 24 * time.Hour

	// failedRoom is the maximum size of the headers that a failure adds.
	failedRoom = 16 << 10
	// maxReply is the maximum size of a reply subject in bytes.
	maxReply = 255
)

// submissionStreams returns the configuration of the streams for submissions. The
// server accepts messages of up to payload bytes. A submission must be smaller, so
// that the message with the reason of its failure fits as well.
func submissionStreams(payload int64) []jetstream.StreamConfig {
	submit := jetstream.StreamConfig{
		Name: StreamSubmit, Subjects: []string{subjectSubmit}, MaxBytes: submitBytes,
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		Duplicates: opsDuplicates,
	}
	if payload > 2*failedRoom {
		submit.MaxMsgSize = int32(min(payload-failedRoom, 1<<30))
	}
	return []jetstream.StreamConfig{submit, {
		Name: StreamSubmitFailed, Subjects: []string{subjectSubmitFailed}, MaxBytes: failedBytes,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: failedAge,
		Duplicates: failedDuplicates,
	}, {
		Name: StreamSubmitTrials, Subjects: []string{"procfleet.submit.trial.*.*"}, MaxBytes: trialsBytes,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: trialsAge,
		Duplicates: noDuplicates,
	}}
}

// isForeignInbox reports whether a subject is the inbox of an agent, a server or
// a monitor.
func isForeignInbox(tokens []string) bool {
	if tokens[0] != "_INBOX" || len(tokens) == 1 {
		return false
	}
	return tokens[1] == "server" || tokens[1] == "system" || len(tokens) > 3 && tokens[1] != "producer"
}

// CheckReplySubject returns an error if subject must not receive replies to a
// producer: with subjects under procfleet., under $ or in the inboxes of agents and
// servers, a producer could send messages there through a dispatcher. The default
// inbox of NATS clients has up to three tokens.
func CheckReplySubject(subject string) error {
	switch {
	case len(subject) > maxReply:
		return fmt.Errorf("is longer than %d bytes", maxReply)
	case !utf8.ValidString(subject):
		return errors.New("is not valid UTF-8")
	case strings.ContainsFunc(subject, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return errors.New("has a space in it")
	case strings.ContainsAny(subject, "*>"):
		return errors.New("has a wildcard in it")
	}
	tokens := strings.Split(subject, ".")
	if slices.Contains(tokens, "") {
		return errors.New("has an empty part; a subject is words with dots between them")
	}
	if strings.EqualFold(tokens[0], "procfleet") || strings.HasPrefix(tokens[0], "$") {
		return fmt.Errorf("is below %s, which is not for replies", tokens[0])
	}
	if isForeignInbox(tokens) {
		return errors.New("is not the inbox of a producer; inboxes of producers are below _INBOX.producer")
	}
	return nil
}
