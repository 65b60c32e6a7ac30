package daemon

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// Listener is where a role takes connections.
type Listener struct {
	bound
	tls  *tls.Config   // nil: they are plain
	room chan struct{} // for as many as are taken at a time
}

// bound is what TCP listeners and those of Unix sockets have in common.
type bound interface {
	net.Listener
	SetDeadline(deadline time.Time) error
}

// Accept implements [net.Listener]. It waits for no handshake. A connection for
// which there is no room is closed at once: who is one too many hears it now,
// and not when its patience is over.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.bound.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.room <- struct{}{}:
			return l.taken(conn), nil
		default:
			_ = conn.Close() // nothing was said on it
		}
	}
}

func (l *Listener) taken(conn net.Conn) net.Conn {
	counted := &countedConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.room })}
	if l.tls == nil {
		return counted
	}
	return tls.Server(counted, l.tls)
}

// countedConn gives its room back when it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

// Close implements [net.Conn].
func (c *countedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// NetConn is the connection itself, of which the kernel knows who opened it.
func (c *countedConn) NetConn() net.Conn { return c.Conn }
