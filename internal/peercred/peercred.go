// Package peercred says which account of this machine is at the other end of a
// connection, as the kernel knows it. Nothing that the peer sends has a part in
// it.
package peercred

import (
	"errors"
	"net"
)

// ErrUnknown is the reason of every error of [UID]: the kernel does not say
// whose the connection is. Its owner may be any account.
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
