//go:build !linux

package peercred

import (
	"fmt"
	"net"
	"runtime"
)

// Supported is whether [UID] can answer on this system.
const Supported = false

// UID always returns an error: the question is asked on Linux only.
func UID(net.Conn) (uint32, error) {
	return 0, fmt.Errorf("%w: it is asked on Linux, and this is %s", ErrUnknown, runtime.GOOS)
}
