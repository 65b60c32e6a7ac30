package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// oldestServer is the minimum NATS version: from 2.12.7 on, the server checks that
// a user may publish to the destination of a message trace, and JetStream is
// strict by default.
var oldestServer = [3]int{2, 12, 7}

// checkServer rejects a NATS server that does not enforce the permissions of
// users. Errors other than [ErrUnavailable] are permanent.
func checkServer(ctx context.Context, js jetstream.JetStream) error {
	conn := js.Conn()
	if version := conn.ConnectedServerVersion(); tooOld(version) {
		return fmt.Errorf("NATS server %q has version %s, and procfleet needs %d.%d.%d or later: older ones publish for a user "+
			"where the user may not publish. Upgrade the server", conn.ConnectedServerName(), version, oldestServer[0], oldestServer[1], oldestServer[2])
	}
	strict, err := isStrict(ctx, js)
	if err == nil && !strict {
		return fmt.Errorf("JetStream of NATS server %q is not strict: it could process its own acknowledgement to a publisher as a request, "+
			"for example to purge a stream. Remove `strict: false` from the section jetstream of the configuration of each server", conn.ConnectedServerName())
	}
	return err
}

// tooOld reports whether a version is lower than [oldestServer]. It returns false
// for an unknown version, such as that of a lost connection.
func tooOld(version string) bool {
	number, _, _ := strings.Cut(version, "-") // a release candidate counts as its release
	for i, part := range strings.SplitN(number, ".", len(oldestServer)) {
		n, err := strconv.Atoi(part)
		if order := cmp.Compare(n, oldestServer[i]); err != nil || order != 0 {
			return err == nil && order < 0
		}
	}
	return false
}

// codeInvalidJSON is the error code of a strict server for an unknown field in a
// request.
const codeInvalidJSON jetstream.ErrorCode = 10025

// isStrict sends a harmless request with an unknown field; the field's name
// explains the warning that a strict server logs.
func isStrict(ctx context.Context, js jetstream.JetStream) (bool, error) {
	// Servers do not reply while JetStream has no leader.
	ctx, cancel := context.WithTimeout(ctx, js.Options().DefaultTimeout)
	defer cancel()
	msg, err := js.Conn().RequestMsgWithContext(ctx, &nats.Msg{
		Subject: "$JS.API.STREAM.NAMES", Data: []byte(`{"procfleet_tests_whether_jetstream_is_strict": true}`),
	})
	if err != nil {
		return false, err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return false, fmt.Errorf("reply of JetStream: %w", err)
	}
	if answer.Error != nil && answer.Error.ErrorCode != codeInvalidJSON {
		return false, answer.Error
	}
	return answer.Error != nil, nil
}

// AckTimeout limits the wait for the acknowledgement of an asynchronous publish,
// so that its message does not remain in memory.
const AckTimeout = 5 * time.Second

// maxPending is the maximum number of unacknowledged asynchronous publishes.
const maxPending = 16 << 10

// JetStream returns the JetStream context of nc with bounded asynchronous
// publishing: a publish fails without an acknowledgement within [AckTimeout].
// It is not in package natsconn, which agents import: agents may not use streams,
// and their program should not link the JetStream code.
func JetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncTimeout(AckTimeout),
		jetstream.WithPublishAsyncMaxPending(maxPending))
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return js, nil
}
