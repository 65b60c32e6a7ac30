package daemon

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// Listener accepts a limited number of connections, with TLS or plain.
type Listener struct {
	bound
	tls   *tls.Config   // nil: plain
	slots chan struct{} // one per open connection
}

// bound is a listener with deadlines: of TCP or of a Unix socket.
type bound interface {
	net.Listener
	SetDeadline(deadline time.Time) error
}

// Accept implements [net.Listener]. It does not wait for a TLS handshake. It closes
// connections above the limit at once, so that the client does not run into a timeout.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.bound.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return l.counted(conn), nil
		default:
			_ = conn.Close() // no data was exchanged
		}
	}
}

func (l *Listener) counted(conn net.Conn) net.Conn {
	counted := &countedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}
	if l.tls == nil {
		return counted
	}
	return tls.Server(counted, l.tls)
}

// countedConn releases its slot when it is closed.
type countedConn struct {
	net.Conn
	release func()
}

// Close implements [net.Conn].
func (c *countedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// NetConn returns the underlying connection, for its peer credentials.
func (c *countedConn) NetConn() net.Conn { return c.Conn }
