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

// meanwhileBody is the most that is read of a request that gets no other
// answer: many callers look for one only after they have sent everything.
const meanwhileBody = 64 << 20

// Meanwhile answers on the listener of a role that waits for its servers: how
// the role is, and to everything else that it is to be asked again. handOver
// ends that and leaves the listener open; it may be called again. Whoever
// connects in between is answered by the role.
func (p *Process) Meanwhile(listener *Listener) (handOver func()) {
	mux := http.NewServeMux()
	p.health(mux)
	mux.HandleFunc("/", notYet)
	server := newServer(mux, p.Log)
	server.SetKeepAlivesEnabled(false) // the next request is for the role
	// Whoever is connected is answered first: Shutdown would drop requests that
	// are just being read.
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
		if err := server.Serve(lent{listener}); !errors.Is(err, net.ErrClosed) {
			p.Log.WithError(err).Error("early listener failed")
		}
	}()
	return sync.OnceFunc(func() {
		_ = listener.SetDeadline(time.Unix(1, 0)) // as below: fails only if it is closed
		<-ended
		late := time.AfterFunc(stopTimeout, func() { _ = server.Close() }) // whoever still sends is slow, and can ask again
		connections.Wait()
		late.Stop()
		_ = listener.SetDeadline(time.Time{})
	})
}

// lent is a listener that outlives its server, which ends when a deadline is
// set.
type lent struct{ *Listener }

// Accept implements [net.Listener].
func (l lent) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, net.ErrClosed // a server would try again after a timeout
	}
	return conn, err
}

// Close leaves the listener open.
func (l lent) Close() error { return nil }

// notYet is the native API's answer that something is away.
func notYet(w http.ResponseWriter, r *http.Request) {
	_, _ = io.CopyN(io.Discard, r.Body, meanwhileBody) // the answer is the same however this ends
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Retry-After", "2")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"error":{"code":"unavailable","message":"the server is starting and nothing was accepted; try again in 2 s (GET /readyz says what it waits for)"}}`+"\n")
}
