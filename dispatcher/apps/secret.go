package apps

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/crypto/argon2"
)

// cost is what one hash takes: memory in KiB, passes and threads.
type cost struct {
	memory, passes uint32
	threads        uint8
}

// usual takes some 20 ms and 19 MiB, as OWASP recommends for argon2id.
var usual = cost{memory: 19 << 10, passes: 2, threads: 1}

// Bounds of the cost that a file may ask of a dispatcher.
const (
	maxMemory  = 256 << 10 // KiB
	maxPasses  = 16
	maxThreads = 8
)

const (
	saltBytes = 16
	hashBytes = 32
	method    = "argon2id"
)

// NewSecret makes a secret that nobody can guess: 256 random bits in letters,
// digits, - and _.
func NewSecret() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails: it would end the process
	return base64.RawURLEncoding.EncodeToString(random[:])
}

// Hash returns what the file keeps of a secret, in the form
// $argon2id$v=19$m=KiB,t=passes,p=threads$salt$hash.
func Hash(secret string) string { return hashWith(usual, secret) }

func hashWith(c cost, secret string) string {
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt)
	key := argon2.IDKey([]byte(secret), salt, c.passes, c.memory, c.threads, hashBytes)
	return fmt.Sprintf("$%s$v=%d$m=%d,t=%d,p=%d$%s$%s", method, argon2.Version,
		c.memory, c.passes, c.threads, base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(key))
}

// hashed is a hash as it was read.
type hashed struct {
	cost
	salt, key []byte
}

// matches takes as long as the hash's cost says.
func (h *hashed) matches(secret string) bool {
	key := argon2.IDKey([]byte(secret), h.salt, h.passes, h.memory, h.threads, uint32(len(h.key))) //nolint:gosec // a length that parseHash or this program chose
	return subtle.ConstantTimeCompare(key, h.key) == 1
}

var errNotAHash = errors.New("is no argon2id hash; `procfleet app add` writes one")

// parseHash reads the form that [Hash] writes. Its errors do not show the
// text: somebody may have written a secret there.
func parseHash(text string) (*hashed, error) {
	parts := strings.Split(text, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != method || parts[2] != "v="+strconv.Itoa(argon2.Version) {
		return nil, errNotAHash
	}
	var h hashed
	if n, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &h.memory, &h.passes, &h.threads); n != 3 || err != nil {
		return nil, errNotAHash
	}
	if h.memory == 0 || h.memory > maxMemory || h.passes == 0 || h.passes > maxPasses || h.threads == 0 || h.threads > maxThreads {
		return nil, fmt.Errorf("is a hash that takes too much or nothing: at most m=%d, t=%d and p=%d", maxMemory, maxPasses, maxThreads)
	}
	var err, err2 error
	h.salt, err = base64.RawStdEncoding.DecodeString(parts[4])
	h.key, err2 = base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil || err2 != nil || len(h.salt) < 8 || len(h.key) < 16 || len(h.salt) > 64 || len(h.key) > 64 {
		return nil, errNotAHash
	}
	return &h, nil
}
