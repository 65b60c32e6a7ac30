package boltdb

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/procfleet/procfleet"
)

// Number8 returns a number as 8 bytes, which sort like the number.
func Number8(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// Digest returns a fixed-length key for texts of any length and origin. Different lists
// of parts have different digests.
func Digest(parts ...string) []byte {
	h := sha256.New()
	for _, p := range parts {
		h.Write(Number8(uint64(len(p))))
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}

// HostKey returns the key of a host. Keys sort by cloud area, then by address text.
func HostKey(h procfleet.Host) []byte {
	return append(Number8(uint64(h.Cloud)), h.Addr.String()...)
}

// ReadHostKey parses the result of [HostKey].
func ReadHostKey(key []byte) (procfleet.Host, error) {
	if len(key) < 8 {
		return procfleet.Host{}, fmt.Errorf("%x is not the key of a host", key)
	}
	addr, err := netip.ParseAddr(string(key[8:]))
	if err != nil {
		return procfleet.Host{}, fmt.Errorf("%x is not the key of a host: %w", key, err)
	}
	return procfleet.Host{Cloud: procfleet.CloudArea(binary.BigEndian.Uint64(key)), Addr: addr}, nil
}
