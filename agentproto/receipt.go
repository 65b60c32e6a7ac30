package agentproto

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Receipt is a worker's signed reply to [Results] and [Event]: it names the
// results or the event that the servers have stored durably. Its signature
// covers the id of the request.
type Receipt struct {
	Header
	// Task is the task of the [Results]. Stored lists the items whose results
	// are in the task store. Rejected lists items whose results no worker will
	// store: the task is unknown, or the item belongs to another host. The agent
	// resends the results of items in neither list.
	Task     string   `json:"task,omitempty"`
	Stored   ItemList `json:"stored,omitempty"`
	Rejected ItemList `json:"rejected,omitempty"`
	// Event is the id of the [Event] that is now in the event stream.
	Event string `json:"event,omitempty"`
	// RetryAfterMS, if positive, reports that nothing was stored because workers
	// are overloaded or a store is unavailable. The agent sends nothing to this
	// subject for that many milliseconds. With Task or Event, only these results
	// or this event were refused: the agent delays them and sends others.
	RetryAfterMS int64 `json:"retry_after_ms,omitzero"`
}

// RequestTimeout is how long agents wait for the reply of a worker before they
// resend the request. A worker replies earlier, if only with RetryAfterMS.
const RequestTimeout = 5 * time.Second

// MaxRetryAfter is the longest [Receipt.RetryAfterMS] that agents obey.
const MaxRetryAfter = time.Minute

// RetryAfter returns RetryAfterMS as a duration between 0 and [MaxRetryAfter].
func (r *Receipt) RetryAfter() time.Duration {
	ms := min(max(r.RetryAfterMS, 0), MaxRetryAfter.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// ItemList has at most [MaxItems] elements.
type ItemList []int

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ItemList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]int)(l), MaxItems)
}
