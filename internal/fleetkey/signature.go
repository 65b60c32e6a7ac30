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

// signatureHeader carries one signature per value: "<key id> <generation> <MAC>", the
// MAC in base64.
const signatureHeader = "Procfleet-Signature"

// HeaderRoom is more than the headers take, in bytes, that a signature by every
// key of a ring adds to a message.
const HeaderRoom = 1 << 10

// maxSignatures bounds how many values of the header are looked at; a ring has
// no more keys.
const maxSignatures = maxKeys

// Reasons to reject a message.
var (
	ErrUnsigned = errors.New("the message is not signed")
	// ErrUnknownKey means that none of its signatures is by a key and
	// generation that the receiver has: one side was enrolled, revoked or given
	// another fleet key without the other.
	ErrUnknownKey = errors.New("the message is signed with a key or generation that is not known here")
	ErrForged     = errors.New("the signature does not fit the message")
	// ErrNoKeys is for an agent that was not enrolled and is addressed by
	// servers that sign: they would reject its reply.
	ErrNoKeys = errors.New("the message is signed, and there are no keys here to verify it with: give the agent its --identity")
)

// Words for the reasons to reject a message.
const (
	reasonUnsigned   = "unsigned"
	reasonUnknownKey = "unknown_key"
	reasonNoKeys     = "no_keys"
	reasonForged     = "forged"
)

// Reasons are the words of [Reason] that a server uses.
func Reasons() []string { return []string{reasonUnsigned, reasonUnknownKey, reasonForged} }

// Reason is a word for the reason to reject a message.
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

// A Message is what a signature covers.
type Message struct {
	// Purpose is the message's type.
	Purpose string
	// Answers is the id of the message that this one answers; empty if it
	// answers none.
	Answers string
	Body    []byte
}

// hostKey is the key derived from one fleet key for one host.
type hostKey struct {
	id         string
	generation int
	secret     [sha256.Size]byte
}

// mac signs type, id and body of a message; each variable part but the last is
// preceded by its length. It uses the memory of buffer.
func (k *hostKey) mac(m *Message, buffer []byte) []byte {
	head := heads.Get().(*[]byte) //nolint:forcetypeassert // it holds nothing else
	defer heads.Put(head)
	*head = append((*head)[:0], "procfleet message v2"...)
	for _, part := range [...]string{m.Purpose, m.Answers} {
		*head = binary.BigEndian.AppendUint64(*head, uint64(len(part)))
		*head = append(*head, part...)
	}
	h := hmac.New(sha256.New, k.secret[:])
	h.Write(*head)
	h.Write(m.Body)
	return h.Sum(buffer[:0])
}

// heads are buffers for the signed text before a body.
var heads = sync.Pool{New: func() any { return new([]byte) }}

func (k *hostKey) sign(h map[string][]string, m *Message) {
	var mac [sha256.Size]byte
	var buffer [maxID + 64]byte
	value := append(buffer[:0], k.id...)
	value = append(value, ' ')
	value = strconv.AppendInt(value, int64(k.generation), 10)
	value = append(value, ' ')
	value = base64.RawStdEncoding.AppendEncode(value, k.mac(m, mac[:]))
	h[signatureHeader] = append(h[signatureHeader], string(value))
}

// signature is one value of the header.
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

// strictBase64 takes each MAC in one spelling only.
var strictBase64 = base64.RawStdEncoding.Strict()

// keyOf returns the key of an id and generation, if there is one.
type keyOf func(id string, generation int) (hostKey, bool)

// verify looks for a signature by one of the keys. One that is by a known key
// decides: if it is wrong, the message is forged.
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
