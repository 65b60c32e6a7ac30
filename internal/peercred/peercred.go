// Package peercred returns the account of this machine at the other end of a
// connection, according to the kernel. Nothing that the peer sends influences it.
package peercred

import (
	"errors"
	"net"
)

// ErrUnknown is wrapped by every error of [UID]: the kernel does not name the
// owner of the connection, which may be any account.
var ErrUnknown = errors.New("the kernel does not say which account the connection comes from")

// under returns the connection below those that wrap it, such as TLS.
func under(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}
