package daemon

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/loopback"
)

const (
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	statusWrite    = 5 * time.Minute // recording a profile takes minutes
	maxHeader      = 16 << 10        // bytes of request headers
	// statusConnections limits the concurrent clients of the status listener.
	statusConnections = 256
	stopTimeout       = 2 * time.Second // at a stop, for requests in progress
)

// serve serves on the address of --status-http until stop is called.
func (f *Flags) serve(ctx context.Context, handler http.Handler, log logrus.FieldLogger) (stop func(), err error) {
	files, err := f.statusTLS.Open(log)
	if err != nil {
		return nil, err
	}
	listener, err := Listen(ctx, "--status-http", f.statusHTTP, files, statusConnections)
	if err != nil {
		return nil, err
	}
	if OnLoopback(f.statusHTTP) {
		handler = loopback.OnlyNames(handler)
	}
	server := newServer(handler, log)
	server.WriteTimeout = statusWrite
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.WithError(err).Error("status listener failed")
		}
	}()
	log.WithField("address", listener.Addr().String()).Info("serving status")
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close() // closes connections of slow clients, which can retry
		}
		<-ended
	}, nil
}

// newServer returns a server with limits per connection. It logs errors of net/http at
// level debug, because callers can cause them.
func newServer(handler http.Handler, logger logrus.FieldLogger) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(connectionErrors{logger}, "", 0),
	}
}

// connectionErrors writes log lines of net/http to the role's log.
type connectionErrors struct{ log logrus.FieldLogger }

func (c connectionErrors) Write(line []byte) (int, error) {
	c.log.WithField("error", strings.TrimSpace(string(line))).Debug("HTTP connection failed")
	return len(line), nil
}

// handler serves health and metrics, which contain neither hosts nor tasks and
// therefore need no authentication, and profiles, for which check requires loopback.
func (p *Process) handler(profiles bool) http.Handler {
	mux := http.NewServeMux()
	p.health(mux)
	mux.Handle("GET /metrics", p.Metrics.Handler())
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func (p *Process) health(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := p.Ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
}
