package agentproto

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Receipt is a worker's signed reply to [Results] and [Event]: it says what the
// servers have stored durably, and need not be sent again. Its signature covers
// the id of the message that it answers.
type Receipt struct {
	Header
	// Task is that of the [Results]. Stored names the items whose results the
	// task store has. Rejected names those that no worker will store: the task
	// is unknown to the store, or the item is another host's. The agent sends
	// neither again by itself; items in neither list are to be sent again.
	Task     string   `json:"task,omitempty"`
	Stored   ItemList `json:"stored,omitempty"`
	Rejected ItemList `json:"rejected,omitempty"`
	// Event is the id of the [Event] that the event stream has.
	Event string `json:"event,omitempty"`
	// RetryAfterMS, if positive, says that nothing was stored because workers are
	// busy or what they store to is unavailable. The agent sends nothing more to
	// this subject for as many milliseconds. With Task or Event, only these
	// results or this event were refused: the agent holds them back for that time
	// and goes on with others.
	RetryAfterMS int64 `json:"retry_after_ms,omitzero"`
}

// RequestTimeout is how long agents wait for a reply of a worker. Then they send
// their request again, so a worker replies before, with RetryAfterMS at least.
const RequestTimeout = 5 * time.Second

// MaxRetryAfter is the longest time for which agents obey
// [Receipt.RetryAfterMS].
const MaxRetryAfter = time.Minute

// RetryAfter returns RetryAfterMS as a duration between 0 and [MaxRetryAfter].
func (r *Receipt) RetryAfter() time.Duration {
	ms := min(max(r.RetryAfterMS, 0), MaxRetryAfter.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// ItemList has at most [MaxItems].
type ItemList []int

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ItemList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]int)(l), MaxItems)
}
