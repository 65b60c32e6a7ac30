package agenttest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Link is a TCP proxy to a server whose connections a test can cut.
type Link struct {
	URL string

	tb       testing.TB
	server   string
	address  string
	mu       sync.Mutex
	listener net.Listener // nil while the link is cut
	open     map[net.Conn]bool
}

// NewLink returns a link to the server at a URL.
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

// Mend accepts connections again after Cut.
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
				return // the link was cut
			}
			l.forward(conn)
		}
	}()
}

func (l *Link) forward(near net.Conn) {
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
			_, _ = io.Copy(pair[0], pair[1]) // if one side closes, the other side is closed too
			pair[0].Close()
		}()
	}
}

// Cut closes every connection and refuses new connections.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener == nil {
		return
	}
	l.listener.Close() //nolint:errcheck // the error has no consequence
	l.listener = nil
	for conn := range l.open {
		conn.Close()
	}
	clear(l.open)
}
