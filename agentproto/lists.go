package agentproto

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of the lists in a message. An element has at least three bytes encoded,
// and hundreds decoded: without bounds, decoding a message of [MaxMessageBytes]
// could exhaust the memory of a worker.
const (
	// MaxItems limits [Reply] and [Results]; a command has at most 256 items.
	MaxItems = 1024
	// MaxProcesses limits [Processes]; more reports do not fit into a message.
	MaxProcesses = 8192
)

// Lists in messages of agents, with a bound on their length.
type (
	// ReplyItems has at most [MaxItems] elements.
	ReplyItems []ReplyItem
	// ItemList has at most [MaxItems] elements.
	ItemList []int
	// ResultList has at most [MaxItems] elements.
	ResultList []Result
	// CancelItems has at most [MaxItems] elements.
	CancelItems []CancelDecision
	// ManagedProcesses has at most [MaxProcesses] elements.
	ManagedProcesses []ManagedProcess
)

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ReplyItems) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]ReplyItem)(l), MaxItems)
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ItemList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]int)(l), MaxItems)
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ResultList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]Result)(l), MaxItems)
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *CancelItems) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]CancelDecision)(l), MaxItems)
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ManagedProcesses) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]ManagedProcess)(l), MaxProcesses)
}

// decodeList decodes null or a list of up to most elements into list.
func decodeList[T any](dec *jsontext.Decoder, list *[]T, most int) error {
	*list = nil
	if dec.PeekKind() != '[' {
		var null *struct{}
		return json.UnmarshalDecode(dec, &null)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != ']' {
		if len(*list) == most {
			return fmt.Errorf("list has more than %d elements", most)
		}
		var element T
		if err := json.UnmarshalDecode(dec, &element); err != nil {
			return err
		}
		*list = append(*list, element)
	}
	_, err := dec.ReadToken()
	return err
}
