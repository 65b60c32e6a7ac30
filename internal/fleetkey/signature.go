package fleetkey

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// signatureHeader has one signature per value: "<key id> <generation> <MAC>", with
// the MAC in base64.
const signatureHeader = "Procfleet-Signature"

// HeaderRoom is an upper bound in bytes for the headers that signatures by all keys
// of a ring add to a message.
const HeaderRoom = 1 << 10

// maxSignatures is the maximum number of header values that are checked; a ring
// has no more keys.
const maxSignatures = maxKeys

// Errors of Verify methods.
var (
	ErrUnsigned = errors.New("the message is not signed")
	// ErrUnknownKey means that the receiver knows no key and generation with which
	// the message is signed: an enrollment, a revocation or a new fleet key has
	// reached only one side.
	ErrUnknownKey = errors.New("the message is signed with a key or generation that is not known here")
	ErrForged     = errors.New("the signature does not fit the message")
	// ErrNoKeys is for a signed message to an agent that is not enrolled: the
	// servers would reject its reply.
	ErrNoKeys = errors.New("the message is signed, and there are no keys here to verify it with: give the agent its --identity")
)

// Values of [Reason].
const (
	reasonUnsigned   = "unsigned"
	reasonUnknownKey = "unknown_key"
	reasonNoKeys     = "no_keys"
	reasonForged     = "forged"
)

// Reasons returns the values of [Reason] that a server reports.
func Reasons() []string { return []string{reasonUnsigned, reasonUnknownKey, reasonForged} }

// Reason returns a word for the error of a Verify method, for metrics and logs.
func Reason(err error) string {
	switch {
	case errors.Is(err, ErrUnsigned):
		return reasonUnsigned
	case errors.Is(err, ErrUnknownKey):
		return reasonUnknownKey
	case errors.Is(err, ErrNoKeys):
		return reasonNoKeys
	}
	return reasonForged
}

// A Message is the content covered by a signature.
type Message struct {
	// Purpose is the message's type.
	Purpose string
	// Answers is the id of the request if the message is a reply, otherwise empty.
	Answers string
	Body    []byte
}

// hostKey is the key derived from one fleet key for one host.
type hostKey struct {
	id         string
	generation int
	secret     [sha256.Size]byte
}

// mac returns the MAC of type, id and body of a message; each variable part except
// the last is preceded by its length. It reuses the memory of buffer.
func (k *hostKey) mac(m *Message, buffer []byte) []byte {
	head := heads.Get().(*[]byte) //nolint:forcetypeassert // the pool holds only *[]byte
	defer heads.Put(head)
	*head = append((*head)[:0], "procfleet message v1"...)
	for _, part := range [...]string{m.Purpose, m.Answers} {
		*head = binary.BigEndian.AppendUint64(*head, uint64(len(part)))
		*head = append(*head, part...)
	}
	h := hmac.New(sha256.New, k.secret[:])
	h.Write(*head)
	h.Write(m.Body)
	return h.Sum(buffer[:0])
}

// heads is a pool of buffers for the signed text that precedes a body.
var heads = sync.Pool{New: func() any { return new([]byte) }}

func (k *hostKey) sign(h map[string][]string, m *Message) {
	var mac [sha256.Size]byte
	h[signatureHeader] = append(h[signatureHeader], k.headerValue(k.mac(m, mac[:])))
}

// headerValue returns "<key id> <generation> <MAC>".
func (k *hostKey) headerValue(mac []byte) string {
	var buffer [maxID + 64]byte
	value := append(buffer[:0], k.id...)
	value = append(value, ' ')
	value = strconv.AppendInt(value, int64(k.generation), 10)
	value = append(value, ' ')
	return string(base64.RawStdEncoding.AppendEncode(value, mac))
}

// signature is one decoded value of the header.
type signature struct {
	id         string
	generation int
	mac        [sha256.Size]byte
}

func parseSignature(text string) (s signature, err error) {
	id, rest, _ := strings.Cut(text, " ")
	number, mac, whole := strings.Cut(rest, " ")
	if !whole || validID(id) != nil {
		return s, fmt.Errorf("%w: header %s is not \"<key> <generation> <MAC>\"", ErrForged, signatureHeader)
	}
	generation, err := strconv.Atoi(number)
	if err != nil || generation < 0 || strconv.Itoa(generation) != number {
		return s, fmt.Errorf("%w: header %s has no generation", ErrForged, signatureHeader)
	}
	s.id, s.generation = id, generation
	if len(mac) != strictBase64.EncodedLen(sha256.Size) {
		return s, fmt.Errorf("%w: header %s has no MAC", ErrForged, signatureHeader)
	}
	if n, err := strictBase64.Decode(s.mac[:], []byte(mac)); err != nil || n != sha256.Size {
		return s, fmt.Errorf("%w: header %s has no MAC", ErrForged, signatureHeader)
	}
	return s, nil
}

// strictBase64 accepts only one encoding of each MAC.
var strictBase64 = base64.RawStdEncoding.Strict()

// keyOf returns the host key for a key id and generation, and whether it exists.
type keyOf func(id string, generation int) (hostKey, bool)

// verify succeeds if a known key made one of the signatures. The first signature
// with a known key decides: if its MAC is wrong, the message is forged.
func verify(h map[string][]string, m *Message, find keyOf) error {
	values := h[signatureHeader]
	switch {
	case len(values) == 0:
		return ErrUnsigned
	case len(values) > maxSignatures:
		return fmt.Errorf("%w: it has %d signatures", ErrForged, len(values))
	}
	for _, value := range values {
		s, err := parseSignature(value)
		if err != nil {
			return err
		}
		key, known := find(s.id, s.generation)
		if !known {
			continue
		}
		var mac [sha256.Size]byte
		if !hmac.Equal(key.mac(m, mac[:]), s.mac[:]) {
			return ErrForged
		}
		return nil
	}
	return ErrUnknownKey
}
