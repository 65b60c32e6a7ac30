package simulate

import (
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// The functions of this file encode replies and results by hand, which costs a fraction of
// agentproto.Encode, because a simulated fleet shares the machine with the system under
// test. A test compares the encodings with those of agentproto.

// appendReply appends to b a [agentproto.Reply] that accepts every item. instance is the incarnation, too. If results is set,
// the reply contains a successful result of every item.
func appendReply(b []byte, h agentproto.Header, instance string, items []commandItem, results bool, now time.Time) []byte {
	b = appendTexts(appendHeader(b, h), `,"instance":"`, instance, `","incarnation":"`, instance, `","items":[`)
	for i, item := range items {
		b = appendTexts(b, comma(i), `{"item":`)
		b = strconv.AppendInt(b, int64(item.Item), 10)
		if results {
			b = appendResult(append(b, `,"result":`...), item, succeeded, now, now)
		}
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendResults appends to b [agentproto.Results] with a successful result of every item.
func appendResults(b []byte, h agentproto.Header, o *outcome) []byte {
	b = appendTexts(appendHeader(b, h), `,"task":"`, o.command.Task, `","host":"`, o.agent.host, `","instance":"`, o.agent.instance, `","results":[`)
	verdict := succeeded
	if o.interrupted {
		verdict = interrupted
	}
	for i, item := range o.command.Items {
		b = appendResult(append(b, comma(i)...), item, verdict, o.accepted, o.at)
	}
	return append(b, `]}`...)
}

// Encoded outcomes of results.
const (
	succeeded   = `,"code":0,"reason":"succeeded","message":"success"`
	interrupted = `,"code":65535,"reason":"command_failed","message":"interrupted: the task was canceled"`
)

func appendResult(b []byte, item commandItem, verdict string, accepted, now time.Time) []byte {
	b = append(b, `{"item":`...)
	b = strconv.AppendInt(b, int64(item.Item), 10)
	b = appendTexts(b, verdict, `,"status":{"at":"`)
	b = now.AppendFormat(b, time.RFC3339Nano)
	b = appendTexts(b, `","utc_offset_s":0,`, statusText(item.Action), `},"accepted_at":"`)
	b = accepted.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","finished_at":"`...)
	b = now.AppendFormat(b, time.RFC3339Nano)
	return append(b, `"}`...)
}

func appendHeader(b []byte, h agentproto.Header) []byte {
	b = appendTexts(b, `{"type":"`, h.Type, `","id":"`, h.ID, `","sent":"`)
	b = h.Sent.AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

func appendTexts(b []byte, texts ...string) []byte {
	for _, text := range texts {
		b = append(b, text...)
	}
	return b
}

// comma returns the separator before element i of a list.
func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

func statusText(action string) string {
	if leavesRunning(action) {
		return `"running":true,"supervised":true,"phase":"running","pid":` + simulatedPID
	}
	return `"running":false,"supervised":false,"phase":"stopped"`
}

// plain reports whether text consists of ASCII characters that JSON does not escape.
func plain(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' })
}
