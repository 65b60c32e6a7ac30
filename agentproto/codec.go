package agentproto

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
)

// MaxMessageBytes is the largest message that is read or written; NATS
// servers refuse more by default.
const MaxMessageBytes = 1 << 20

// ErrType is wrapped when a message is of another type or version than the
// one asked for.
var ErrType = errors.New("agentproto: unexpected message type")

// Message is a pointer to any of the message structs: those that begin with a
// [Header].
type Message interface {
	MessageType() string
	MessageID() string
}

// MessageType is the Type.
func (h *Header) MessageType() string { return h.Type }

// MessageID is the ID.
func (h *Header) MessageID() string { return h.ID }

// Decode reads a message of the wanted type into m, a pointer to one of the
// message structs. It never panics; unknown fields are ignored.
func Decode(data []byte, want string, m Message) error {
	if len(data) > MaxMessageBytes {
		return fmt.Errorf("agentproto: message of %d bytes is over the limit of %d", len(data), MaxMessageBytes)
	}
	if err := json.Unmarshal(data, m); err != nil {
		return fmt.Errorf("agentproto: decode %s: %w", want, err)
	}
	if got := m.MessageType(); got != want {
		return fmt.Errorf("%w: %q, want %q", ErrType, got, want)
	}
	return nil
}

// ShortType is the last word of a message type: "command" of TypeCommand.
func ShortType(messageType string) string {
	return messageType[strings.LastIndexByte(messageType, '.')+1:]
}

// PeekType returns the type of an encoded message without decoding the rest
// of it into anything.
func PeekType(data []byte) (string, error) {
	messageType, _, err := Peek(data)
	return messageType, err
}

// Peek returns the type and the id of an encoded message without decoding the
// rest of it into anything.
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

// Encode writes a message.
func Encode(m Message) ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("agentproto: encode %s: %w", m.MessageType(), err)
	}
	return data, nil
}

// EncodeCommand is [Encode] for a command whose specs are valid JSON. It copies
// the specs, so that a chunk's specs are not read again for each host.
func EncodeCommand(c *Command) ([]byte, error) {
	const end = "]}" // of the specs, which come last, and of the message
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
