package agentproto

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
)

// MaxMessageBytes is the maximum size of a message, sent or received; NATS
// servers reject larger messages by default.
const MaxMessageBytes = 1 << 20

// Message is implemented by pointers to the message structs, which embed
// [Header].
type Message interface {
	MessageType() string
	MessageID() string
}

// MessageType returns h.Type.
func (h *Header) MessageType() string { return h.Type }

// MessageID returns h.ID.
func (h *Header) MessageID() string { return h.ID }

// Decode decodes a message of type want into m, a pointer to a message struct.
// It never panics and ignores unknown fields.
func Decode(data []byte, want string, m Message) error {
	if len(data) > MaxMessageBytes {
		return fmt.Errorf("agentproto: message of %d bytes is over the limit of %d", len(data), MaxMessageBytes)
	}
	if err := json.Unmarshal(data, m); err != nil {
		return fmt.Errorf("agentproto: decode %s: %w", want, err)
	}
	if got := m.MessageType(); got != want {
		return fmt.Errorf("agentproto: unexpected message type: %q, want %q", got, want)
	}
	return nil
}

// ShortType returns the last word of a message type: "command" of TypeCommand.
func ShortType(messageType string) string {
	return messageType[strings.LastIndexByte(messageType, '.')+1:]
}

// PeekType returns the type of an encoded message without decoding the other
// fields.
func PeekType(data []byte) (string, error) {
	messageType, _, err := Peek(data)
	return messageType, err
}

// Peek returns the type and the id of an encoded message without decoding the
// other fields.
func Peek(data []byte) (messageType, id string, err error) {
	if len(data) > MaxMessageBytes {
		return "", "", fmt.Errorf("agentproto: message of %d bytes is over the limit of %d", len(data), MaxMessageBytes)
	}
	var h struct {
		Type string `json:"type"`
		ID   string `json:"id"`
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return "", "", fmt.Errorf("agentproto: peek: %w", err)
	}
	return h.Type, h.ID, nil
}

// Encode returns the JSON encoding of m.
func Encode(m Message) ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("agentproto: encode %s: %w", m.MessageType(), err)
	}
	return data, nil
}

// EncodeCommand is [Encode] for a command whose specs are already encoded. It
// copies the specs verbatim, so that they are not encoded again for each host.
func EncodeCommand(c *Command) ([]byte, error) {
	const end = "]}" // end of the specs, the last field, and of the message
	without := *c
	without.Specs = nil
	data, err := Encode(&without)
	if err != nil {
		return nil, err
	}
	size := len(data)
	for _, spec := range c.Specs {
		size += len(spec) + len(",")
	}
	data = append(make([]byte, 0, size), bytes.TrimSuffix(data, []byte(end))...)
	for i, spec := range c.Specs {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, spec...)
	}
	return append(data, end...), nil
}
