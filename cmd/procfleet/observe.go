package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// observer serves /healthz, /readyz and /metrics of a role that has no HTTP
// of its own. Nothing in them names a host or a task, so they need no
// authentication.
type observer struct {
	address string
	ready   func(context.Context) error
	metrics http.Handler
}

const observerTimeout = 5 * time.Second // of a request, and of the end

func (o *observer) run(ctx context.Context) error {
	listener, err := listen(ctx, "--observe", o.address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: o.handler(), ReadHeaderTimeout: observerTimeout}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", o.address, err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), observerTimeout)
	defer cancel()
	err = server.Shutdown(stop)
	if served := <-served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

func (o *observer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), observerTimeout)
		defer cancel()
		if err := o.ready(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
	mux.Handle("GET /metrics", o.metrics)
	return mux
}
