package main

import (
	"context"

	"github.com/procfleet/procfleet/cmd/internal/daemon"
)

// open binds the address of a dispatcher's HTTP listener, before anything else
// is touched.
func (f *doorFlags) open(ctx context.Context, p *daemon.Process) (*daemon.Listener, error) {
	files, err := f.listenTLS.Open(p.Log)
	if err != nil {
		return nil, err
	}
	return daemon.Listen(ctx, "--http", f.listen, files, f.connections)
}

// url is where the listener can be reached from this machine.
func (f *doorFlags) url(l *daemon.Listener) string {
	if f.listenTLS.None() {
		return "http://" + l.Addr().String()
	}
	return "https://" + l.Addr().String()
}
