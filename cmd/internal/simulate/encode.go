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

// appendReply appends to b a [agentproto.Reply] that accepts every item.
func appendReply(b []byte, h agentproto.Header, instance string, items []commandItem) []byte {
	b = appendHeader(b, h)
	b = append(b, `,"instance":"`...)
	b = append(b, instance...)
	b = append(b, `","items":[`...)
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"item":`...)
		b = strconv.AppendInt(b, int64(item.Item), 10)
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendPrompt appends to b a [agentproto.Reply] with a successful result of every item.
func appendPrompt(b []byte, h agentproto.Header, instance string, items []commandItem, now time.Time) []byte {
	b = appendHeader(b, h)
	b = append(b, `,"instance":"`...)
	b = append(b, instance...)
	b = append(b, `","items":[`...)
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"item":`...)
		b = strconv.AppendInt(b, int64(item.Item), 10)
		b = append(b, `,"result":`...)
		b = appendResult(b, item, now, now)
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendResults appends to b [agentproto.Results] with a successful result of every item.
func appendResults(b []byte, h agentproto.Header, o *outcome) []byte {
	b = appendHeader(b, h)
	b = append(b, `,"task":"`...)
	b = append(b, o.command.Task...)
	b = append(b, `","host":"`...)
	b = append(b, o.agent.host...)
	b = append(b, `","instance":"`...)
	b = append(b, o.agent.instance...)
	b = append(b, `","results":[`...)
	for i, item := range o.command.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendResult(b, item, o.accepted, o.at)
	}
	return append(b, `],"receipt":true}`...)
}

func appendResult(b []byte, item commandItem, accepted, now time.Time) []byte {
	b = append(b, `{"item":`...)
	b = strconv.AppendInt(b, int64(item.Item), 10)
	b = append(b, `,"code":0,"reason":"succeeded","message":"success","status":{"at":"`...)
	b = now.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","utc_offset_s":0,`...)
	b = append(b, statusText(item.Action)...)
	b = append(b, `},"accepted_at":"`...)
	b = accepted.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","finished_at":"`...)
	b = now.AppendFormat(b, time.RFC3339Nano)
	return append(b, `"}`...)
}

func appendHeader(b []byte, h agentproto.Header) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, h.Type...)
	b = append(b, `","id":"`...)
	b = append(b, h.ID...)
	b = append(b, `","sent":"`...)
	b = h.Sent.AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
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
