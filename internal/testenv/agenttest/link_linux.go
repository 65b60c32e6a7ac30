package agenttest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Link is a way to a server that can be cut.
type Link struct {
	URL string

	tb       testing.TB
	server   string
	address  string
	mu       sync.Mutex
	listener net.Listener // nil while it is cut
	open     map[net.Conn]bool
}

// NewLink returns a way to the server of a URL.
func NewLink(tb testing.TB, server string) *Link {
	tb.Helper()
	u, err := url.Parse(server)
	if err != nil {
		tb.Fatal(err)
	}
	l := &Link{tb: tb, server: u.Host, address: "127.0.0.1:0", open: map[net.Conn]bool{}}
	l.Mend()
	u.Host = l.address
	l.URL = u.String()
	tb.Cleanup(l.Cut)
	return l
}

// Mend lets connections through from now on.
func (l *Link) Mend() {
	l.tb.Helper()
	listener, err := net.Listen("tcp", l.address)
	if err != nil {
		l.tb.Fatal(err)
	}
	l.mu.Lock()
	l.listener, l.address = listener, listener.Addr().String()
	l.mu.Unlock()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // it was cut
			}
			l.carry(conn)
		}
	}()
}

func (l *Link) carry(near net.Conn) {
	far, err := net.Dial("tcp", l.server)
	if err != nil {
		near.Close()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener == nil {
		near.Close()
		far.Close()
		return
	}
	l.open[near], l.open[far] = true, true
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // one side has gone: so does the other
			pair[0].Close()
		}()
	}
}

// Cut ends every connection and refuses new ones.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener == nil {
		return
	}
	l.listener.Close() //nolint:errcheck // nobody can be told, and nobody needs to
	l.listener = nil
	for conn := range l.open {
		conn.Close()
	}
	clear(l.open)
}
