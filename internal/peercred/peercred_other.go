//go:build !linux

package peercred

import (
	"errors"
	"net"
)

// UID always returns an error: it is implemented on Linux only.
func UID(net.Conn) (uint32, error) {
	return 0, errors.New("read the account of the connection: supported on Linux only")
}
