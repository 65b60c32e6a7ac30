package agentproto

import (
	"errors"
	"fmt"
	"strconv"

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
type Message interface{ messageType() string }

func (h *Header) messageType() string { return h.Type }

// Decode reads a message of the wanted type into m, a pointer to one of the
// message structs. It never panics; unknown fields are ignored.
func Decode(data []byte, want string, m Message) error {
	if len(data) > MaxMessageBytes {
		return fmt.Errorf("agentproto: message of %d bytes is over the limit of %d", len(data), MaxMessageBytes)
	}
	if err := json.Unmarshal(data, m); err != nil {
		return fmt.Errorf("agentproto: decode %s: %w", want, err)
	}
	if got := m.messageType(); got != want {
		return fmt.Errorf("%w: %q, want %q", ErrType, got, want)
	}
	return nil
}

// PeekType returns the type of an encoded message without decoding the rest
// of it into anything.
func PeekType(data []byte) (string, error) {
	if len(data) > MaxMessageBytes {
		return "", fmt.Errorf("agentproto: message of %d bytes is over the limit of %d", len(data), MaxMessageBytes)
	}
	var h struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return "", fmt.Errorf("agentproto: peek: %w", err)
	}
	return h.Type, nil
}

// Encode writes a message.
func Encode(m Message) ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("agentproto: encode %s: %w", m.messageType(), err)
	}
	return data, nil
}

// Auth proves who sent a message: HMAC-SHA256 over the subject and the exact
// bytes of the body, under a key derived per host and purpose. The zero Auth
// is an unsigned message.
type Auth struct {
	KeyID      string // which fleet key the derivation starts from
	Generation int    // of the host's derived key; revocation raises it
	MAC        string // base64
}

// Names of the headers that carry an [Auth].
const (
	headerKeyID      = "Procfleet-Key-Id"
	headerGeneration = "Procfleet-Key-Generation"
	headerMAC        = "Procfleet-Mac"
)

// SetHeader writes a into the headers of a message; the zero Auth writes nothing.
func (a Auth) SetHeader(h map[string][]string) {
	if a == (Auth{}) {
		return
	}
	h[headerKeyID] = []string{a.KeyID}
	h[headerGeneration] = []string{strconv.Itoa(a.Generation)}
	h[headerMAC] = []string{a.MAC}
}

// AuthFromHeader reads what [Auth.SetHeader] wrote; absent headers are the
// zero Auth.
func AuthFromHeader(h map[string][]string) (Auth, error) {
	a := Auth{KeyID: first(h[headerKeyID]), MAC: first(h[headerMAC])}
	if text := first(h[headerGeneration]); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return Auth{}, fmt.Errorf("agentproto: header %s: %q is not a generation", headerGeneration, text)
		}
		a.Generation = n
	}
	return a, nil
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
