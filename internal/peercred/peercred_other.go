//go:build !linux

package peercred

import (
	"fmt"
	"net"
	"runtime"
)

// Supported reports whether [UID] works on this system.
const Supported = false

// UID always returns an error: it is implemented on Linux only.
func UID(net.Conn) (uint32, error) {
	return 0, fmt.Errorf("%w: it is asked on Linux, and this is %s", ErrUnknown, runtime.GOOS)
}
