package agentproto

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of the lists in a message. An element takes three bytes at least when
// it is encoded, and hundreds when it is decoded: without bounds a message of
// [MaxMessageBytes] would take more memory than a worker has.
const (
	// MaxItems of a [Reply] and of [Results]; a command has 256 at most.
	MaxItems = 1024
	// MaxProcesses of [Processes]; what agents say of more does not fit a message.
	MaxProcesses = 8192
)

// The lists of structs that agents send.
type (
	// ReplyItems are at most [MaxItems].
	ReplyItems []ReplyItem
	// ResultList has at most [MaxItems].
	ResultList []Result
	// ManagedProcesses are at most [MaxProcesses].
	ManagedProcesses []ManagedProcess
)

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ReplyItems) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]ReplyItem)(l), MaxItems)
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ResultList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]Result)(l), MaxItems)
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *ManagedProcesses) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	return decodeList(dec, (*[]ManagedProcess)(l), MaxProcesses)
}

// decodeList decodes a list of at most most elements, or null.
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
			return fmt.Errorf("a list of more than %d", most)
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
