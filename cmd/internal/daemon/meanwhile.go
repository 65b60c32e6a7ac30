package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	meanwhileRead = 10 * time.Second // for one request
	// meanwhileBody is the most that is read of a request that gets no other
	// answer: many callers look for one only after they have sent everything.
	meanwhileBody = 64 << 20
)

// Meanwhile answers on the listener of a role that waits for its servers: how
// the role is, and to everything else that it is to be asked again. handOver
// ends that and leaves the listener open; it may be called again. Whoever
// connects in between is answered by the role.
func (p *Process) Meanwhile(listener *net.TCPListener) (handOver func()) {
	mux := http.NewServeMux()
	p.health(mux)
	mux.HandleFunc("/", notYet)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: meanwhileRead}
	server.SetKeepAlivesEnabled(false) // the next request is for the role
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(lent{listener}); !errors.Is(err, http.ErrServerClosed) {
			p.Log.WithError(err).Error("nobody is answered before the role is ready")
		}
	}()
	return sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close() // whoever still sends is slow, and can ask again
		}
		<-ended
		_ = listener.SetDeadline(time.Time{}) // fails only if it is closed
	})
}

// lent is a listener that a server gives back when it closes it.
type lent struct{ *net.TCPListener }

// Close makes Accept return.
func (l lent) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// notYet is the native API's answer that something is away.
func notYet(w http.ResponseWriter, r *http.Request) {
	_, _ = io.CopyN(io.Discard, r.Body, meanwhileBody) // the answer is the same however this ends
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Retry-After", "2")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"error":{"code":"unavailable","message":"the server is starting and nothing was accepted; try again in 2 s (GET /readyz says what it waits for)"}}`+"\n")
}
