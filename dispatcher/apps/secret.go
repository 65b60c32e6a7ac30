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

// cost is the cost of one argon2id hash: memory in KiB, passes and threads.
type cost struct {
	memory, passes uint32
	threads        uint8
}

// usual is the cost of new hashes: about 20 ms and 19 MiB, as OWASP recommends for
// argon2id.
var usual = cost{memory: 19 << 10, passes: 2, threads: 1}

// Maximum cost of a hash in the file. A higher cost would let the file overload the
// dispatcher.
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

// NewSecret returns a random secret of 256 bits, base64url-encoded: letters, digits, -
// and _.
func NewSecret() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // crypto/rand.Read never returns an error
	return base64.RawURLEncoding.EncodeToString(random[:])
}

// Hash returns the argon2id hash of a secret, with a new salt, in the form
// $argon2id$v=19$m=KiB,t=passes,p=threads$salt$hash.
func Hash(secret string) string { return hashWith(usual, secret) }

func hashWith(c cost, secret string) string {
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt)
	key := argon2.IDKey([]byte(secret), salt, c.passes, c.memory, c.threads, hashBytes)
	return fmt.Sprintf("$%s$v=%d$m=%d,t=%d,p=%d$%s$%s", method, argon2.Version,
		c.memory, c.passes, c.threads, base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(key))
}

// hashed is a parsed argon2id hash.
type hashed struct {
	cost
	salt, key []byte
}

// matches reports whether h is the hash of secret. It takes the time and memory of one
// hash.
func (h *hashed) matches(secret string) bool {
	key := argon2.IDKey([]byte(secret), h.salt, h.passes, h.memory, h.threads, uint32(len(h.key))) //nolint:gosec // parseHash and hashWith bound the length
	return subtle.ConstantTimeCompare(key, h.key) == 1
}

var errNotAHash = errors.New("is not an argon2id hash; create one with `procfleet app add`")

// parseHash parses the form that [Hash] returns. Its errors do not contain the text,
// because an operator may have written a plain secret there.
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
		return nil, fmt.Errorf("is a hash whose cost is zero or too high: at most m=%d, t=%d and p=%d", maxMemory, maxPasses, maxThreads)
	}
	var err, err2 error
	h.salt, err = base64.RawStdEncoding.DecodeString(parts[4])
	h.key, err2 = base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil || err2 != nil || len(h.salt) < 8 || len(h.key) < 16 || len(h.salt) > 64 || len(h.key) > 64 {
		return nil, errNotAHash
	}
	return &h, nil
}
