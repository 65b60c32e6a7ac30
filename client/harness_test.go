package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/procfleet/procfleet/client"
)

// network is HTTP in memory: real servers and a real transport over pipes,
// in a bubble where time passes only when everybody waits. The bubble also
// fails a test that leaves a goroutine behind.
type network struct {
	*testing.T
	transport *http.Transport

	mu      sync.Mutex
	servers map[string]*server // by host:port
}

type server struct {
	http  *http.Server
	conns chan net.Conn
	done  chan struct{}
}

// inBubble runs a test with a network of its own.
func inBubble(t *testing.T, test func(t *network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &network{T: t, servers: make(map[string]*server)}
		n.transport = &http.Transport{DialContext: n.dial}
		t.Cleanup(func() {
			n.transport.CloseIdleConnections()
			for name := range n.servers {
				n.stop(name)
			}
		})
		test(n)
	})
}

// serve starts a server that is reached as http://<name>.
func (n *network) serve(name string, handler http.HandlerFunc) {
	s := &server{http: &http.Server{Handler: handler}, conns: make(chan net.Conn), done: make(chan struct{})}
	n.mu.Lock()
	n.servers[name] = s
	n.mu.Unlock()
	go func() { _ = s.http.Serve(s) }() // it ends with ErrServerClosed
}

// stop ends a server and cuts its connections.
func (n *network) stop(name string) {
	n.mu.Lock()
	s := n.servers[name]
	delete(n.servers, name)
	n.mu.Unlock()
	_ = s.http.Close() // closes the connections of running requests
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	s := n.servers[host]
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	if s == nil {
		return nil, refused
	}
	ours, theirs := net.Pipe()
	select {
	case s.conns <- theirs:
		return ours, nil
	case <-s.done:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *server) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *server) Close() error   { close(s.done); return nil }
func (s *server) Addr() net.Addr { return &net.TCPAddr{} }

// client returns a client of this network's servers.
func (n *network) client(cfg client.Config) *client.Client {
	n.Helper()
	if cfg.URL == "" {
		cfg.URL = "http://a"
	}
	cfg.HTTP = &http.Client{Transport: n.transport}
	c, err := client.New(cfg)
	if err != nil {
		n.Fatal(err)
	}
	return c
}

// answer writes a status and a body.
func answer(w http.ResponseWriter, status int, body string) {
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // the client may have disconnected
}

// cut ends the connection in the middle of an answer.
func cut() { panic(http.ErrAbortHandler) }

// hold does not respond to a request; it returns when the client has disconnected.
func hold(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the server detects a disconnected client only after it has read the body
	<-r.Context().Done()
}
