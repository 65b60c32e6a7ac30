// Package peercred returns the user account of the peer of a local connection,
// according to the kernel. Data sent by the peer has no influence.
package peercred

import (
	"errors"
	"net"
)

// ErrUnknown is wrapped by every error of [UID]: the kernel does not report the owner
// of the connection, so any account is possible.
var ErrUnknown = errors.New("the kernel does not say which account the connection comes from")

// under returns the connection inside wrappers such as TLS.
func under(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}
