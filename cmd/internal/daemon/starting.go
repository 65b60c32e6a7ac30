package daemon

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// startingBody is the maximum size of a request body that is read before the response
// 503: many clients read the response only after they have sent the whole body.
const startingBody = 64 << 20

// ServeStarting serves the listener of a role that waits for NATS or Redis: the health
// check of the role, and 503 with Retry-After for all other requests. handOver stops
// serving and leaves the listener open for the role; further calls have no effect.
// Connections that arrive in between wait for the role.
func (p *Process) ServeStarting(listener *Listener) (handOver func()) {
	mux := http.NewServeMux()
	p.health(mux)
	mux.HandleFunc("/", respondStarting)
	server := newServer(mux, p.Log)
	server.SetKeepAlivesEnabled(false) // so that the next request reaches the role
	// Wait for responses on open connections instead of calling Shutdown, which would
	// drop requests that are being read.
	var connections sync.WaitGroup
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connections.Add(1)
		case http.StateClosed:
			connections.Done()
		default:
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(borrowedListener{listener}); !errors.Is(err, net.ErrClosed) {
			p.Log.WithError(err).Error("HTTP listener failed before the role started")
		}
	}()
	return sync.OnceFunc(func() {
		_ = listener.SetDeadline(time.Unix(1, 0)) // fails only if the listener is closed
		<-ended
		late := time.AfterFunc(stopTimeout, func() { _ = server.Close() }) // limits the wait for slow clients, which can retry
		connections.Wait()
		late.Stop()
		_ = listener.SetDeadline(time.Time{})
	})
}

// borrowedListener outlives its server; a deadline makes the server return.
type borrowedListener struct{ *Listener }

// Accept implements [net.Listener].
func (l borrowedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, net.ErrClosed // after a timeout error, the server would retry
	}
	return conn, err
}

// Close leaves the listener open.
func (l borrowedListener) Close() error { return nil }

// respondStarting responds that the server is unavailable, in the format of the native API.
func respondStarting(w http.ResponseWriter, r *http.Request) {
	_, _ = io.CopyN(io.Discard, r.Body, startingBody) // the response is the same after an error
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Retry-After", "2")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"error":{"code":"unavailable","message":"the server is starting and nothing was accepted; try again in 2 s (GET /readyz names the missing part)"}}`+"\n")
}
